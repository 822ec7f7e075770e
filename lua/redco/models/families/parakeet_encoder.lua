--- The encoder of Parakeet, as Hugging Face's `ParakeetEncoder`: a Fast Conformer (Rekesh et al.,
--- 2023) over log-mel spectra. Convolutions take fewer frames of them; a layer is attention with
--- relative positions and a convolution between two feed-forward layers. Shapes: B batch, T frames.
local batch_norm = require "redco.models.layers.batch_norm"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local native = require "redco.native"
local nn = require "redco.nn"
local relative_shift = require "redco.models.layers.relative_shift"
local torch = require "redco.torch"

local eps = 1e-5

local encoder = {
  model_type = "parakeet_encoder",
  models = "the encoder of Parakeet",
  architecture = "ParakeetEncoder",
  task = "features",
  base_model_prefix = "encoder",
  inputs = { "input_features", "attention_mask" },
  defaults = {
    hidden_size = 1024,
    num_hidden_layers = 24,
    num_attention_heads = 8,
    intermediate_size = 4096,
    hidden_act = "silu",
    attention_bias = true,
    convolution_bias = true,
    conv_kernel_size = 9,
    subsampling_factor = 8,
    subsampling_conv_channels = 256,
    num_mel_bins = 80,
    subsampling_conv_kernel_size = 3,
    subsampling_conv_stride = 2,
    dropout = 0.1,
    dropout_positions = 0.0,
    layerdrop = 0.1,
    activation_dropout = 0.1,
    attention_dropout = 0.1,
    max_position_embeddings = 5000,
    scale_input = true,
    initializer_range = 0.02,
  },
  optional = { "num_key_value_heads" },  -- always num_attention_heads
  ignored = { batch_norm.ignored },
}
encoder.variants = { encoder }

-- Returns the number of convolutions that reduce the frames.
local function n_convolutions(c)
  return math.floor(math.log(c.subsampling_factor) / math.log(2) + 1e-9)
end

-- Returns `lengths` after one of these convolutions.
local function shortened(c, lengths)
  local kernel = c.subsampling_conv_kernel_size
  local n = lengths + 2 * math.floor((kernel - 1) / 2) - kernel
  if torch.is_tensor(n) then
    return torch.div(n, c.subsampling_conv_stride, { rounding_mode = "floor" }) + 1
  end
  return math.floor(n / c.subsampling_conv_stride) + 1
end

--- Returns the number of frames [B] of rows of so many frames of input_features.
function encoder.n_frames(c, lengths)
  for _ = 1, n_convolutions(c) do lengths = shortened(c, lengths) end
  return lengths
end

function encoder.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  for _, key in ipairs { "conv_kernel_size", "subsampling_conv_kernel_size" } do
    if c[key] % 2 == 0 then
      fail("parakeet_encoder: %s is %d, expected an odd number", key, c[key])
    end
  end
  if c.hidden_size % 2 ~= 0 then
    fail("parakeet_encoder: hidden_size is %d, expected an even number", c.hidden_size)
  end
  if n_convolutions(c) < 1 then
    fail("parakeet_encoder: subsampling_factor is %d, expected at least 2", c.subsampling_factor)
  end
  local n, read = c.num_mel_bins, c.subsampling_conv_stride ^ n_convolutions(c)
  if encoder.n_frames(c, n) ~= math.floor(n / read) then
    fail("parakeet_encoder: num_mel_bins (%d) is not a multiple of %d, as subsampling_factor and "
      .. "subsampling_conv_stride need it", n, read)
  end
end

-- Calls f(name, is_depthwise, is_pointwise) for each convolution over the spectra. The numbers in
-- the names count the activations between the convolutions, too.
local function each_convolution(c, f)
  f("subsampling.layers.0")
  for i = 1, n_convolutions(c) - 1 do
    f(("subsampling.layers.%d"):format(3 * i - 1), true, false)
    f(("subsampling.layers.%d"):format(3 * i), false, true)
  end
end

local function layer_name(i) return ("layers.%d."):format(i) end

