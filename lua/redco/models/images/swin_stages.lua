--- The stages of a Swin Transformer (Liu et al., 2021): attention in windows, which are shifted in
--- every second layer; between stages the numbers of rows and columns are halved. Shapes: B batch,
--- H and W rows and columns of patches, s the side of a window. Facts `c` of a model:
---   depths, num_heads: the numbers of layers and of heads of each stage
---   embed_dim: the size of the first stage; window_size, mlp_ratio, qkv_bias, hidden_act,
---   layer_norm_eps, hidden_dropout_prob, attention_probs_dropout_prob, drop_path_rate
---   model_type, for errors
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local stages = {}

local hidden_score = -100  -- added to scores of patches that were not neighbours

--- Checks the sizes.
function stages.check(c)
  if #c.depths ~= #c.num_heads then
    fail("%s: depths has %d numbers, num_heads %d", c.model_type, #c.depths, #c.num_heads)
  end
  for i, n_heads in ipairs(c.num_heads) do
    local size = c.embed_dim * 2 ^ (i - 1)
    if size % n_heads ~= 0 then
      fail("%s: stage %d has the size %d, which is not a multiple of its number of heads, %d",
        c.model_type, i, size, n_heads)
    end
  end
end

-- Calls f(layer, size, n_heads, i, n) for each layer: `i` is its number in the stage, `n` its
-- number in the model. Calls merge(stage, size) between stages.
local function each_layer(c, prefix, f, merge)
  local n = 0
  for stage, depth in ipairs(c.depths) do
    local name, size = ("%slayers.%d."):format(prefix, stage - 1), c.embed_dim * 2 ^ (stage - 1)
    for i = 0, depth - 1 do
      f(("%sblocks.%d."):format(name, i), size, c.num_heads[stage], i, n)
      n = n + 1
    end
    if stage < #c.depths then merge(name .. "downsample.", size) end
  end
end

--- Declares the parameters of layers whose names begin with `prefix`; `normal` initialises weights.
function stages.add_parameters(c, prefix, add, normal)
  local function linear(name, n_in, n_out, bias)
    blocks.add_linear(add, name, n_in, n_out, normal, bias)
  end
  each_layer(c, prefix, function(layer, size, n_heads)
    local inner = math.floor(size * c.mlp_ratio)
    blocks.add_layer_norm(add, layer .. "layernorm_before", size)
    add(layer .. "attention.self.relative_position_bias_table",
      { (2 * c.window_size - 1) ^ 2, n_heads }, blocks.zeros)
    for _, part in ipairs { "query", "key", "value" } do
      linear(layer .. "attention.self." .. part, size, size, c.qkv_bias)
    end
    linear(layer .. "attention.output.dense", size, size)
    blocks.add_layer_norm(add, layer .. "layernorm_after", size)
    linear(layer .. "intermediate.dense", size, inner)
    linear(layer .. "output.dense", inner, size)
  end, function(merge, size)
    linear(merge .. "reduction", 4 * size, 2 * size, false)
    blocks.add_layer_norm(add, merge .. "norm", 4 * size)
  end)
end

-- [B, H, W, C] -> [B * windows, s * s, C]
local function to_windows(x, s)
  local batch, height, width, size = unpack(x.shape)
  return x:view { batch, height / s, s, width / s, s, size }:permute { 0, 1, 3, 2, 4, 5 }
    :reshape { -1, s * s, size }
end

-- The inverse: [B * windows, s * s, C] -> [B, H, W, C]
local function from_windows(x, s, height, width)
  local size = x:size(-1)
  return x:view { -1, height / s, width / s, s, s, size }:permute { 0, 1, 3, 2, 4, 5 }
    :reshape { -1, height, width, size }
end

-- The row of the table of biases for each pair of patches of a window [s * s * s * s].
local function places_of(s, device)
  local side = torch.arange(s, { device = device })
  local rows = side:view { -1, 1 }:expand { s, s }:reshape { -1 }
  local columns = side:view { 1, -1 }:expand { s, s }:reshape { -1 }
  local function distance(t) return t:unsqueeze(1) - t:unsqueeze(0) + (s - 1) end
  return (distance(rows) * (2 * s - 1) + distance(columns)):view { -1 }
end

-- The mask of shifted windows [windows, 1, s * s, s * s], which hides patches of other regions.
local function shifted_mask(height, width, s, shift, like)
  local function regions(n)
    local places = torch.arange(n, { device = like.device })
    return places:ge(n - s):long() + places:ge(n - shift):long()
  end
  local region = regions(height):view { 1, -1, 1, 1 } * 3 + regions(width):view { 1, 1, -1, 1 }
  local windows = to_windows(region, s):squeeze(-1)
  local differs = windows:unsqueeze(1):ne(windows:unsqueeze(2)):unsqueeze(1)
  return torch.zeros_like(differs, { dtype = like.dtype }):masked_fill(differs, hidden_score)
end

local function padded(x, multiple)
  local rows, columns = -x:size(1) % multiple, -x:size(2) % multiple
  return rows + columns > 0 and torch.constant_pad_nd(x, { 0, 0, 0, columns, 0, rows }) or x
end

-- Attention of x [B, H, W, C] in windows.
local function attend(c, params, layer, x, n_heads, shift, o)
  local height, width, s = x:size(1), x:size(2), c.window_size
  local name = layer .. "attention.self."
  x = padded(x, s)
  local rows, columns = x:size(1), x:size(2)
  if shift > 0 then x = x:roll({ -shift, -shift }, { 1, 2 }) end
  local windows = to_windows(x, s)
  local function heads(part)
    return blocks.split_heads(blocks.linear(params, name .. part, windows, o), n_heads)
  end
  local bias = params[name .. "relative_position_bias_table"]
    :index_select(0, places_of(s, x.device)):view { s * s, s * s, n_heads }
    :permute { 2, 0, 1 }:unsqueeze(0)
  if shift > 0 then
    local mask = shifted_mask(rows, columns, s, shift, x)
    bias = (bias + mask):tile({ windows:size(0) / mask:size(0), 1, 1, 1 })
  end
  local y = blocks.attention(heads "query", heads "key", heads "value",
    { mask = bias, dropout = c.attention_probs_dropout_prob }, o)
  y = blocks.linear(params, layer .. "attention.output.dense", y, o)
  y = from_windows(blocks.dropout(y, c.attention_probs_dropout_prob, o), s, rows, columns)
  if shift > 0 then y = y:roll({ shift, shift }, { 1, 2 }) end
  return y:narrow(1, 0, height):narrow(2, 0, width)
end

-- Merges each square of four patches into one patch.
local function merged(params, name, x, o)
  x = padded(x, 2)
  local parts = {}
  for column = 0, 1 do
    for row = 0, 1 do
      parts[#parts + 1] = x:slice(1, row, nil, 2):slice(2, column, nil, 2)
    end
  end
  local y = blocks.layer_norm(params, name .. "norm", torch.cat(parts, -1), 1e-5)
  return blocks.linear(params, name .. "reduction", y, o)
end

--- Returns the size of the last stage.
function stages.size(c) return c.embed_dim * 2 ^ (#c.depths - 1) end

--- Returns function(params, x [B, H, W, size], o, keep) -> [B, H, W, size] of the last stage.
--- `keep` is called with the output of each stage, behind the halving.
function stages.new(c, prefix)
  local activation, n_layers = blocks.activation(c.model_type, c.hidden_act), 0
  for _, depth in ipairs(c.depths) do n_layers = n_layers + depth end

  return function(params, x, o, keep)
    local function apply_layer(layer, y, n_heads, i, n)
      local function norm(name, z)
        return blocks.layer_norm(params, layer .. name, z, c.layer_norm_eps)
      end
      local least, s = math.min(y:size(1), y:size(2)), c.window_size
      if least < s then
        fail("%s: a stage has %d patches a side, fewer than window_size, %d: give larger images",
          c.model_type, least, s)
      end
      local shift = i % 2 == 1 and least > s and math.floor(s / 2) or 0
      local seen = attend(c, params, layer, norm("layernorm_before", y), n_heads, shift, o)
      y = y + blocks.drop_path(seen, c.drop_path_rate * n / math.max(n_layers - 1, 1), o)
      local inner = blocks.linear(params, layer .. "intermediate.dense",
        norm("layernorm_after", y), o)
      inner = blocks.linear(params, layer .. "output.dense", activation(inner), o)
      return y + blocks.dropout(inner, c.hidden_dropout_prob, o)
    end
    each_layer(c, prefix, function(layer, _, n_heads, i, n)
      x = nn.block(apply_layer, layer, x, n_heads, i, n)
    end, function(name)
      x = merged(params, name, x, o)
      keep(x)
    end)
    keep(x)
    return x
  end
end

return stages
