--- The encoder of RT-DETR (Zhao et al., 2023): attention within the smallest images, then from
--- small images to large ones and back by convolutions. Shapes: B batch, H and W rows and columns.
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local encoder = {}

local n_bottlenecks = 3

local function hidden_channels(c) return math.floor(c.encoder_hidden_dim * c.hidden_expansion) end

local function layer_name(k, i) return ("encoder.%d.layers.%d."):format(k - 1, i) end

-- The names of the layers from each image to the next larger one, and back to the smaller one.
local directions = {
  up = { convolution = "lateral_convs.%d.", block = "fpn_blocks.%d.", side = 1 },
  down = { convolution = "downsample_convs.%d.", block = "pan_blocks.%d.", side = 3 },
}

--- Declares the parameters.
function encoder.add_parameters(c, add)
  local size, normal = c.encoder_hidden_dim, blocks.normal(c.initializer_range)
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  local function convolution(name, n_in, n_out, side)
    add(name .. "conv.weight", { n_out, n_in, side, side }, normal)
    batch_norm.add(add, name .. "norm", n_out)
  end
  for k = 1, #c.encode_proj_layers do
    for i = 0, c.encoder_layers - 1 do
      local layer = layer_name(k, i)
      for _, part in ipairs { "q_proj", "k_proj", "v_proj", "out_proj" } do
        linear(layer .. "self_attn." .. part, size, size)
      end
      linear(layer .. "fc1", size, c.encoder_ffn_dim)
      linear(layer .. "fc2", c.encoder_ffn_dim, size)
      blocks.add_layer_norm(add, layer .. "self_attn_layer_norm", size)
      blocks.add_layer_norm(add, layer .. "final_layer_norm", size)
    end
  end
  local inner = hidden_channels(c)
  for i = 0, #c.encoder_in_channels - 2 do
    for _, names in pairs(directions) do
      local block = names.block:format(i)
      convolution(names.convolution:format(i), size, size, names.side)
      convolution(block .. "conv1.", 2 * size, inner, 1)
      convolution(block .. "conv2.", 2 * size, inner, 1)
      for k = 0, n_bottlenecks - 1 do
        convolution(("%sbottlenecks.%d.conv1."):format(block, k), inner, inner, 3)
        convolution(("%sbottlenecks.%d.conv2."):format(block, k), inner, inner, 1)
      end
      if inner ~= size then convolution(block .. "conv3.", inner, size, 1) end
    end
  end
end

-- Returns positions [1, H W, size]: sines and cosines of rows, then of columns.
local function positions_of(c, height, width, like)
  local options = { dtype = "float64", device = like.device }
  local n = c.encoder_hidden_dim / 4
  local steps = torch.pow(c.positional_encoding_temperature, torch.arange(0, n, options) / n)
    :reciprocal()
  local function angles(count) return torch.arange(0, count, options):unsqueeze(1) * steps end
  local rows = angles(height):unsqueeze(1):expand { height, width, n }
  local columns = angles(width):unsqueeze(0):expand { height, width, n }
  return torch.cat({ rows:sin(), rows:cos(), columns:sin(), columns:cos() }, -1)
    :flatten(0, 1):unsqueeze(0):to(like.dtype)
end

