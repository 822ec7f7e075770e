--- Granite's mixtures with shared experts (IBM, 2025), as Hugging Face's
--- `GraniteMoeSharedForCausalLM`: Granite 4 without states.
local granitemoe = require "redco.models.families.granitemoe"
local granitemoehybrid = require "redco.models.families.granitemoehybrid"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

local defaults = { shared_intermediate_size = 0 }
for key, value in pairs(granitemoe.defaults) do defaults[key] = value end

return new_family {
  model_type = "granitemoeshared",
  models = "Granite's 7B-A1B with shared experts",
  remarks = granitemoe.remarks,
  architecture = "GraniteMoeSharedForCausalLM",
  tasks = { features = tasks.features "GraniteMoeShared" },
  defaults = defaults,
  optional = { "position_embedding_type" },
  n_experts = "num_local_experts",
  least = { shared_intermediate_size = 0 },
  facts = function(c)
    local facts = granitemoe.facts(c)
    if c.shared_intermediate_size > 0 then
      local layer = granitemoehybrid.feed_forward(c)
      facts.experts = function() return layer end
    end
    return facts
  end,
}
