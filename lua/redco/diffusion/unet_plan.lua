--- The blocks of a UNet in the order of their computation, from its configuration.
local config = require "redco.diffusion.config"
local fail = require "redco.fail"

local has_attention = {
  CrossAttnDownBlock2D = true, DownBlock2D = false, CrossAttnUpBlock2D = true, UpBlock2D = false,
  UNetMidBlock2DCrossAttn = true, UNetMidBlock2D = false,
}

local expected = {
  down_block_types = { CrossAttnDownBlock2D = true, DownBlock2D = true },
  up_block_types = { CrossAttnUpBlock2D = true, UpBlock2D = true },
}

local function check_types(c, key, n, where)
  if #c[key] ~= n then
    fail("%s: %s has %d entries, expected one for each of the %d block_out_channels", where, key,
      #c[key], n)
  end
  for _, name in ipairs(c[key]) do
    if not expected[key][name] then
      local kind = key == "down_block_types" and "Down" or "Up"
      fail("%s: %s has '%s', which is not supported, only CrossAttn%sBlock2D and %sBlock2D", where,
        key, name, kind, kind)
    end
  end
end

-- Returns the facts of the transformers of a block of this type, which has `size` channels.
local function attention_of(c, each, i, size, block_type, where)
  local heads = each.attention_head_dim[i]
  if has_attention[block_type] and size % heads ~= 0 then
    fail("%s: block_out_channels has %d, which is not a multiple of attention_head_dim (%d), the "
      .. "number of heads", where, size, heads)
  end
  return { heads = heads, groups = c.norm_num_groups, n_text = each.cross_attention_dim[i],
    n_layers = each.transformer_layers_per_block[i], is_linear = c.use_linear_projection }
end

local function down_blocks(c, each, where, add)
  local sizes, n = c.block_out_channels, #c.block_out_channels
  local before = sizes[1]
  for i = 1, n do
    local resnets = {}
    for j = 1, each.layers_per_block[i] do
      resnets[j] = { j == 1 and before or sizes[i], sizes[i] }
    end
    local attention = attention_of(c, each, i, sizes[i], c.down_block_types[i], where)
    attention.sees_text_only = each.only_cross_attention[i]
    add { name = ("down_blocks.%d"):format(i - 1), is_down = true, size = sizes[i],
      resnets = resnets, attention = attention,
      n_attentions = has_attention[c.down_block_types[i]] and #resnets or 0,
      sampler = i < n and ".downsamplers.0.conv" or nil }
    before = sizes[i]
  end
end

-- Each up block takes one skip connection for each of its resnets.
local function up_blocks(c, each, where, add)
  local sizes, n = c.block_out_channels, #c.block_out_channels
  local before = sizes[n]
  for k = 1, n do
    local i = n + 1 - k  -- the matching down block
    local resnets, count = {}, each.layers_per_block[i] + 1
    for j = 1, count do
      local skip = j == count and sizes[math.max(i - 1, 1)] or sizes[i]
      resnets[j] = { (j == 1 and before or sizes[i]) + skip, sizes[i] }
    end
    local attention = attention_of(c, each, i, sizes[i], c.up_block_types[k], where)
    attention.sees_text_only = each.only_cross_attention[i]
    add { name = ("up_blocks.%d"):format(k - 1), is_up = true, size = sizes[i], resnets = resnets,
      attention = attention,
      n_attentions = has_attention[c.up_block_types[k]] and count or 0,
      sampler = k < n and ".upsamplers.0.conv" or nil }
    before = sizes[i]
  end
end

--- Returns {blocks = list}. A block: name, is_down, is_up, size (its channels), resnets (list of
--- {channels before, after}), n_attentions, attention (facts of a transformer), sampler (the
--- rest of its name, or nil).
return function(c, where)
  local n, plan = #c.block_out_channels, { blocks = {} }
  local function add(block) plan.blocks[#plan.blocks + 1] = block end
  check_types(c, "down_block_types", n, where)
  check_types(c, "up_block_types", n, where)
  if has_attention[c.mid_block_type] == nil or not c.mid_block_type:find "Mid" then
    fail("%s: mid_block_type = '%s' is not supported, only UNetMidBlock2DCrossAttn and "
      .. "UNetMidBlock2D", where, c.mid_block_type)
  end
  config.check_multiples(where, "block_out_channels", c.block_out_channels, "norm_num_groups",
    c.norm_num_groups)
  local each = {}
  for _, key in ipairs { "attention_head_dim", "cross_attention_dim", "layers_per_block",
    "only_cross_attention", "transformer_layers_per_block" } do
    each[key] = config.each(c, key, n, where)
  end

  down_blocks(c, each, where, add)
  local size, has = c.block_out_channels[n], has_attention[c.mid_block_type]
  add { name = "mid_block", size = size,
    attention = attention_of(c, each, n, size, c.mid_block_type, where),
    resnets = has and { { size, size }, { size, size } } or { { size, size } },
    n_attentions = has and 1 or 0 }
  up_blocks(c, each, where, add)
  return plan
end
