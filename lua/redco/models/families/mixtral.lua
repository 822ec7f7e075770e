--- Mixtral (Jiang et al., 2024), as Hugging Face's `MixtralForCausalLM`: Mistral with a mixture of
--- experts in each layer.
local experts = require "redco.models.layers.experts"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "mixtral",
  models = "Mixtral",
  remarks = "experts; GGUF files name it `llama`",
  architecture = "MixtralForCausalLM",
  tasks = tasks.of_decoder("Mixtral",
    { token_classification = "score", question_answering = true }),
  defaults = {
    vocab_size = 32000,
    intermediate_size = 14336,
    num_key_value_heads = 8,
    hidden_act = "silu",
    max_position_embeddings = 131072,
    rms_norm_eps = 1e-5,
    rope_theta = 1000000,
    num_experts_per_tok = 2,
    num_local_experts = 8,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads" },
  optional = { "sliding_window" },
  only = { router_jitter_noise = 0 },
  n_experts = "num_local_experts",
  facts = function(c)
    local mixture = experts.new(c, {
      n = c.num_local_experts, n_chosen = c.num_experts_per_tok, inner = c.intermediate_size,
      is_normalised = true, name = "block_sparse_moe", names = { "w1", "w3", "w2" },
    })
    return { window = windows.of_all(c), experts = function() return mixture end }
  end,
}
