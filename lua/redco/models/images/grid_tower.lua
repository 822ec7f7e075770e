--- Models of images of any size, as those of Qwen-VL: attention with rotary positions of rows and
--- columns, within each image or its windows, and a projection of m x m adjacent patches to a
--- feature. Shapes are those of patch_grids.lua; L = S * m * m places of an image.
---
--- A row of facts(c) has
---   size, inner, out: the sizes of hidden states, of feed-forward layers and of features
---   norm: a kind of norms.lua
---   mlp: the names of two layers, or of gate, up and down
---   merger: the names of its norm and its two layers
---   has_patch_bias: whether the first layer has a bias
---   side: the learned positions are a square of this side, interpolated to the image's; or nil
---   window: how many rows and columns of features a window has; 1 without windows
---   is_full: function(i): whether layer i sees the whole image
---   deep: the numbers of layers, from 0, behind which more features are read
local adapter = require "redco.lora.adapter"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local native = require "redco.native"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"
local torch = require "redco.torch"

local tower = {}

local eps = 1e-6  -- of norms

--- Raises an error unless heads have parts of the same size for rows and columns.
function tower.check(c, facts)
  local size = facts.size / c.num_heads
  if size % 4 ~= 0 then
    fail("%s: the heads of the model of images have %s elements, expected a multiple of 4",
      c.model_type, size)
  end
  local rope = c.rope_parameters
  if rope and (rope.rope_type or "axial") ~= "axial" then
    fail("%s: rope_type '%s' of the model of images is not supported, only 'axial'", c.model_type,
      rope.rope_type)
  end
end

local function patch_shape(c)
  return { c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size }
end

local function add_merger(c, facts, add, name, has_wide_norm)
  local normal, size = blocks.normal(c.initializer_range), facts.size * c.spatial_merge_size ^ 2
  local norm, first, second = unpack(facts.merger)
  facts.norm.add(add, name .. norm, { has_wide_norm and size or facts.size })
  blocks.add_linear(add, name .. first, size, size, normal)
  blocks.add_linear(add, name .. second, size, facts.out, normal)
end

-- Returns the features of hidden states x [n, L, size]: [n, S, out].
local function merge(c, facts, params, name, x, has_wide_norm, o)
  local norm, first, second = unpack(facts.merger)
  local function joined(y) return y:unflatten(1, { -1, c.spatial_merge_size ^ 2 }):flatten(2) end
  x = has_wide_norm and facts.norm.apply(params, name .. norm, joined(x), eps)
    or joined(facts.norm.apply(params, name .. norm, x, eps))
  return blocks.linear(params, name .. second,
    torch.gelu(blocks.linear(params, name .. first, x, o)), o)
end

--- Declares the parameters.
function tower.add_parameters(c, facts, add)
  local normal, size = blocks.normal(c.initializer_range), facts.size
  add("patch_embed.proj.weight", { size, unpack(patch_shape(c)) }, normal)
  if facts.has_patch_bias then add("patch_embed.proj.bias", { size }, blocks.zeros) end
  if facts.side then add("pos_embed.weight", { c.num_position_embeddings, size }, normal) end
  for i = 0, c.depth - 1 do
    local layer = ("blocks.%d."):format(i)
    for _, norm in ipairs { "norm1", "norm2" } do facts.norm.add(add, layer .. norm, { size }) end
    blocks.add_linear(add, layer .. "attn.qkv", size, 3 * size, normal)
    blocks.add_linear(add, layer .. "attn.proj", size, size, normal)
    for k, name in ipairs(facts.mlp) do
      local is_last = k == #facts.mlp
      blocks.add_linear(add, layer .. name, is_last and facts.inner or size,
        is_last and size or facts.inner, normal)
    end
  end
  for i = 0, #facts.deep - 1 do
    add_merger(c, facts, add, ("deepstack_merger_list.%d."):format(i), true)
  end
end

-- Returns function(params, x, layout), which adds the learned positions to patches x [n, L, size].
-- Each position is interpolated between four entries of the table.
local function new_positions(side, m)
  local function taps(places, lengths)
    local at = places:float() * (side - 1) / (lengths:clamp(2) - 1)
    local first = at:floor():clamp(nil, side - 1)
    local share, number = at - first, first:to "int64"
    return torch.stack({ number, (number + 1):clamp(nil, side - 1) }, -1),
      torch.stack({ 1 - share, share }, -1)
  end
  return function(params, x, layout)
    local rows, row_shares = taps(layout.rows, layout.heights * m)
    local columns, column_shares = taps(layout.columns, layout.widths * m)
    local numbers = (rows:unsqueeze(-1) * side + columns:unsqueeze(-2)):flatten(2)
    local shares = (row_shares:unsqueeze(-1) * column_shares:unsqueeze(-2)):flatten(2)
    adapter.refuse(params, "pos_embed")
    local learned = torch.embedding(params["pos_embed.weight"], numbers:to(x.device))
    return x + (learned * shares:to(x.device):to(x.dtype):unsqueeze(-1)):sum { 2 }
  end
