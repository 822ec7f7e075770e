--- Youtu-LLM (Tencent, 2025), as Hugging Face's `YoutuForCausalLM`: LLaMA with DeepSeek's latent
--- attention.
local deepseek_v3 = require "redco.models.families.deepseek_v3"
local fail = require "redco.fail"
local latent_attention = require "redco.models.layers.latent_attention"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "youtu",
  models = "Youtu-LLM",
  remarks = "the cache holds latents",
  architecture = "YoutuForCausalLM",
  tasks = { features = tasks.features "Youtu" },
  defaults = {
    vocab_size = 128256,
    hidden_size = 2048,
    intermediate_size = 6144,
    num_attention_heads = 16,
    num_key_value_heads = 16,
    kv_lora_rank = 512,
    q_lora_rank = 1536,
    qk_rope_head_dim = 64,
    v_head_dim = 128,
    qk_nope_head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-6,
    rope_interleave = true,
    attention_bias = false,
    tie_word_embeddings = true,
    bos_token_id = 128000,
    eos_token_id = 128001,
  },
  nullable = { "num_key_value_heads", "q_lora_rank" },
  optional = { "qk_head_dim", "embedding_initializer_range" },
  complete = deepseek_v3.complete,
  check = function(c)
    if c.num_key_value_heads ~= c.num_attention_heads then
      fail("youtu: num_key_value_heads = %d is not supported, only num_attention_heads = %d",
        c.num_key_value_heads, c.num_attention_heads)
    end
  end,
  facts = function(c)
    local turn = c.rope_interleave and rotary.turn_neighbours or nil
    return {
      attention = latent_attention, turn = turn,
      embedding_range = c.embedding_initializer_range or 2 * c.initializer_range,
    }
  end,
}
