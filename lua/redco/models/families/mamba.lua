--- Mamba (Gu and Dao, 2023), as Hugging Face's `MambaForCausalLM`.
local mamba_layer = require "redco.models.states.mamba_layer"
local new_family = require "redco.models.kinds.mamba_like"
local steps = require "redco.models.states.steps"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "mamba",
  models = "Mamba",
  remarks = "states",
  architecture = "MambaForCausalLM",
  tasks = { features = tasks.features "Mamba" },
  defaults = steps.with_defaults {},
  optional = steps.optional,
  only = { hidden_act = "silu" },  -- with others, transformers 4 and 5 differ
  mixer = function(c)
    local mixer = mamba_layer(c, steps.facts(c))
    return function() return mixer end
  end,
}
