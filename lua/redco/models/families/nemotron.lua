--- Nemotron-4 and Minitron (NVIDIA, 2024), as Hugging Face's `NemotronForCausalLM`: LLaMA with
--- layer norms whose weights are distances from 1, squared ReLU without a gate, and positions in a
--- part of each head.
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "nemotron",
  models = "Nemotron-4, Minitron",
  remarks = "without `rope_scaling`, which version 4 ignores",
  architecture = "NemotronForCausalLM",
  tasks = tasks.of_decoder("Nemotron",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 256000,
    hidden_size = 6144,
    intermediate_size = 24576,
    num_attention_heads = 48,
    hidden_act = "relu2",
    max_position_embeddings = 4096,
    initializer_range = 0.0134,
    norm_eps = 1e-5,
    partial_rotary_factor = 0.5,
    attention_bias = false,
    mlp_bias = false,
    bos_token_id = 2,
    eos_token_id = 3,
  },
  -- Sets head_dim, because transformers writes this key.
  complete = function(c) c.head_dim = rotary.head_dim(c) end,
  check = function(c)
    if c.rope_scaling then
      fail "nemotron: rope_scaling is not supported: version 4 of transformers ignores it"
    end
  end,
  facts = function(c)
    return {
      norm = norms.layer_from_one, eps = "norm_eps", mlp_names = { "up_proj", "down_proj" },
      qkv_bias = c.attention_bias, o_bias = c.attention_bias, mlp_bias = c.mlp_bias,
    }
  end,
}
