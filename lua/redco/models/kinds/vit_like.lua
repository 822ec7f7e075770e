--- Encoders of images built as ViT is: patches and a few learned tokens, layers with norms before
--- attention and the feed-forward layer. A family is a row of facts, with two classes: one that
--- classifies images, and one without a head, whose features are the first token.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_images_family = require "redco.models.kinds.images_family"
local nn = require "redco.nn"
local torch = require "redco.torch"

-- The facts of ViT, unless a row has others.
local vit = {
  tokens = { "cls_token" },  -- before the patches, with positions
  starts_with_zeros = false,  -- whether new tokens and positions are zeros
  registers = nil,  -- the key of the number of registers: tokens without positions, after `tokens`
  norms = { "layernorm_before", "layernorm_after" },
  -- The names of the feed-forward layer's projections, its inner size, and whether the first one is
  -- gate and up.
  mlp = function(c)
    return { up = "intermediate.dense", down = "output.dense", inner = c.intermediate_size }
  end,
  has_layer_scale = false,
  -- Whether positions are interpolated to the size of the image: false, "plain" or "antialias".
  interpolates = false,
  has_pooler = false,  -- a layer that reads the first token
  -- read(x, n): what the classifier reads of x [B, tokens, size], whose patches follow n tokens.
  -- Its size is n_read * size.
  read = function(x) return x:select(1, 0) end,
  n_read = 1,
}

-- Truncated at -2 and 2, not at two standard deviations, as in transformers.
local function normal_of(c)
  return function(t, generator)
    return nn.init.trunc_normal_(t, { std = c.initializer_range, generator = generator })
  end
end

local function n_first(facts, c)
  return #facts.tokens + (facts.registers and c[facts.registers] or 0)
end

local function check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
end