function encoder.add_parameters(c, add)
  local size, normal = c.hidden_size, blocks.normal(c.initializer_range)
  local bias, channels = c.attention_bias, c.subsampling_conv_channels
  local function convolution(name, sizes, has_bias)
    add(name .. ".weight", sizes, normal)
    if has_bias then add(name .. ".bias", { sizes[1] }, blocks.zeros) end
  end
  each_convolution(c, function(name, is_depthwise, is_pointwise)
    local kernel = is_pointwise and 1 or c.subsampling_conv_kernel_size
    convolution(name, { channels, is_pointwise and channels or 1, kernel, kernel }, true)
  end)
  blocks.add_linear(add, "subsampling.linear", channels * encoder.n_frames(c, c.num_mel_bins), size,
    normal)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = layer_name(i)
    for _, part in ipairs { "feed_forward1.", "feed_forward2." } do
      blocks.add_linear(add, layer .. part .. "linear1", size, c.intermediate_size, normal, bias)
      blocks.add_linear(add, layer .. part .. "linear2", c.intermediate_size, size, normal, bias)
    end
    for _, part in ipairs { "q_proj", "k_proj", "v_proj", "o_proj" } do
      blocks.add_linear(add, layer .. "self_attn." .. part, size, size, normal, bias)
    end
    blocks.add_linear(add, layer .. "self_attn.relative_k_proj", size, size, normal, false)
    for _, part in ipairs { "bias_u", "bias_v" } do
      add(layer .. "self_attn." .. part,
        { c.num_attention_heads, size / c.num_attention_heads }, normal)
    end
    convolution(layer .. "conv.pointwise_conv1", { 2 * size, size, 1 }, c.convolution_bias)
    convolution(layer .. "conv.depthwise_conv", { size, 1, c.conv_kernel_size }, c.convolution_bias)
    batch_norm.add(add, layer .. "conv.norm", size)
    convolution(layer .. "conv.pointwise_conv2", { size, size, 1 }, c.convolution_bias)
    for _, part in ipairs { "feed_forward1", "self_att", "conv", "feed_forward2", "out" } do
      blocks.add_layer_norm(add, layer .. "norm_" .. part, size)
    end
  end
end

-- Returns which of T frames are within lengths [B]: [B, T].
local function within(lengths, n)
  return torch.arange(n, { device = lengths.device }):unsqueeze(0):lt(lengths:unsqueeze(1))
end

local function check_features(c, features)
  if torch.is_tensor(features) and features:dim() == 3 and features:size(2) == c.num_mel_bins
    and encoder.n_frames(c, features:size(1)) >= 1 then
    return
  end
  fail("%s: inputs.input_features are %s, expected [batch, frames, %d], as from "
    .. "redco.data.feature_extractor", c.model_type, torch.is_tensor(features)
    and ("[%s]"):format(table.concat(features.shape, ", ")) or tostring(features), c.num_mel_bins)
end

-- Returns frames [B, T, size] of spectra [B, frames, mels]. Padding has no influence on them.
local function subsampled(c, params, inputs, o)
  check_features(c, inputs.input_features)
  local lengths = inputs.attention_mask and inputs.attention_mask:sum(1)
  local stride = c.subsampling_conv_stride
  local padding = math.floor((c.subsampling_conv_kernel_size - 1) / 2)
  local x = inputs.input_features:unsqueeze(1):to(params["subsampling.linear.weight"].dtype)
  each_convolution(c, function(name, is_depthwise, is_pointwise)
    x = torch.conv2d(x, params[name .. ".weight"], params[name .. ".bias"],
      { stride = is_pointwise and 1 or stride, padding = is_pointwise and 0 or padding,
        groups = is_depthwise and x:size(1) or 1 })
    if lengths and not is_pointwise and stride ~= 1 then lengths = shortened(c, lengths) end
    if lengths then
      x = x:masked_fill(within(lengths, x:size(2)):logical_not():unsqueeze(1):unsqueeze(-1), 0)
    end
    if not is_depthwise then x = torch.relu(x) end
  end)
  return blocks.linear(params, "subsampling.linear", x:transpose(1, 2):flatten(2), o)
end

-- Returns sinusoids of the distances T to 1 - T, sines and cosines in turn: [1, 2 T, size].
local function distances(size, length, x)
  local options = { device = x.device }
  local places = length - torch.arange(2 * length, options):float()
  local steps = torch.pow(10000, torch.arange(0, size, 2, options):float() / size):reciprocal()
  local angles = places:unsqueeze(1) * steps
  return torch.stack({ angles:sin(), angles:cos() }, -1):flatten(1):unsqueeze(0):to(x.dtype)
end

