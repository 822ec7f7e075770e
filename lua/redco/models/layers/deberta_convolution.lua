--- The convolution of DeBERTa-v2's xlarge models: over the embedded tokens, and added to the output
--- of the first layer.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local convolution = {}

local function is_there(c) return (c.conv_kernel_size or 0) > 0 end

local types = { conv_kernel_size = "number", conv_groups = "number", conv_act = "string" }

function convolution.check(c)
  for key, expected in pairs(types) do
    local value = c[key]
    local is_right = type(value) == expected and (expected ~= "number" or value % 1 == 0)
    if value ~= nil and not is_right then
      fail("deberta-v2: %s is %s, expected %s", key, value,
        expected == "number" and "an integer" or "the name of an activation")
    end
  end
  if not is_there(c) then return end
  if (c.conv_groups or 1) < 1 then fail("deberta-v2: conv_groups is %d", c.conv_groups) end
  if c.conv_kernel_size % 2 == 0 then
    fail("deberta-v2: conv_kernel_size is %d, expected an odd number", c.conv_kernel_size)
  end
  blocks.check_multiple({ model_type = c.model_type, hidden_size = c.hidden_size,
    conv_groups = c.conv_groups or 1 }, "hidden_size", "conv_groups")
end

function convolution.add_parameters(c, name, add)
  if not is_there(c) then return end
  local size, width = c.hidden_size, c.conv_kernel_size
  local n_in = size / (c.conv_groups or 1)
  -- PyTorch's own initialisation of convolutions, which transformers keeps.
  local function uniform(t, generator)
    local bound = (n_in * width) ^ -0.5
    return nn.init.uniform_(t, { a = -bound, b = bound, generator = generator })
  end
  add(name .. ".conv.weight", { size, n_in, width }, uniform)
  add(name .. ".conv.bias", { size }, uniform)
  blocks.add_layer_norm(add, name .. ".LayerNorm", size)
end

-- Sets x [B, T, size] to zero at padding, which a convolution mixes with its neighbours.
function convolution.without_padding(c, x, inputs)
  if is_there(c) and inputs.segment_ids then
    fail("deberta-v2: segment_ids are not supported with conv_kernel_size = %d: the convolution "
      .. "mixes the sequences of a row", c.conv_kernel_size)
  end
  if not is_there(c) or not inputs.attention_mask then return x end
  return x * inputs.attention_mask:to(x.dtype):unsqueeze(-1)
end

--- Returns function(params, embedded, x, inputs, o) -> [B, T, size], where x is the output of the
--- first layer; nil for a model without the convolution.
function convolution.new(c, name)
  if not is_there(c) then return nil end
  local activation = blocks.activation(c.model_type, c.conv_act or "tanh")
  local options = { padding = { (c.conv_kernel_size - 1) / 2 }, groups = c.conv_groups or 1 }
  return function(params, embedded, x, inputs, o)
    local y = torch.conv1d(embedded:transpose(1, 2), params[name .. ".conv.weight"],
      params[name .. ".conv.bias"], options):transpose(1, 2)
    y = convolution.without_padding(c, y, inputs)
    y = activation(blocks.dropout(y, c.hidden_dropout_prob, o))
    y = blocks.layer_norm(params, name .. ".LayerNorm", x + y, c.layer_norm_eps)
    return convolution.without_padding(c, y, inputs)
  end
end

return convolution
