--- Helium (Kyutai, 2025), as Hugging Face's `HeliumForCausalLM`: LLaMA whose positions turn
--- adjacent elements.
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "helium",
  models = "Helium 1",
  architecture = "HeliumForCausalLM",
  tasks = tasks.of_decoder("Helium", { token_classification = "score" }),
  defaults = {
    vocab_size = 48000,
    hidden_size = 2560,
    intermediate_size = 7040,
    num_hidden_layers = 24,
    num_attention_heads = 20,
    num_key_value_heads = 20,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 4096,
    rms_norm_eps = 1e-8,
    rope_theta = 100000,
    attention_bias = false,
    mlp_bias = false,
    pad_token_id = 3,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  check = function(c)
    if c.head_dim * c.num_attention_heads ~= c.hidden_size then
      fail("helium: head_dim = %d is not supported, only hidden_size / num_attention_heads = %s",
        c.head_dim, c.hidden_size / c.num_attention_heads)
    end
  end,
  facts = function(c)
    return { qkv_bias = c.attention_bias, mlp_bias = c.mlp_bias, turn = rotary.turn_neighbours }
  end,
}
