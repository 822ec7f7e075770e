--- AFM (Arcee AI, 2025), as Hugging Face's `ArceeForCausalLM`: LLaMA with squared ReLU in
--- feed-forward layers without a gate.
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "arcee",
  models = "AFM-4.5B",
  architecture = "ArceeForCausalLM",
  tasks = tasks.of_decoder("Arcee",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 32000,
    hidden_size = 2560,
    intermediate_size = 18432,
    hidden_act = "relu2",
    max_position_embeddings = 4096,
    rms_norm_eps = 1e-5,
    attention_bias = false,
    mlp_bias = false,
    bos_token_id = 128000,
    eos_token_id = 128001,
  },
  -- Sets head_dim, because transformers writes this key.
  complete = function(c) c.head_dim = rotary.head_dim(c) end,
  facts = function(c)
    return {
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, mlp_bias = c.mlp_bias,
      mlp_names = { "up_proj", "down_proj" },
    }
  end,
}
