--- Heads of encoders: the layers between the hidden states and the last product, as lists of steps.
--- A step is "first" or "last" (the hidden state of that token, padding or not), "end" (that of the
--- last eos_token_id of the inputs), "mean" (over tokens), "pooled" (by classifier_pooling),
--- "pooled tokens" (the same, and padding may be first), { dropout = keys }, with the first of
--- these keys that the configuration has, { linear = name, activation = name or key, size = key,
--- bias = key }, or { norm = name, bias = key }.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local pooling = require "redco.models.tasks.pooling"
local torch = require "redco.torch"

local heads = {}

local function rate(c, keys)
  for _, key in ipairs(keys) do
    if c[key] then return c[key] end
  end
  return 0
end

local function activation_of(c, step)
  return step.activation and blocks.activation(c.model_type, c[step.activation] or step.activation)
end

local function has_bias(c, step) return step.bias == nil or c[step.bias] end

-- Returns the hidden states [B, size] of the last end token of each row, or NaN if a row has none:
-- the first token would be wrong.
local function of_end(x, inputs, c)
  if type(c.eos_token_id) ~= "number" then
    fail("%s: eos_token_id is %s, expected a token, whose place in the inputs is read",
      c.model_type, c.eos_token_id)
  end
  local ids = inputs.input_ids
  if ids:size(1) ~= x:size(1) then
    fail("%s: %d decoder_input_ids, expected as many as input_ids (%d): the output at the last "
      .. "eos_token_id among these is read", c.model_type, x:size(1), ids:size(1))
  end
  local is_end = ids:eq(c.eos_token_id)
  local last = (is_end * torch.arange(ids:size(1), { device = x.device })):amax { 1 }
  local found = x:gather(1, last:view { -1, 1, 1 }:expand { -1, 1, x:size(2) }):squeeze(1)
  return found:masked_fill(is_end:any(1, true):logical_not(), 0 / 0)
end

--- Declares the parameters of the steps; `size` is that of the hidden states, `init` initialises
--- weights of linear layers. Returns the size of what the steps return.
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
  return size
end

--- Returns function(params, hidden, o, inputs), which applies the steps.
function heads.new_forward(steps, c)
  local activations, eps = {}, c.layer_norm_eps or c.norm_eps or 1e-12
  for i, step in ipairs(steps) do
    activations[i] = type(step) == "table" and activation_of(c, step)
  end
  return function(params, x, o, inputs)
    for i, step in ipairs(steps) do
      local is_pooled = step == "pooled" or step == "pooled tokens"
      if step == "mean" or is_pooled and c.classifier_pooling == "mean" then
        x = pooling.mean(x, inputs.attention_mask)
      elseif step == "pooled tokens" then
        x = pooling.cls(x, inputs.attention_mask)
      elseif step == "end" then
        x = of_end(x, inputs, c)
      elseif step == "last" then
        x = x:select(1, x:size(1) - 1)
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
