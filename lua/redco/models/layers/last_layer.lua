--- The last layer of a model, from hidden states to logits: a linear layer, whose weight may be the
--- embedding.
local adapter = require "redco.lora.adapter"
local tied = require "redco.lora.tied"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"

--- Returns the layer of a family that has one.
return function(family, config)
  local layer = {}
  local weight, bias = family.head(config)
  local own_name = weight:gsub("%.weight$", "")
  local separate = tied.head_of(weight)
  local is_buffer = family.buffers or {}  -- kept with the parameters, not trained
  local cap = family.logits_cap and family.logits_cap(config)

  --- Returns its weight, its bias or nil, and its name.
  function layer.parameters(p)
    -- Adapters may give a tied head its own weight.
    local name = p[separate .. ".weight"] and separate or own_name
    local b = bias and p[bias]:reshape { -1 }
    return p[name .. ".weight"], b and is_buffer[bias] and b:detach() or b, name
  end

  --- Returns the logits of x. `o` has train and rng, for the dropout of the adapter.
  function layer.logits(p, x, o)
    local _, b, name = layer.parameters(p)
    local logits = adapter.by_name(p, name, x, weights.linear(p, name .. ".", x, b), o, b)
    if family.is_single then logits = logits:squeeze(-1) end
    return cap and torch.tanh(logits / cap) * cap or logits
  end

  --- Whether the logits are only a product with a plain weight, and a bias.
  function layer.is_product(p)
    local _, _, name = layer.parameters(p)
    return not (cap or p[name .. ".lora_A.weight"] or p[name .. ".weight_type"])
  end

  --- Whether an adapter of the layer has dropout.
  function layer.has_dropout(p)
    local _, _, name = layer.parameters(p)
    return (p[name .. ".lora_dropout"] or 0) ~= 0
  end

  return layer
end
