--- Falcon Mamba (Technology Innovation Institute, 2024), as Hugging Face's
--- `FalconMambaForCausalLM`: Mamba with norms of what the scan reads.
local mamba_layer = require "redco.models.states.mamba_layer"
local new_family = require "redco.models.kinds.mamba_like"
local norms = require "redco.models.layers.norms"
local steps = require "redco.models.states.steps"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "falcon_mamba",
  models = "Falcon Mamba 7B",
  remarks = "states",
  architecture = "FalconMambaForCausalLM",
  tasks = { features = tasks.features "FalconMamba" },
  defaults = steps.with_defaults { mixer_rms_eps = 1e-6 },
  optional = steps.optional,
  only = { hidden_act = "silu" },  -- with others, transformers 4 and 5 differ
  mixer = function(c)
    local facts = steps.facts(c)
    facts.norms, facts.eps = norms.rms_plain, c.mixer_rms_eps
    local mixer = mamba_layer(c, facts)
    return function() return mixer end
  end,
}