-- Returns function(params, name, x, places, seen, o) -> the attention of frames x to each other
-- (Dai et al., 2019). `places` are the sinusoids of distances; `seen` [B, 1, T, T] says which
-- frames see which, or is nil.
local function new_attention(c)
  local n_heads, scale = c.num_attention_heads, (c.hidden_size / c.num_attention_heads) ^ -0.5
  return function(params, name, x, places, seen, o)
    local function heads(part, y)
      return blocks.split_heads(blocks.linear(params, name .. part, y, o), n_heads)
    end
    local function bias(part) return params[name .. part]:unsqueeze(1) end
    local q, r = heads("q_proj", x), heads("relative_k_proj", places)
    local scores = relative_shift((q + bias "bias_v"):matmul(r:transpose(2, 3))) * scale
    if seen then scores = torch.where(seen, scores, masks.additive(seen, scores.dtype)) end
    local y = blocks.attention(q + bias "bias_u", heads("k_proj", x), heads("v_proj", x),
      { mask = scores, scale = scale, dropout = c.attention_dropout }, o)
    return blocks.linear(params, name .. "o_proj", y, o)
  end
end

-- The convolution of frames x [B, T, size]; `padding` [B, T, 1], or nil, marks padded frames.
local function convolved(c, activation, params, name, x, padding, o)
  local function pointwise(part, y)
    return native.linear(y, params[name .. part .. ".weight"]:squeeze(-1),
      params[name .. part .. ".bias"])
  end
  local y = torch.glu(pointwise("pointwise_conv1", x), -1)
  if padding then y = y:masked_fill(padding, 0) end
  y = torch.conv1d(y:transpose(1, 2), params[name .. "depthwise_conv.weight"],
    params[name .. "depthwise_conv.bias"],
    { padding = (c.conv_kernel_size - 1) / 2, groups = c.hidden_size })
  y = activation(batch_norm.apply(params, name .. "norm", y, o))
  return pointwise("pointwise_conv2", y:transpose(1, 2))
end

--- Returns function(params, inputs, o, kept) -> [B, T, size]. Appends the input of the first layer
--- and the output of each to the list `kept`, if it is given.
function encoder.new_encoder(c)
  local activation, attend = blocks.activation(c.model_type, c.hidden_act), new_attention(c)

  return function(params, inputs, o, kept)
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local x = subsampled(c, params, inputs, o)
    if c.scale_input then x = x * math.sqrt(c.hidden_size) end
    x = blocks.dropout(x, c.dropout, o)
    local places = blocks.dropout(distances(c.hidden_size, x:size(1), x), c.dropout_positions, o)
    local seen, padding
    if inputs.attention_mask then
      local is_sound = within(encoder.n_frames(c, inputs.attention_mask:sum(1)), x:size(1))
      seen = is_sound:unsqueeze(1):logical_and(is_sound:unsqueeze(2)):unsqueeze(1)
      padding = is_sound:logical_not():unsqueeze(-1)
    end

    local function norm(name, y) return blocks.layer_norm(params, name, y, eps) end
    local function feed_forward(name, y)
      y = activation(blocks.linear(params, name .. ".linear1", y, o))
      y = blocks.dropout(y, c.activation_dropout, o)
      return blocks.linear(params, name .. ".linear2", y, o)
    end
    local function apply_layer(layer, before)
      local y = before
      y = y + feed_forward(layer .. "feed_forward1", norm(layer .. "norm_feed_forward1", y)) * 0.5
      y = y + attend(params, layer .. "self_attn.", norm(layer .. "norm_self_att", y), places, seen,
        o)
      y = y + convolved(c, activation, params, layer .. "conv.", norm(layer .. "norm_conv", y),
        padding, o)
      y = y + feed_forward(layer .. "feed_forward2", norm(layer .. "norm_feed_forward2", y)) * 0.5
      return blocks.layerdrop(before, norm(layer .. "norm_out", y), c.layerdrop, o)
    end
    keep(x)
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, layer_name(i), x)
      keep(x)
    end
    return x
  end
end

function encoder.new_functions(c)
  local encode = encoder.new_encoder(c)
  return {
    output = function(params, inputs, o) return encode(params, inputs, o) end,
    hidden_states = function(params, inputs, o)
      local kept = {}
      return encode(params, inputs, o, kept), kept
    end,
  }
end

return encoder