end

-- Returns cos and sin [n, 1, L, head size / 2] of the patches of a layout.
local function angles_of(c, head_size, layout, x)
  local theta = (c.rope_parameters or {}).rope_theta or 10000
  local angles = rotary.angles_of_two(layout.rows, layout.columns, head_size, theta)
    :unsqueeze(1):to(x.device)
  return angles:cos():to(blocks.wide_dtype(x)), angles:sin():to(blocks.wide_dtype(x))
end

local function new_embed(c)
  local shape = patch_shape(c)
  local n = shape[1] * shape[2] * shape[3] * shape[4]
  return function(params, pixels, layout)
    if pixels:size(2) ~= n then
      fail("%s: pixel_values are [%s], expected [images, patches, %d]: %d channels, %d moments, "
        .. "%d x %d pixels", c.model_type, table.concat(pixels.shape, ", "), n, unpack(shape))
    end
    adapter.refuse(params, "patch_embed.proj")
    local weight = params["patch_embed.proj.weight"]
    local x = native.linear(pixels:to(weight.dtype), weight:flatten(1),
      params["patch_embed.proj.bias"])
    local patches = layout.patches
    if layout.is_ordered then return x:narrow(1, 0, patches:size(1)) end
    return x:gather(1, patches:to(x.device):unsqueeze(-1):expand { x:size(0), patches:size(1),
      x:size(2) })
  end
end

local function new_mlp(c, names)
  local activation = blocks.activation(c.model_type, c.hidden_act)
  if #names == 2 then return blocks.new_mlp(activation, names) end
  return function(params, name, x, o)
    local gate = activation(blocks.linear(params, name .. names[1], x, o))
    return blocks.linear(params, name .. names[3],
      gate * blocks.linear(params, name .. names[2], x, o), o)
  end
end

--- Returns the layer behind the tower as a projector of features_in_text.lua.
function tower.new_projector(c, facts)
  local projector = {}
  function projector.add_parameters(add) add_merger(c, facts, add, "") end
  function projector.forward(params, _, last, o)
    return merge(c, facts, params, "", last, false, o)
  end
  return projector
end

--- Returns function(params, images, o) -> hidden states [n, L, size]. `images` is that of
--- patch_grids.lua; its `deep` becomes a list of more features [n, S, out].
function tower.new(c, facts)
  local m, n_heads, head_size = c.spatial_merge_size, c.num_heads, facts.size / c.num_heads
  local embed, mlp = new_embed(c), new_mlp(c, facts.mlp)
  local add_positions = facts.side and new_positions(facts.side, m)

  -- Attention within parts of x [n, L, size], each of `length` patches.
  local function attend(params, name, x, length, seen, o)
    local y = blocks.linear(params, name .. "attn.qkv", x, o)
      :view { -1, length, 3, n_heads, head_size }
    local q, k, v = unpack(y:transpose(1, 3):unbind(2))
    local function turned(t)
      local cos, sin = unpack(seen.angles)
      return rotary.turn_halves(t:to(cos.dtype), cos, sin):to(t.dtype)
    end
    y = blocks.attention(turned(q), turned(k), v, { mask = seen.mask }, o)
    return blocks.linear(params, name .. "attn.proj", y:view(x.shape), o)
  end

  local function apply_layer(params, layer, x, length, seen, o)
    local function norm(name, y) return facts.norm.apply(params, layer .. name, y, eps) end
    x = x + attend(params, layer, norm("norm1", x), length, seen, o)
    return x + mlp(params, layer, norm("norm2", x), o)
  end

  -- Returns the angles and the mask of patches in parts of `length` patches.
  local function seen_within(length, layout, x, cos, sin)
    local function parts(t) return t:reshape { -1, 1, length, head_size / 2 } end
    local is_real = layout.is_real and layout.is_real:reshape { -1, length }:to(x.device)
    return { angles = { parts(cos), parts(sin) }, mask = masks.padding(is_real, x.dtype) }
  end

  return function(params, images, o)
    local layout, deep = images.layout, {}
    local x = embed(params, images.pixel_values, layout)
    if add_positions then x = add_positions(params, x, layout) end
    local cos, sin = angles_of(c, head_size, layout, x)
    local whole, window, seen = x:size(1), (facts.window * m) ^ 2, {}
    for _, length in ipairs { whole, window } do
      seen[length] = seen[length] or seen_within(length, layout, x, cos, sin)
    end
    for i = 0, c.depth - 1 do
      local length = facts.is_full(i) and whole or window
      x = nn.block(apply_layer, params, ("blocks.%d."):format(i), x, length, seen[length], o)
      for k, place in ipairs(facts.deep) do
        if place == i then
          deep[#deep + 1] = merge(c, facts, params, ("deepstack_merger_list.%d."):format(k - 1), x,
            true, o)
        end
      end
    end
    images.deep = deep
    return x
  end
end

return tower