local function add_embeddings(c, facts, add)
  local size, normal = c.hidden_size, normal_of(c)
  local init = facts.starts_with_zeros and blocks.zeros or normal
  for _, name in ipairs(facts.tokens) do add("embeddings." .. name, { 1, 1, size }, init) end
  if c.use_mask_token then add("embeddings.mask_token", { 1, size }, blocks.zeros) end
  if facts.registers then
    add("embeddings.register_tokens", { 1, c[facts.registers], size }, blocks.zeros)
  end
  add("embeddings.position_embeddings",
    { 1, math.floor(c.image_size / c.patch_size) ^ 2 + #facts.tokens, size }, init)
  blocks.add_convolution(add, "embeddings.patch_embeddings.projection",
    { size, c.num_channels, c.patch_size, c.patch_size }, normal)
end

local function add_encoder(c, facts, add)
  local size, normal, mlp = c.hidden_size, normal_of(c), facts.mlp(c)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  add_embeddings(c, facts, add)
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("encoder.layer.%d."):format(i)
    for _, part in ipairs { "query", "key", "value" } do
      linear(layer .. "attention.attention." .. part, size, size, c.qkv_bias)
    end
    linear(layer .. "attention.output.dense", size, size)
    linear(layer .. mlp.up, size, mlp.is_gated and 2 * mlp.inner or mlp.inner)
    linear(layer .. mlp.down, mlp.inner, size)
    for k, norm in ipairs(facts.norms) do
      blocks.add_layer_norm(add, layer .. norm, size)
      if facts.has_layer_scale then
        add(("%slayer_scale%d.lambda1"):format(layer, k), { size },
          blocks.constant(c.layerscale_value))
      end
    end
  end
  blocks.add_layer_norm(add, "layernorm", size)
end

-- Returns the positions [1, tokens + rows * columns, size] of an image of n_rows x n_columns
-- patches.
local function positions_of(facts, positions, n_rows, n_columns)
  local n_tokens, size = #facts.tokens, positions:size(2)
  local n_patches = positions:size(1) - n_tokens
  local side = math.floor(math.sqrt(n_patches) + 0.5)
  if n_rows == side and n_columns == side then return positions end
  local interpolate = facts.interpolates == "antialias" and torch._upsample_bicubic2d_aa
    or torch.upsample_bicubic2d
  local grid = positions:narrow(1, n_tokens, n_patches):view { 1, side, side, size }
  local resized = interpolate(grid:permute { 0, 3, 1, 2 }:to(blocks.wide_dtype(grid)),
    { n_rows, n_columns }, false)
  resized = resized:flatten(2):transpose(1, 2):to(positions.dtype)
  return torch.cat({ positions:narrow(1, 0, n_tokens), resized }, 1)
end

local function check_pixels(c, facts, pixels)
  local shape = pixels.shape
  local fits = #shape == 4 and shape[2] == c.num_channels
  if facts.interpolates then
    if fits and shape[3] >= c.patch_size and shape[4] >= c.patch_size then return end
    fail("%s: pixel_values are [%s], expected [batch, %d, height, width] of at least %d pixels",
      c.model_type, table.concat(shape, ", "), c.num_channels, c.patch_size)
  end
  if not fits or shape[3] ~= c.image_size or shape[4] ~= c.image_size then
    fail("%s: pixel_values are [%s], expected [batch, %d, %d, %d]", c.model_type,
      table.concat(shape, ", "), c.num_channels, c.image_size, c.image_size)
  end
end

-- Returns the embeddings [B, tokens + patches, size].
local function embed(c, facts, params, pixels)
  check_pixels(c, facts, pixels)
  local patches = blocks.patches(params, "embeddings.patch_embeddings.projection", pixels,
    { stride = c.patch_size })
  local parts, batch, size = {}, pixels:size(0), c.hidden_size
  for i, token in ipairs(facts.tokens) do
    parts[i] = params["embeddings." .. token]:expand { batch, 1, size }
  end
  parts[#parts + 1] = patches:flatten(2):transpose(1, 2)
  local x = torch.cat(parts, 1) + positions_of(facts, params["embeddings.position_embeddings"],
    patches:size(2), patches:size(3))
  local n_registers = facts.registers and c[facts.registers] or 0
  if n_registers == 0 then return x end
  local registers = params["embeddings.register_tokens"]:expand { batch, n_registers, size }
  local n_tokens = #facts.tokens
  return torch.cat({ x:narrow(1, 0, n_tokens), registers,
    x:narrow(1, n_tokens, x:size(1) - n_tokens) }, 1)
end

--- function(params, inputs, o, kept) -> [B, tokens + patches, hidden_size]; inputs: pixel_values
--- [B, C, H, W]. Appends the input of the first layer and the output of each to the list `kept`,
--- if it is given.
local function new_encoder(c, facts)
  local activation, names = blocks.activation(c.model_type, c.hidden_act), facts.mlp(c)
  local attention = blocks.new_attention(c.num_attention_heads, { q = ".attention.query",
    k = ".attention.key", v = ".attention.value", out = ".output.dense" },
    c.attention_probs_dropout_prob)

  return function(params, inputs, o, kept)
    local function drop(x) return blocks.dropout(x, c.hidden_dropout_prob, o) end
    local function keep(x) if kept then kept[#kept + 1] = x end end
    local x = drop(embed(c, facts, params, inputs.pixel_values))
    keep(x)

    local function mlp(layer, y)
      local inner = blocks.linear(params, layer .. names.up, y, o)
      if names.is_gated then
        local gate, up = unpack(inner:chunk(2, -1))
        inner = nn.silu_mul(gate, up)
      else
        inner = activation(inner)
      end
      return blocks.linear(params, layer .. names.down, inner, o)
    end

    local function apply_layer(layer, y)
      local function norm(k)
        return blocks.layer_norm(params, layer .. facts.norms[k], y, c.layer_norm_eps)
      end
      local function scaled(k, added)
        local scale = params[("%slayer_scale%d.lambda1"):format(layer, k)]
        return scale and added * scale or added
      end
      local seen = attention.to_itself(params, layer .. "attention", norm(1), {}, o)
      local p = c.drop_path_rate or 0
      y = y + blocks.drop_path(scaled(1, drop(seen)), p, o)
      return y + blocks.drop_path(scaled(2, drop(mlp(layer, norm(2)))), p, o)
    end
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, ("encoder.layer.%d."):format(i), x)
      keep(x)
    end
    return blocks.layer_norm(params, "layernorm", x, c.layer_norm_eps)
  end
end

--- Returns a family. A row has fields of images_family.lua and the facts of ViT that it changes.
return function(row)
  local facts, mask = setmetatable(row, { __index = vit }), "embeddings.mask_token"
  local pooler = facts.has_pooler and "pooler.dense"

  row.check = check
  row.optional = { "encoder_stride", "pooler_output_size", "pooler_act",
    unpack(row.optional or {}) }
  -- Only training with masked images reads this parameter.
  row.buffers = { [mask] = true, [row.prefix .. "." .. mask] = true }
  row.ignored = pooler and {} or { "^pooler%." }
  -- Some folders lack the pooler.
  row.new_if_missing = pooler and { [pooler .. ".weight"] = true, [pooler .. ".bias"] = true }

  function row.complete_model(c)
    if not pooler then return end
    c.pooler_output_size = c.pooler_output_size or c.hidden_size
    c.pooler_act = c.pooler_act or "tanh"
  end

  function row.add_parameters(c, add) add_encoder(c, facts, add) end

  function row.add_pooler(c, add)
    if not pooler then return end
    blocks.add_linear(add, pooler, c.hidden_size, c.pooler_output_size, normal_of(c))
  end

  function row.new_encoder(c) return new_encoder(c, facts) end

  function row.new_features(c)
    local activation = pooler and blocks.activation(c.model_type, c.pooler_act)
    return function(params, x, o)
      local first = x:select(1, 0)
      return pooler and activation(blocks.linear(params, pooler, first, o)) or first
    end
  end

  function row.classified(c)
    local read, n = facts.read, n_first(facts, c)
    return facts.n_read * c.hidden_size, normal_of(c), function(_, x) return read(x, n) end
  end

  return new_images_family(row)
end
