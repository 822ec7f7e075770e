--- Masks of attention, to be added to scores: 0 where a token attends, else -inf or the lowest
--- number. Shapes: B batch, T new tokens, S tokens seen so far.
local blocks = require "redco.models.blocks"
local fail = require "redco.fail"
local torch = require "redco.torch"

local masks = {}

-- [B, 1, 1, S]
local function seen_keys(attention_mask)
  return attention_mask:ne(0):unsqueeze(1):unsqueeze(1)
end

local function additive(seen, dtype, hidden)
  return torch.zeros_like(seen, { dtype = dtype }):masked_fill(seen:logical_not(),
    hidden or -math.huge)
end

-- Returns [T, S]: which tokens are not after the new ones, and less than `window` before them.
local function seen_before(length, past, window, device)
  local seen = torch.ones({ length, past + length }, { dtype = "bool", device = device }):tril(past)
  return window and seen:triu(past - window + 1) or seen
end

local function of_segments(inputs, options, x, window)
  local segments, length = inputs.segment_ids, x:size(1)
  if options.cache then fail("segment_ids: a cache does not support rows of several sequences") end
  if not inputs.position_ids then
    fail("segment_ids: position_ids are missing; they must count from 0 in each sequence")
  end
  local same = segments:unsqueeze(-1):eq(segments:unsqueeze(1)):unsqueeze(1)
  return { mask = additive(same:logical_and(seen_before(length, 0, window, x.device)), x.dtype) }
end

--- Returns the causal mask of the new tokens x [B, T, ...]: `{causal = true}` if LibTorch's own
--- mask suffices, else `{mask = [B or 1, 1, T, S]}`. With a `window` a token attends only to so
--- many last tokens, itself among them. Padding before the first token, and with a window all
--- padding, attends to itself, because a row must attend to something. Other padding attends to the
--- tokens, as in transformers. With `segment_ids` [B, T] each sequence of a row attends only to
--- itself.
function masks.causal(inputs, options, x, window)
  if inputs.segment_ids then return of_segments(inputs, options, x, window) end
  local past, padding = blocks.past(options), inputs.attention_mask
  local length, dtype = x:size(1), x.dtype
  if window and past + length <= window then window = nil end
  if not window then
    if not padding and length == 1 then return {} end
    if not padding and past == 0 then return { causal = true } end
    if padding and length == 1 then return { mask = additive(seen_keys(padding), dtype) } end
  end
  local seen = seen_before(length, past, window, x.device)
  if padding then
    local is_lost = (window and padding:eq(0) or padding:ne(0):cumsum(1):eq(0))
      :narrow(1, past, length)
    local itself = seen:triu(past):logical_and(is_lost:unsqueeze(1):unsqueeze(-1))
    seen = seen_keys(padding):logical_and(seen):logical_or(itself)
  end
  return { mask = additive(seen, dtype) }
end

--- Returns a function of a window, or nil, to the causal mask, which makes each once.
function masks.by_window(inputs, options, x)
  local made = {}
  return function(window)
    local key = window or 0
    made[key] = made[key] or masks.causal(inputs, options, x, window)
    return made[key]
  end
end

local lowest = { float16 = -65504, bfloat16 = -0x1.fep127, float32 = -0x1.fffffep127,
  float64 = -0x1.fffffffffffffp1023 }

--- Returns the mask of a sequence with padding: [B, 1, 1, S], or nil. In a row of padding alone all
--- tokens attend to all alike, as in transformers.
function masks.padding(attention_mask, dtype)
  return attention_mask and additive(seen_keys(attention_mask), dtype, lowest[dtype])
end

--- Returns the mask of tokens x [B, T, ...] of which each attends to those at most `distance`
--- before and after it, or nil if it attends to all. Tokens that see only padding attend to all
--- alike, as in transformers.
function masks.near(attention_mask, x, distance)
  local length, device = x:size(1), x.device
  if distance >= length - 1 then return masks.padding(attention_mask, x.dtype) end
  local all = torch.ones({ length, length }, { dtype = "bool", device = device })
  local seen = all:tril(distance):triu(-distance)
  if attention_mask then seen = seen_keys(attention_mask):logical_and(seen) end
  return additive(seen, x.dtype, lowest[x.dtype])
end

return masks
