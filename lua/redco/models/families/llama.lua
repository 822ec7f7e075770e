--- LLaMA (Touvron et al., 2023), as Hugging Face's `LlamaForCausalLM`.
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "llama",
  models = "LLaMA 1 to 3.x, SmolLM2, TinyLlama, Vicuna",
  architecture = "LlamaForCausalLM",
  tasks = tasks.of_decoder("Llama",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 32000,
    intermediate_size = 11008,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    mlp_bias = false,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  optional = { "pretraining_tp" },
  -- Sets head_dim, because transformers writes this key.
  complete = function(c) c.head_dim = rotary.head_dim(c) end,
  facts = function(c)
    return { qkv_bias = c.attention_bias, o_bias = c.attention_bias, mlp_bias = c.mlp_bias }
  end,
}
