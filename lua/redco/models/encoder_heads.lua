--- Heads of encoders: the layers between the hidden states and the last product, as lists of steps.
--- A step is "first" (the first token's hidden state), "pooled" (by classifier_pooling),
--- { dropout = keys }, with the first of these keys that the configuration has, { linear = name,
--- activation = name or key, size = key, bias = key }, or { norm = name, bias = key }.
local blocks = require "redco.models.blocks"

local heads = {}

local function rate(c, keys)
  for _, key in ipairs(keys) do
    if c[key] then return c[key] end
  end
end

local function activation_of(c, step)
  return step.activation and blocks.activation(c.model_type, c[step.activation] or step.activation)
end

local function has_bias(c, step) return step.bias == nil or c[step.bias] end

-- The mean over tokens, without padding.
local function mean_of(x, mask)
  if not mask then return x:mean { 1 } end
  mask = mask:to(x.dtype)
  return (x * mask:unsqueeze(-1)):sum { 1 } / mask:sum({ 1 }, true)
end

--- Declares the parameters of the steps; `size` is that of the hidden states, `init` initialises
--- weights of linear layers.
function heads.add_parameters(steps, c, size, init, add)
  for _, step in ipairs(steps) do
    if step.linear then
      local n_out = step.size and c[step.size] or size
      blocks.add_linear(add, step.linear, size, n_out, init, has_bias(c, step))
      size = n_out
    elseif step.norm then
      add(step.norm .. ".weight", { size }, blocks.ones)
      if has_bias(c, step) then add(step.norm .. ".bias", { size }, blocks.zeros) end
    end
  end
end

--- Returns function(params, hidden, o, inputs), which applies the steps.
function heads.new_forward(steps, c)
  local activations, eps = {}, c.layer_norm_eps or c.norm_eps or 1e-12
  for i, step in ipairs(steps) do
    activations[i] = type(step) == "table" and activation_of(c, step)
  end
  return function(params, x, o, inputs)
    for i, step in ipairs(steps) do
      if step == "pooled" and c.classifier_pooling == "mean" then
        x = mean_of(x, inputs.attention_mask)
      elseif step == "first" or step == "pooled" then
        x = x:select(1, 0)
      elseif step.dropout then
        x = blocks.dropout(x, rate(c, step.dropout), o)
      elseif step.norm then
        x = blocks.layer_norm(params, step.norm, x, eps)
      else
        x = blocks.linear(params, step.linear, x, o)
        if activations[i] then x = activations[i](x) end
      end
    end
    return x
  end
end

return heads
