--- The functions of models without a last layer of logits: those that their family makes, and the
--- loss. `output` is what a call returns: features, or logits of texts and images.
local arguments = require "redco.arguments"
local fail = require "redco.fail"

local loss_options = arguments("model.loss", { train = false }, { "rng" })

--- Sets them. check(inputs, options) returns the options for a function of the family.
return function(model, check)
  local family = model.family
  for name, f in pairs(family.new_functions(model.config)) do
    model[name] = function(params, inputs, options)
      return f(params, inputs, check(inputs, options))
    end
  end
  model.logits = nil

  function model.loss(params, inputs, options)
    if not family.loss then
      fail("%s: it has no loss, as it returns features", family.architecture)
    end
    local o = loss_options(options)
    return family.loss(model.config, family.compare(model, params, inputs, o), inputs)
  end
end
