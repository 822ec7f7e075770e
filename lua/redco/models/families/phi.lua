--- Phi-1, Phi-1.5 and Phi-2 (Li et al., 2023), as Hugging Face's `PhiForCausalLM`: attention and
--- feed-forward layers run in parallel after one layer norm, with biases everywhere, and positions
--- in a part of each head.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "phi",
  models = "Phi-1, Phi-1.5, Phi-2",
  architecture = "PhiForCausalLM",
  tasks = tasks.of_decoder("Phi", { token_classification = "score" }),
  defaults = {
    vocab_size = 51200,
    hidden_size = 2048,
    intermediate_size = 8192,
    num_hidden_layers = 24,
    resid_pdrop = 0,
    embd_pdrop = 0,
    hidden_act = "gelu_new",
    max_position_embeddings = 2048,
    layer_norm_eps = 1e-5,
    partial_rotary_factor = 0.5,
    qk_layernorm = false,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  facts = function(c)
    return {
      norm = norms.layer, eps = "layer_norm_eps", norms = { "input_layernorm" },
      last_norm = "final_layernorm", is_parallel = true, mlp_names = { "fc1", "fc2" },
      qkv_bias = true, o_bias = true, mlp_bias = true, head_bias = true, o_name = "dense",
      head_norms = c.qk_layernorm and "head" or nil,
      head_norm_names = { "q_layernorm", "k_layernorm" }, embedding_dropout = c.embd_pdrop,
      residual_dropouts = { c.resid_pdrop, c.resid_pdrop },
    }
  end,
}
