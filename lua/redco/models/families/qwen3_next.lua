--- Qwen3-Next (Qwen Team, 2025), as Hugging Face's `Qwen3NextForCausalLM`: three of four layers
--- have Gated DeltaNet, the others attention with gates; beside the experts is a layer for all
--- tokens.
local experts = require "redco.models.layers.experts"
local linear_layers = require "redco.models.states.linear_layers"
local new_family = require "redco.models.kinds.llama_like"
local sparse_layers = require "redco.models.layers.sparse_layers"
local tasks = require "redco.models.tasks"

return new_family(linear_layers.row({
  model_type = "qwen3_next",
  models = "Qwen3-Next-80B-A3B",
  remarks = "states and experts; layers that predict a second token are ignored",
  architecture = "Qwen3NextForCausalLM",
  tasks = tasks.of_decoder("Qwen3Next",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 151936,
    hidden_size = 2048,
    intermediate_size = 5632,
    num_hidden_layers = 48,
    num_key_value_heads = 2,
    decoder_sparse_step = 1,
    moe_intermediate_size = 512,
    shared_expert_intermediate_size = 512,
    num_experts_per_tok = 10,
    num_experts = 512,
    norm_topk_prob = true,
    output_router_logits = false,
    router_aux_loss_coef = 0.001,
  },
  optional = { "mlp_only_layers", "layer_types", "full_attention_interval" },
  aliases = { num_local_experts = "num_experts" },  -- the name in transformers 5
  n_experts = "num_experts",
}, true, function(c, facts)
  facts.experts = sparse_layers(c, experts.with_shared(c, c.norm_topk_prob))
end))
