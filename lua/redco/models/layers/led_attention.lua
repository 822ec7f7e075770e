--- Attention of LED's encoder, which is Longformer's (Beltagy et al., 2020): a token attends to
--- those at most half a window away and to all global tokens, which attend to all by other weights.
--- global_attention_mask [B, T] says which they are. Shapes: B rows of T tokens, of which at most G
--- are global.
local blocks = require "redco.models.layers.blocks"
local masks = require "redco.models.layers.masks"
local near_blocks = require "redco.models.layers.near_blocks"
local torch = require "redco.torch"

local parts = { q = "query", k = "key", v = "value" }

-- Returns which tokens are global [B, T], and the place of each as a one-hot row [B, G, T], or nil
-- if there are none. The search for a layout has tensors without values.
local function globals_of(given, kept, dtype)
  if not given then return end
  local is_global = given:ne(0):logical_and(kept)
  local is_planned = given:to_local().device == "meta"
  local n = is_planned and 1 or is_global:sum({ 1 }):amax():item()
  if n == 0 then return end
  local ranks = torch.arange(1, n + 1, { device = given.device }):unsqueeze(1)
  local places = is_global:to "int64":cumsum(1):unsqueeze(1):eq(ranks)
    :logical_and(is_global:unsqueeze(1))
  return is_global, places:to(dtype)
end

--- Returns an object with add_parameters(name, add, init), mask(inputs, dtype), what all layers
--- read, and attend(params, name, window, x, mask, o).
return function(c)
  local n_heads, layer = c.encoder_attention_heads, {}

  function layer.add_parameters(name, add, init)
    for _, kind in ipairs { "", "_global" } do
      for _, part in ipairs { "query", "key", "value" } do
        blocks.add_linear(add, name .. ".longformer_self_attn." .. part .. kind, c.d_model,
          c.d_model, init)
      end
    end
    blocks.add_linear(add, name .. ".output", c.d_model, c.d_model, init)
  end

  function layer.mask(inputs, dtype)
    local kept = inputs.attention_mask or torch.ones_like(inputs.input_ids)
    kept = kept:ne(0)
    local is_global, places = globals_of(inputs.global_attention_mask, kept, dtype)
    local keys = is_global and kept:logical_and(is_global:logical_not()) or kept
    local made = {}

    -- Returns the mask of blocks of this length.
    local function of_blocks(length)
      if made[length] then return made[length] end
      local seen = near_blocks.seen(kept, keys, length)
      if places then
        local is_there = places:ne(0):any(-1):unsqueeze(1):unsqueeze(1)
        seen = torch.cat({ seen, is_there:expand { -1, seen:size(1), length, -1 } }, -1)
      end
      made[length] = near_blocks.additive(seen, dtype):unsqueeze(2):flatten(0, 1):contiguous()
      return made[length]
    end

    return { of_blocks = of_blocks, is_global = is_global, places = places,
      padding = masks.padding(inputs.attention_mask, dtype) }
  end

  function layer.attend(params, name, window, x, mask, o)
    local own = name .. ".longformer_self_attn."
    local function project(part, z) return blocks.linear(params, own .. parts[part], z, o) end
    local length, places = window / 2 + 1, mask.places
    local found = places and places:matmul(x)
    local y = near_blocks.attention(x, found, length, n_heads, project,
      { mask = mask.of_blocks(length), dropout = c.attention_dropout }, o)
    if places then
      local function heads(part, z)
        return blocks.split_heads(blocks.linear(params, own .. part .. "_global", z, o), n_heads)
      end
      local z = blocks.attention(heads("query", found), heads("key", x), heads("value", x),
        { mask = mask.padding, dropout = c.attention_dropout }, o)
      y = torch.where(mask.is_global:unsqueeze(-1), places:transpose(1, 2):matmul(z), y)
    end
    return blocks.linear(params, name .. ".output", y, o)
  end

  return layer
end
