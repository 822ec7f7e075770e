--- Masks of attention, to be added to scores: 0 where a token attends, else -inf or the lowest
--- number. Shapes: B batch, T new tokens, S tokens seen so far.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local native = require "redco.native"
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

-- Returns [B, 1, T, S], or nil: which tokens are of the same image as the new ones.
local function seen_in_images(inputs, past)
  local spans = inputs.image_spans
  if not spans then return end
  local seen = spans:unsqueeze(-1):eq(spans:unsqueeze(1)):logical_and(spans:ge(0):unsqueeze(-1))
  return torch.constant_pad_nd(seen:unsqueeze(1), { past, 0 }, 0)
end

-- Returns which tokens the new ones see, [T, S], or with images [B, 1, T, S]: none after them,
-- unless of the same image, and none that are `window` or more tokens before them.
local function seen_before(inputs, length, past, window, device)
  local all = torch.ones({ length, past + length }, { dtype = "bool", device = device })
  local seen, of_images = all:tril(past), seen_in_images(inputs, past)
  if of_images then seen = seen:logical_or(of_images) end
  if not window then return seen end
  return of_images and seen:logical_and(all:triu(past - window + 1))
    or seen:triu(past - window + 1)
end

local function check_positions(inputs)
  if not inputs.position_ids then
    fail("segment_ids: position_ids are missing; they must count from 0 in each sequence")
  end
end

-- Returns [B, 1, T, T]: which tokens are of the same sequence and no padding. A token sees itself.
local function seen_in_segments(inputs)
  local segments, mask = inputs.segment_ids, inputs.attention_mask
  check_positions(inputs)
  local seen = segments:unsqueeze(-1):eq(segments:unsqueeze(1)):unsqueeze(1)
  if not mask then return seen end
  local length = segments:size(1)
  local itself = torch.eye(length, { device = segments.device }):ne(0)
  return seen:logical_and(seen_keys(mask)):logical_or(itself)
end

-- Returns [B or 1, 1, T, S]: which tokens are in the same chunk of `chunk` tokens as the new ones.
-- The first chunk begins behind padding on the left, or with each sequence of a row.
local function seen_in_chunks(inputs, chunk, length, past, device)
  local places, padding = inputs.segment_ids and inputs.position_ids, inputs.attention_mask
  if not places then
    places = torch.arange(past + length, { device = device }):unsqueeze(0)
    if padding then places = places - padding:ne(0):cumsum(1):eq(0):sum({ 1 }, true) end
  end
  local numbers = places:div(chunk, { rounding_mode = "floor" })
  return numbers:narrow(1, past, length):unsqueeze(-1):eq(numbers:unsqueeze(1)):unsqueeze(1)
end

-- Whether nn.attention needs no mask for segments and windows of the tokens x.
local function has_no_mask(inputs, options, x, given)
  local dropout = given.plain_dropout
  return dropout and not (options.train and dropout > 0) and not given.chunk
    and not inputs.attention_mask and not inputs.image_spans and native.has_segment_attention(x)
end

local function causal_in_segments(inputs, options, x, given)
  local window, chunk = given.window, given.chunk
  if options.cache then fail("segment_ids: a cache does not support rows of several sequences") end
  local length = x:size(1)
  if has_no_mask(inputs, options, x, given) then
    check_positions(inputs)
    return { causal = true, segment_ids = inputs.segment_ids, window = window }
  end
  local seen = seen_in_segments(inputs)
    :logical_and(seen_before(inputs, length, 0, window, x.device))
  if chunk then seen = seen:logical_and(seen_in_chunks(inputs, chunk, length, 0, x.device)) end
  return { mask = additive(seen, x.dtype) }
end

-- The mask [B or 1, 1, 1, S] of one token at a place that a tensor holds, in a cache of S tokens.
-- Padding is on the left, and no new token is padding.
local function at_place(inputs, cache, x, window, chunk)
  local place, padding = cache.place, inputs.attention_mask
  local all = torch.arange(cache.capacity, { device = x.device }):unsqueeze(0)
  local seen = all:le(place)
  if window then seen = seen:logical_and(all:gt(place - window)) end
  if chunk then
    local first = padding and padding:eq(0):sum({ 1 }, true) or 0
    local function number(places)
      return (places - first):div(chunk, { rounding_mode = "floor" })
    end
    seen = seen:logical_and(number(all):eq(number(place)))
  end
  if padding then seen = seen:logical_and(padding:ne(0)) end
  return { mask = additive(seen:unsqueeze(1):unsqueeze(1), x.dtype) }
end

