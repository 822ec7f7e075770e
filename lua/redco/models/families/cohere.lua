--- Command R (Cohere, 2024), as Hugging Face's `CohereForCausalLM`: attention and feed-forward
--- layers run in parallel after one layer norm without bias; rotary positions turn adjacent
--- elements, and the logits have a factor.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "cohere",
  models = "Command R, Aya 23, Aya Expanse",
  architecture = "CohereForCausalLM",
  tasks = { features = tasks.features "Cohere" },
  defaults = {
    vocab_size = 256000,
    hidden_size = 8192,
    intermediate_size = 22528,
    logit_scale = 0.0625,
    num_hidden_layers = 40,
    num_attention_heads = 64,
    hidden_act = "silu",
    max_position_embeddings = 8192,
    layer_norm_eps = 1e-5,
    attention_bias = false,
    use_qk_norm = false,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 5,
    eos_token_id = 255001,
  },
  facts = function(c)
    return {
      norm = norms.layer_without_bias, eps = "layer_norm_eps", norms = { "input_layernorm" },
      is_parallel = true, turn = rotary.turn_neighbours, logits_scale = c.logit_scale,
      qkv_bias = c.attention_bias, o_bias = c.attention_bias,
      head_norms = c.use_qk_norm and "own" or nil, head_norm = norms.layer_of_heads,
    }
  end,
}
