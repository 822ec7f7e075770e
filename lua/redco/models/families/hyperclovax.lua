--- HyperCLOVA X SEED (NAVER, 2025), as Hugging Face's `HyperCLOVAXForCausalLM`: Granite with norms
--- also after attention and the feed-forward layer.
local granite = require "redco.models.families.granite"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local defaults = { use_post_norm = true }
for key, value in pairs(granite.defaults) do defaults[key] = value end
defaults.attention_multiplier = nil

return new_family {
  model_type = "hyperclovax",
  models = "HyperCLOVA X SEED Think 14B",
  architecture = "HyperCLOVAXForCausalLM",
  tasks = { features = tasks.features "HyperCLOVAX" },
  defaults = defaults,
  optional = { "attention_multiplier" },
  complete = function(c)
    c.attention_multiplier = c.attention_multiplier or rotary.head_dim(c) ^ -0.5
  end,
  facts = function(c)
    local facts = granite.facts(c)
    facts.logits_scale = c.logits_scaling  -- a factor here, a divisor in Granite
    if c.use_post_norm then
      facts.norms = { "input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2" }
    end
    return facts
  end,
}
