--- Layers of diffusers' UNets and autoencoders over a flat table of parameters with dotted names.
--- Shapes: B batch, C channels, H height, W width, E size of the time embedding.
local adapter = require "redco.lora.adapter"
local blocks = require "redco.models.layers.blocks"
local native = require "redco.native"
local nn = require "redco.nn"
local torch = require "redco.torch"

local layers = {}

-- PyTorch's initial values of linear layers and convolutions.
local function uniform(fan_in)
  local bound = 1 / math.sqrt(fan_in)
  return function(t, generator)
    return nn.init.uniform_(t, { a = -bound, b = bound, generator = generator })
  end
end

function layers.add_linear(add, name, n_in, n_out, has_bias)
  local init = uniform(n_in)
  blocks.add_linear(add, name, n_in, n_out, init, has_bias ~= false and init)
end

function layers.add_conv(add, name, n_in, n_out, kernel)
  local init = uniform(n_in * kernel * kernel)
  add(name .. ".weight", { n_out, n_in, kernel, kernel }, init)
  add(name .. ".bias", { n_out }, init)
end

layers.add_norm = blocks.add_layer_norm

--- Declares the two linear layers of a condition.
function layers.add_embedding(add, name, n_in, n_out)
  layers.add_linear(add, name .. ".linear_1", n_in, n_out)
  layers.add_linear(add, name .. ".linear_2", n_out, n_out)
end

--- Returns the embedding [B, E] of a condition [B, n_in].
function layers.embedding(params, name, x, activation, o)
  local y = activation(blocks.linear(params, name .. ".linear_1", x, o))
  return blocks.linear(params, name .. ".linear_2", y, o)
end

--- A convolution that keeps height and width, unless it has a stride or another padding.
function layers.conv(params, name, x, stride, padding)
  adapter.refuse(params, name)
  local weight = params[name .. ".weight"]
  return torch.conv2d(x, weight, params[name .. ".bias"], stride or 1,
    padding or math.floor((weight:size(2) - 1) / 2))
end

--- A 1 x 1 convolution of pixels as tokens [B, H * W, C]. They stay in this order in memory, which
--- the layers of tokens need.
function layers.pointwise_conv(params, name, x)
  adapter.refuse(params, name)
  local weight = params[name .. ".weight"]:squeeze(-1):squeeze(-1)
  return native.linear(x, weight, params[name .. ".bias"])
end

function layers.group_norm(params, name, x, groups, eps)
  return torch.group_norm(x, groups, params[name .. ".weight"], params[name .. ".bias"], eps, false)
end

--- Declares the two convolutions of a residual block. `n_time` is E, nil without time.
function layers.add_resnet(add, name, n_in, n_out, n_time)
  layers.add_norm(add, name .. ".norm1", n_in)
  layers.add_conv(add, name .. ".conv1", n_in, n_out, 3)
  if n_time then layers.add_linear(add, name .. ".time_emb_proj", n_time, n_out) end
  layers.add_norm(add, name .. ".norm2", n_out)
  layers.add_conv(add, name .. ".conv2", n_out, n_out, 3)
  if n_in ~= n_out then layers.add_conv(add, name .. ".conv_shortcut", n_in, n_out, 1) end
end

--- Returns function(params, name, x [B, C, H, W], time [B, E], o): a residual block. facts:
--- activation, groups, eps, dropout.
function layers.new_resnet(facts)
  local function norm(params, name, x)
    return facts.activation(layers.group_norm(params, name, x, facts.groups, facts.eps))
  end
  return function(params, name, x, time, o)
    local y = layers.conv(params, name .. ".conv1", norm(params, name .. ".norm1", x))
    if time then
      local shift = blocks.linear(params, name .. ".time_emb_proj", facts.activation(time), o)
      y = y + shift:unsqueeze(-1):unsqueeze(-1)
    end
    y = norm(params, name .. ".norm2", y)
    if facts.dropout then y = blocks.dropout(y, facts.dropout, o) end
    y = layers.conv(params, name .. ".conv2", y)
    if params[name .. ".conv_shortcut.weight"] then
      x = layers.conv(params, name .. ".conv_shortcut", x)
    end
    return x + y
  end
end

--- Halves height and width. Without padding, zeros are added below and on the right.
function layers.downsample(params, name, x, padding)
  if padding == 0 then x = torch.pad(x, { 0, 1, 0, 1 }) end
  return layers.conv(params, name, x, 2, padding)
end

--- Repeats pixels up to this height and width, then convolves.
function layers.upsample(params, name, x, height, width)
  return layers.conv(params, name, torch.upsample_nearest2d(x, { height, width }))
end

--- [B, C, H, W] -> [B, H * W, C]
function layers.pixels_as_tokens(x) return x:flatten(2):transpose(1, 2) end

--- The inverse, for a result with the height and width of `like`.
function layers.tokens_as_pixels(x, like)
  return x:transpose(1, 2):reshape { x:size(0), x:size(2), like:size(2), like:size(3) }
end

--- Declares an attention layer with diffusers' names; k and v are of tokens of size `n_memory`.
function layers.add_attention(add, name, size, n_memory, has_bias)
  layers.add_linear(add, name .. ".to_q", size, size, has_bias)
  layers.add_linear(add, name .. ".to_k", n_memory, size, has_bias)
  layers.add_linear(add, name .. ".to_v", n_memory, size, has_bias)
  layers.add_linear(add, name .. ".to_out.0", size, size)
end

--- Attends from x [B, T, C] to itself, or to memory [B, S, D], whose keys and values o.cache keeps.
--- `mask` is added to the scores.
function layers.attention(params, name, x, memory, n_heads, mask, o)
  local function heads(part, from)
    return blocks.split_heads(blocks.linear(params, name .. part, from, o), n_heads)
  end
  local function keys_and_values(from) return heads(".to_k", from), heads(".to_v", from) end
  local k, v
  if memory then
    k, v = blocks.of_memory(o, name, function() return keys_and_values(memory) end)
  else
    k, v = keys_and_values(x)
  end
  return blocks.linear(params, name .. ".to_out.0",
    blocks.attention(heads(".to_q", x), k, v, { mask = mask }, o), o)
end

return layers