--- Returns the causal mask of the new tokens x [B, T, ...]: `{causal = true}` if LibTorch's own
--- mask suffices, else `{mask = [B or 1, 1, T, S]}`. `given` has, or not, a `window`: a token
--- attends only to so many last tokens, itself among them; a `chunk`: only to those of its chunk of
--- so many; `plain_dropout`: the dropout of attention that has neither soft cap, sinks nor bias.
--- Without dropout such attention needs no mask for segments and windows: `{causal = true,
--- segment_ids = [B, T] or nil, window = a number or nil}`.
--- Padding that would attend to nothing attends to itself. Other padding attends to the tokens, as
--- in transformers.
--- With `segment_ids` [B, T] each sequence of a row attends only to itself, with image_spans [B, T]
--- the tokens of an image (the same number, from 0) also to those after them.
function masks.causal(inputs, options, x, given)
  given = given or {}
  if inputs.segment_ids then return causal_in_segments(inputs, options, x, given) end
  local window, chunk = given.window, given.chunk
  if blocks.place(options) then return at_place(inputs, options.cache, x, window, chunk) end
  local past, padding = blocks.past(options), inputs.attention_mask
  local length, dtype = x:size(1), x.dtype
  if window and past + length <= window then window = nil end
  if chunk and past + length <= chunk then chunk = nil end
  local is_near = window or chunk
  if not is_near and not inputs.image_spans then
    if not padding and length == 1 then return {} end
    if not padding and past == 0 then return { causal = true } end
    if padding and length == 1 then return { mask = additive(seen_keys(padding), dtype) } end
  end
  if window and past == 0 and has_no_mask(inputs, options, x, given) then
    return { causal = true, window = window }
  end
  local seen = seen_before(inputs, length, past, window, x.device)
  if chunk then seen = seen:logical_and(seen_in_chunks(inputs, chunk, length, past, x.device)) end
  if padding then
    seen = seen_keys(padding):logical_and(seen)
    local is_lost = is_near and seen:any(-1, true):logical_not()
      or padding:ne(0):cumsum(1):eq(0):narrow(1, past, length):unsqueeze(1):unsqueeze(-1)
    local itself = torch.ones({ length, past + length }, { dtype = "bool", device = x.device })
      :tril(past):triu(past):logical_and(is_lost)
    seen = seen:logical_or(itself)
  end
  return { mask = additive(seen, dtype) }
end

--- Returns the factors of the new tokens x [B, T, ...] that keep padding out of a state: [B, T, 1],
--- or nil without padding.
function masks.kept(inputs, options, x)
  local padding = inputs.attention_mask
  if not padding then return end
  if blocks.place(options) then return end  -- a new token is no padding
  return padding:narrow(1, blocks.past(options), x:size(1)):ne(0):to(x.dtype):unsqueeze(-1)
end

local lowest = { float16 = -65504, bfloat16 = -0x1.fep127, float32 = -0x1.fffffep127,
  float64 = -0x1.fffffffffffffp1023 }

--- Returns the mask of what is `seen`, a tensor of booleans. A token that sees nothing attends to
--- all alike.
function masks.additive(seen, dtype) return additive(seen, dtype, lowest[dtype]) end

--- Returns the mask of a sequence with padding: [B, 1, 1, S], or nil. In a row of padding alone all
--- tokens attend to all alike, as in transformers.
function masks.padding(attention_mask, dtype)
  return attention_mask and masks.additive(seen_keys(attention_mask), dtype)
end

--- Returns the mask of tokens x [B, T, ...] that attend to both sides, by attention_mask and
--- segment_ids of the inputs: [B, 1, 1 or T, T], or nil. With a `distance`, or nil, a token attends
--- to those at most so far before and after it. A token that sees only padding attends to all
--- alike, as in transformers.
function masks.both_sides(inputs, x, distance)
  local length, padding, seen = x:size(1), inputs.attention_mask, nil
  if distance and distance < length - 1 then
    local all = torch.ones({ length, length }, { dtype = "bool", device = x.device })
    seen = all:tril(distance):triu(-distance)
  end
  local kept = inputs.segment_ids and seen_in_segments(inputs) or padding and seen_keys(padding)
  if seen and kept then seen = kept:logical_and(seen) else seen = seen or kept end
  return seen and masks.additive(seen, x.dtype)
end

--- Returns a function of a window and a chunk, each a number or nil, to the mask, which makes each
--- once. It is causal, with `plain_dropout` as there, unless `given` has `reach`, a function of a
--- window to the distance at which tokens of both sides are seen.
function masks.by_window(inputs, options, x, given)
  given = given or {}
  local reach = given.reach
  if reach and options.cache then
    fail("a decoder whose tokens attend to both sides generates no text")
  end
  local function made_of(window, chunk)
    if not reach then
      return masks.causal(inputs, options, x,
        { window = window, chunk = chunk, plain_dropout = given.plain_dropout })
    end
    return { mask = masks.both_sides(inputs, x, window and reach(window)) }
  end
  local made = {}
  return function(window, chunk)
    local key = ("%s %s"):format(window, chunk)
    made[key] = made[key] or made_of(window, chunk)
    return made[key]
  end
end

return masks
