--- The encoder of wav2vec 2.0 and its kin: convolutions over samples, a convolution as positions,
--- and layers of attention. Facts of a family: has_feature_norm(c), add_to_attention(c, add, name,
--- i) and new_attention(c).
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local spec_augment = require "redco.models.sound.spec_augment"
local torch = require "redco.torch"

local encoder = {}

local positions = "encoder.pos_conv_embed.conv"
local norm_of_weight = positions .. ".parametrizations.weight.original"

--- Returns the name of a parameter that PyTorch's older weight norm named.
function encoder.current_name(name)
  name = name:gsub("pos_conv_embed%.conv%.weight_g$",
    "pos_conv_embed.conv.parametrizations.weight.original0")
  return (name:gsub("pos_conv_embed%.conv%.weight_v$",
    "pos_conv_embed.conv.parametrizations.weight.original1"))
end

--- Checks the sizes of a configuration.
function encoder.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  blocks.check_multiple(c, "hidden_size", "num_conv_pos_embedding_groups")
  if c.feat_extract_norm ~= "group" and c.feat_extract_norm ~= "layer" then
    fail("%s: feat_extract_norm is '%s', expected 'group' or 'layer'", c.model_type,
      c.feat_extract_norm)
  end
  for _, key in ipairs { "conv_stride", "conv_kernel" } do
    if #c[key] ~= #c.conv_dim then
      fail("%s: %s has %d numbers, conv_dim %d", c.model_type, key, #c[key], #c.conv_dim)
    end
  end
end

local function uniform(bound, low)
  return function(t, generator)
    return nn.init.uniform_(t, { a = low or -bound, b = bound, generator = generator })
  end
end

-- Whether convolution i of the samples, from 1, has a norm.
local function has_norm(c, i) return c.feat_extract_norm == "layer" or i == 1 end

local function masks_spans(c) return c.mask_time_prob > 0 or c.mask_feature_prob > 0 end

local function add_convolutions(facts, c, add)
  local n_in = 1
  for i, n_out in ipairs(c.conv_dim) do
    local name, kernel = ("feature_extractor.conv_layers.%d."):format(i - 1), c.conv_kernel[i]
    add(name .. "conv.weight", { n_out, n_in, kernel },
      blocks.normal(math.sqrt(2 / (n_in * kernel))))
    if c.conv_bias then
      add(name .. "conv.bias", { n_out },
        facts.has_plain_inits and blocks.zeros or uniform(math.sqrt(1 / (n_in * kernel))))
    end
    if has_norm(c, i) then blocks.add_layer_norm(add, name .. "layer_norm", n_out) end
    n_in = n_out
  end
  return n_in
end

--- Declares the parameters.
function encoder.add_parameters(facts, c, add)
  local size, normal = c.hidden_size, blocks.normal(c.initializer_range)
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  local n_in = add_convolutions(facts, c, add)
  if facts.has_feature_norm(c) then
    blocks.add_layer_norm(add, "feature_projection.layer_norm", n_in)
  end
  local bound = uniform(math.sqrt(1 / n_in))
  blocks.add_linear(add, "feature_projection.projection", n_in, size,
    facts.has_plain_inits and normal or bound, facts.has_plain_inits and blocks.zeros or bound)
  if masks_spans(c) then add("masked_spec_embed", { size }, uniform(1, 0)) end
  local kernel, groups = c.num_conv_pos_embeddings, c.num_conv_pos_embedding_groups
  local std = 2 * math.sqrt(1 / (kernel * size))
  add(norm_of_weight .. "0", { 1, 1, kernel }, blocks.constant(std * size / math.sqrt(groups)))
  add(norm_of_weight .. "1", { size, size / groups, kernel }, blocks.normal(std))
  add(positions .. ".bias", { size }, blocks.zeros)
  blocks.add_layer_norm(add, "encoder.layer_norm", size)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("encoder.layers.%d."):format(i)
    for _, part in ipairs { "k_proj", "v_proj", "q_proj", "out_proj" } do
      linear(layer .. "attention." .. part, size, size)
    end
    facts.add_to_attention(c, add, layer .. "attention.", i)
    blocks.add_layer_norm(add, layer .. "layer_norm", size)
    linear(layer .. "feed_forward.intermediate_dense", size, c.intermediate_size)
    linear(layer .. "feed_forward.output_dense", c.intermediate_size, size)
    blocks.add_layer_norm(add, layer .. "final_layer_norm", size)
  end
end

--- Returns the number of frames [B] of rows of so many samples.
function encoder.n_frames(c, lengths)
  for i, kernel in ipairs(c.conv_kernel) do
    lengths = torch.div(lengths - kernel, c.conv_stride[i], { rounding_mode = "floor" }) + 1
  end
  return lengths
end

--- Returns which frames are sound [B, T], or nil if all are.
function encoder.frame_mask(c, attention_mask, length)
  if not attention_mask then return nil end
  local places = torch.arange(length, { device = attention_mask.device })
  return places:unsqueeze(0):lt(encoder.n_frames(c, attention_mask:sum(1)):unsqueeze(1))
end

local function check_samples(c, samples)
  if torch.is_tensor(samples) and samples:dim() == 2 then
    local length = samples:size(1)
    for i, kernel in ipairs(c.conv_kernel) do
      length = math.floor((length - kernel) / c.conv_stride[i]) + 1
    end
    if length >= 1 then return end
  end
  fail("%s: inputs.input_values are %s, expected sound [batch, samples] of at least one frame",
    c.model_type, torch.is_tensor(samples)
    and ("[%s]"):format(table.concat(samples.shape, ", ")) or tostring(samples))
end

-- Returns the function of samples [B, n] that gives frames [B, T, channels].
local function new_convolutions(c)
  local activation = blocks.activation(c.model_type, c.feat_extract_activation)
  return function(params, samples)
    check_samples(c, samples)
    local x = samples:unsqueeze(1):to(params["feature_extractor.conv_layers.0.conv.weight"].dtype)
    for i, stride in ipairs(c.conv_stride) do
      local name = ("feature_extractor.conv_layers.%d."):format(i - 1)
      x = torch.conv1d(x, params[name .. "conv.weight"], params[name .. "conv.bias"],
        { stride = stride })
      if c.feat_extract_norm == "layer" then
        x = blocks.layer_norm(params, name .. "layer_norm", x:transpose(1, 2), 1e-5)
          :transpose(1, 2)
      elseif i == 1 then
        x = torch.group_norm(x, c.conv_dim[1], params[name .. "layer_norm.weight"],
          params[name .. "layer_norm.bias"], 1e-5)
      end
      x = activation(x)
    end
    return x:transpose(1, 2)
  end
end

-- Adds to frames x [B, T, size] their convolution, with a weight normalised per kernel place.
local function new_positions(c)
  local activation = blocks.activation(c.model_type, c.feat_extract_activation)
  local kernel = c.num_conv_pos_embeddings
  return function(params, x)
    local scale, v = params[norm_of_weight .. "0"], params[norm_of_weight .. "1"]
    local weight = v * (scale / v:square():sum({ 0, 1 }, true):sqrt())
    local y = torch.conv1d(x:transpose(1, 2), weight, params[positions .. ".bias"],
      { padding = math.floor(kernel / 2), groups = c.num_conv_pos_embedding_groups })
    if kernel % 2 == 0 then y = y:narrow(2, 0, y:size(2) - 1) end
    return x + activation(y):transpose(1, 2)
  end
end

--- function(params, inputs, o, kept) -> [B, T, size]. Appends the input of the first layer and the
--- output of each to the list `kept`, if it is given.
function encoder.new(facts, c)
  local convolve, add_positions = new_convolutions(c), new_positions(c)
  local activation = blocks.activation(c.model_type, c.hidden_act)
  local new_attention = facts.new_attention(c)
  local norm_first = c.do_stable_layer_norm

  return function(params, inputs, o, kept)
    local function drop(x) return blocks.dropout(x, c.hidden_dropout, o) end
    local function norm(name, x) return blocks.layer_norm(params, name, x, c.layer_norm_eps) end
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local x = convolve(params, inputs.input_values)
    if facts.has_feature_norm(c) then x = norm("feature_projection.layer_norm", x) end
    x = blocks.linear(params, "feature_projection.projection", x, o)
    x = blocks.dropout(x, c.feat_proj_dropout, o)
    local mask = encoder.frame_mask(c, inputs.attention_mask, x:size(1))
    if o.train and c.apply_spec_augment and masks_spans(c) then
      x = spec_augment.apply(c, x, mask, params.masked_spec_embed, o.rng)
    end
    if mask then x = x:masked_fill(mask:logical_not():unsqueeze(-1), 0) end
    x = add_positions(params, x)
    if not norm_first then x = norm("encoder.layer_norm", x) end
    x = drop(x)
    keep(x)

    local attend = new_attention(params, x, { mask = masks.padding(mask, x.dtype) }, o)
    local function feed_forward(layer, y)
      y = activation(blocks.linear(params, layer .. "feed_forward.intermediate_dense", y, o))
      y = blocks.dropout(y, c.activation_dropout, o)
      return drop(blocks.linear(params, layer .. "feed_forward.output_dense", y, o))
    end
    local function apply_layer(i, before)
      local layer, y = ("encoder.layers.%d."):format(i), before
      if norm_first then
        y = y + drop(attend(i, norm(layer .. "layer_norm", y)))
        y = y + feed_forward(layer, norm(layer .. "final_layer_norm", y))
      else
        y = norm(layer .. "layer_norm", y + drop(attend(i, y)))
        y = norm(layer .. "final_layer_norm", y + feed_forward(layer, y))
      end
      return blocks.layerdrop(before, y, c.layerdrop, o)
    end
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, i, x)
      if norm_first and i == c.num_hidden_layers - 1 then x = norm("encoder.layer_norm", x) end
      keep(x)
    end
    return x
  end
end

return encoder
