--- What every model is, whatever its family: a function of its parameters and inputs, its loss, its
--- generation, and its folder.
local arguments = require "redco.arguments"
local nn = require "redco.nn"
local torch = require "redco.torch"

local call_options = arguments("model", { train = false }, { "rng", "cache" })
local loss_options = arguments("model.loss",
  { train = false, ignore_index = -100, label_smoothing = 0 }, { "rng" })

local Model = {}
Model.__index = Model

--- family: a file of this folder; config: complete; params: a flat table.
local function new_model(family, config, params)
  local weight, bias = family.head(config)
  local model = setmetatable({
    family = family, config = config, params = params,
    is_encoder_decoder = family.new_encoder ~= nil,
  }, Model)
  local encode = family.new_encoder and family.new_encoder(config)
  local forward = family.new_forward(config)

  if encode then
    function model.encode(p, inputs, options)
      return encode(p, inputs, call_options(options))
    end
  end

  function model.hidden_states(p, inputs, options)
    local o = call_options(options)
    local memory = encode and (inputs.encoder_hidden_states or encode(p, inputs, o))
    local hidden = forward(p, inputs, o, memory)
    if o.cache then o.cache.length = o.cache.length + hidden:size(1) end
    return hidden
  end

  function model.logits(p, hidden)
    return torch.linear(hidden, p[weight], bias and p[bias])
  end

  function model.loss(p, inputs, options)
    local o = loss_options(options)
    local hidden = model.hidden_states(p, inputs, { train = o.train, rng = o.rng })
    return nn.linear_cross_entropy(hidden, p[weight], inputs.labels, {
      bias = bias and p[bias] or nil, ignore_index = o.ignore_index,
      label_smoothing = o.label_smoothing,
    })
  end

  return model
end

function Model:__call(params, inputs, options)
  return self.logits(params, self.hidden_states(params, inputs, options))
end

function Model:__tostring()
  local n_params, n_tensors = 0, 0
  for _, tensor in pairs(self.params) do
    n_params, n_tensors = n_params + tensor:numel(), n_tensors + 1
  end
  return ("%s: %.0f parameters in %d tensors"):format(self.family.architecture, n_params, n_tensors)
end

return new_model