-- Returns function(params, x, place, o), attention within an image x [B, size, H, W].
local function new_attention(c)
  local activation = blocks.activation(c.model_type, c.encoder_activation_function)
  local n_heads = c.encoder_attention_heads
  return function(params, x, k, o)
    local height, width = x:size(2), x:size(3)
    local y = x:flatten(2):transpose(1, 2)
    local places = (o.train or not c.eval_size) and positions_of(c, height, width, y)
    local function drop(z) return blocks.dropout(z, c.dropout, o) end

    local function apply_layer(layer, z)
      local function norm(name, t)
        return blocks.layer_norm(params, layer .. name, t, c.layer_norm_eps)
      end
      local function heads(part, t)
        return blocks.split_heads(blocks.linear(params, layer .. "self_attn." .. part, t, o),
          n_heads)
      end
      local function attended(t)
        local at = places and t + places or t
        local seen = blocks.attention(heads("q_proj", at), heads("k_proj", at), heads("v_proj", t),
          { dropout = c.dropout }, o)
        return drop(blocks.linear(params, layer .. "self_attn.out_proj", seen, o))
      end
      local function fed(t)
        local inner = activation(blocks.linear(params, layer .. "fc1", t, o))
        inner = blocks.dropout(inner, c.activation_dropout, o)
        return drop(blocks.linear(params, layer .. "fc2", inner, o))
      end
      if c.normalize_before then
        z = norm("final_layer_norm", z + attended(norm("self_attn_layer_norm", z)))
        return z + fed(z)
      end
      z = norm("self_attn_layer_norm", z + attended(z))
      return norm("final_layer_norm", z + fed(z))
    end
    for i = 0, c.encoder_layers - 1 do y = nn.block(apply_layer, layer_name(k, i), y) end
    return y:transpose(1, 2):reshape { x:size(0), c.encoder_hidden_dim, height, width }
  end
end

-- Returns function(params, name, x, o, side, stride, is_linear), a convolution with its norm and,
-- unless it is_linear, the activation.
local function new_convolution(c)
  local activation = blocks.activation(c.model_type, c.activation_function)
  return function(params, name, x, o, side, stride, is_linear)
    local y = torch.conv2d(x, params[name .. "conv.weight"], nil,
      { stride = stride, padding = (side - 1) / 2 })
    y = batch_norm.apply(params, name .. "norm", y, o, c.batch_norm_eps)
    return is_linear and y or activation(y)
  end, activation
end

--- Returns function(params, images, o) -> list of images, of one number of channels.
function encoder.new(c)
  local attend, convolve, activation = new_attention(c), new_convolution(c)
  local keeps_size = hidden_channels(c) == c.encoder_hidden_dim

  -- Joins two images [B, size, H, W].
  local function joined(params, name, a, b, o)
    if a:size(2) ~= b:size(2) or a:size(3) ~= b:size(3) then
      fail("%s: an image of [%d, %d] places does not fit one of [%d, %d]: give images whose sides "
        .. "are multiples of %d pixels", c.model_type, a:size(2), a:size(3), b:size(2), b:size(3),
        c.feat_strides[#c.feat_strides])
    end
    local x = torch.cat({ a, b }, 1)
    local y = convolve(params, name .. "conv1.", x, o, 1, 1)
    for k = 0, n_bottlenecks - 1 do
      local block = ("%sbottlenecks.%d."):format(name, k)
      y = activation(convolve(params, block .. "conv1.", y, o, 3, 1, true)
        + convolve(params, block .. "conv2.", y, o, 1, 1, true))
    end
    y = y + convolve(params, name .. "conv2.", x, o, 1, 1)
    return keeps_size and y or convolve(params, name .. "conv3.", y, o, 1, 1)
  end

  return function(params, images, o)
    images = { unpack(images) }
    if c.encoder_layers > 0 then
      for k, place in ipairs(c.encode_proj_layers) do
        images[place + 1] = attend(params, images[place + 1], k, o)
      end
    end
    local n, up, down = #images, directions.up, directions.down
    for i = 0, n - 2 do
      local k = n - i
      images[k] = convolve(params, up.convolution:format(i), images[k], o, up.side, 1)
      local larger = torch.upsample_nearest2d(images[k],
        { 2 * images[k]:size(2), 2 * images[k]:size(3) })
      images[k - 1] = joined(params, up.block:format(i), larger, images[k - 1], o)
    end
    for i = 0, n - 2 do
      local smaller = convolve(params, down.convolution:format(i), images[i + 1], o, down.side, 2)
      images[i + 2] = joined(params, down.block:format(i), smaller, images[i + 2], o)
    end
    return images
  end
end

return encoder
