--- nanochat (Karpathy, 2025), as Hugging Face's `NanoChatForCausalLM`: norms have no parameters,
--- one more is before the first layer, and pairs of positions turn the other way.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local function turn_back(x, cos, sin) return rotary.turn_halves(x, cos, -sin) end

return new_family {
  model_type = "nanochat",
  models = "nanochat",
  architecture = "NanoChatForCausalLM",
  tasks = { features = tasks.features "NanoChat" },
  defaults = {
    vocab_size = 50304,
    hidden_size = 768,
    intermediate_size = 8192,
    num_hidden_layers = 12,
    num_attention_heads = 6,
    hidden_act = "relu2",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-6,
    final_logit_softcapping = 15,
    attention_bias = false,
    pad_token_id = 1,
    bos_token_id = 0,
    eos_token_id = 1,
  },
  nullable = { "final_logit_softcapping" },
  logits_cap = function(c) return c.final_logit_softcapping end,
  facts = function(c)
    return {
      norm = norms.rms_plain, first_norm = "norm", head_norms = "head", turns_first = true,
      turn = turn_back, mlp_names = { "fc1", "fc2" }, qkv_bias = c.attention_bias,
      o_bias = c.attention_bias, o_range = c.initializer_range * (2 * c.num_hidden_layers) ^ -0.5,
    }
  end,
}
