--- Incremental decoding: scores of the next token, computed with a cache.
local fail = require "redco.fail"
local native = require "redco.native"
local new_cache = require "redco.models.cache"
local captured = require "redco.generation.captured"
local torch = require "redco.torch"

local Decoder = {}
Decoder.__index = Decoder

-- Returns the mask, or nil if it is all ones: attention without a mask is faster.
local function unless_all_ones(mask)
  if mask and not mask:ne(0):all():item() then return mask end
end

-- Returns the mask of the prompt. By default, padding tokens are padding unless they also end a
-- text.
local function mask_of(inputs, o)
  local ids = inputs.input_ids
  if inputs.attention_mask or inputs.encoder_hidden_states or not ids or not o.has_padding
    or ids:to_local().device == "meta" then
    return unless_all_ones(inputs.attention_mask)
  end
  for _, token in ipairs(o.eos) do
    if token == o.pad_token_id then return end
  end
  return unless_all_ones(ids:ne(o.pad_token_id):to "int64")
end

-- Moves padding from the right of rows to the left, so that new tokens follow the last token.
local function padded_on_the_left(ids, mask)
  local length, shift = ids:size(1), mask:ne(0):flip { 1 }:to "int64":argmax(1, { keepdim = true })
  local places = torch.arange(length, { device = ids.device }):unsqueeze(0):sub(shift)
    :remainder(length)
  return ids:gather(1, places), mask:gather(1, places)
end

-- Returns decoder inputs that begin with the start token. It is prepended if no row begins with it.
local function with_start(inputs, start)
  local ids, mask = inputs.decoder_input_ids, inputs.decoder_attention_mask
  if ids:to_local().device == "meta" or ids:select(1, 0):eq(start):any():item() then
    return ids, mask
  end
  ids = torch.cat({ torch.full_like(ids:narrow(1, 0, 1), start), ids }, 1)
  return ids, mask and torch.cat({ torch.ones_like(mask:narrow(1, 0, 1)), mask }, 1)
end

-- Returns what the encoder reads of the inputs.
local function encoder_inputs(family, inputs, mask)
  local found = {}
  for _, name in ipairs(family.inputs) do
    if not name:find "^decoder_" and name ~= "encoder_hidden_states" then
      found[name] = inputs[name]
    end
  end
  -- A given mask counts even if it is all ones: without one, some encoders look for padding.
  found.attention_mask = inputs.attention_mask or mask
  return found
end

--- Returns a decoder of `inputs`; `ids` are its first tokens. A family's prompt_inputs are the
--- names of what it reads beside these.
local function new_decoder(model, params, inputs, o)
  local family = model.family
  local self = setmetatable({
    model = model, params = params, is_static = o.cache_implementation == "static",
    restart_length = family.restart_length and family.restart_length(model.config),
    prompt_inputs = {},
  }, Decoder)
  for _, name in ipairs(family.prompt_inputs or {}) do self.prompt_inputs[name] = inputs[name] end
  if model.is_encoder_decoder then
    local start = o.decoder_start_token_id
      or fail "model.generate: decoder_start_token_id and bos_token_id are missing"
    self.memory_mask = mask_of(inputs, o)
    self.memory = inputs.encoder_hidden_states
      or model.encode(params, encoder_inputs(family, inputs, self.memory_mask))
    if inputs.decoder_input_ids then
      self.ids, self.mask = inputs.decoder_input_ids, inputs.decoder_attention_mask
      if not family.generate then self.ids, self.mask = with_start(inputs, start) end
      self.mask = unless_all_ones(self.mask)
    else
      self.ids = torch.full_like(self.memory:select(-1, 0):narrow(1, 0, 1), start,
        { dtype = "int64" })
    end
  else
    self.ids, self.mask = inputs.input_ids, mask_of(inputs, o)
    if self.mask then self.ids, self.mask = padded_on_the_left(self.ids, self.mask) end
  end
  self.prompt = not model.is_encoder_decoder and self.ids or inputs.input_ids
  return self
end

-- Some families compute a text anew when it becomes longer than `restart_length`, because its
-- positions change then. Returns all tokens in this case, else the new ones. The cache also holds
-- the tokens, so that it reorders them.
function Decoder:unless_restarted(ids)
  local limit = self.restart_length
  if not limit then return ids end
  local rows, n, past = ids:size(0), ids:size(1), self.cache.length
  local new = ids:view { rows, 1, n, 1 }
  local all = self.cache:extend("input_ids", new, new)
  if past == 0 or past > limit or past + n <= limit then return ids end
  self.cache = new_cache(self.cache.capacity)
  self.cache:extend("input_ids", all, all)
  return all:reshape { rows, past + n }
end

-- Appends the tokens `ids` and returns the scores [rows, vocab_size] of the next token.
function Decoder:scores(ids)
  ids = self:unless_restarted(ids)
  local mask = self.mask
  if mask and not self.cache.place then
    mask = mask:narrow(1, 0, self.cache.length + ids:size(1))
  end
  local inputs = self.memory
    and { decoder_input_ids = ids, decoder_attention_mask = mask,
      encoder_hidden_states = self.memory, attention_mask = self.memory_mask }
    or { input_ids = ids, attention_mask = mask }
  if self.cache.length == 0 then
    for name, value in pairs(self.prompt_inputs) do inputs[name] = value end
  end
  local hidden = self.model.hidden_states(self.params, inputs, { cache = self.cache })
  -- A slice, because of split positions it sends the last one alone.
  local last = hidden:narrow(1, -1, 1):squeeze(1)
  return native.from_stage(self.model.logits(self.params, last):float())
end

-- Makes steps alike: see Cache:fix. One GPU captures the second step and replays it, so that the
-- host does not call its operators again.
function Decoder:fix()
  if self.restart_length then
    fail("model.generate: cache_implementation = \"static\": positions of this model depend on "
      .. "the length of the text: leave the option out")
  end
  self.cache:fix(self.ids.device)
  self.new_ids = torch.zeros_like(self.ids:narrow(1, 0, 1))
  self.next_scores = captured(self.params, self.new_ids, function()
    return self:scores(self.new_ids)
  end)
end

-- Raises an error unless the cache can have the first tokens of the prompt.
local function check_cache(self, cache)
  local rows, n = self.ids:size(0), self.ids:size(1)
  if self.memory or self.mask or rows > 1 or self.restart_length then
    fail("model.generate: cache: expected a decoder and one row without padding%s",
      self.restart_length and "; positions of this model depend on the length of the text" or "")
  end
  if cache.length >= n then
    fail("model.generate: the cache has %d tokens, and input_ids only %d", cache.length, n)
  end
end

--- Returns the scores after the prompt. Reserves room for max_length tokens. `cache`, if given,
--- already holds the first tokens of the prompt.
function Decoder:start(max_length, cache)
  if cache then check_cache(self, cache) end
  self.cache = cache or new_cache(max_length)
  if self.mask then
    local new = max_length - self.mask:size(1)
    self.mask = torch.constant_pad_nd(self.mask, { 0, new }, 1)
  end
  local past = self.cache.length
  return self:scores(past > 0 and self.ids:narrow(1, past, self.ids:size(1) - past) or self.ids)
end

--- Appends one token to each row and returns the next scores. `tokens` [rows] must be the same on
--- all processes.
function Decoder:step(tokens)
  native.check_stop()
  tokens = tokens:unsqueeze(1)
  if not self.is_static then
    return self:scores(torch.empty_like(self.ids:narrow(1, 0, 1)):copy_(tokens))
  end
  if not self.next_scores then self:fix() end
  self.new_ids:copy_(tokens)
  return self.next_scores()
end

--- Repeats each row n times, adjacent; `scores` are the current scores.
function Decoder:expand(n, scores)
  local function times(t) return t and t:repeat_interleave(n, 0) end
  self.ids, self.mask = times(self.ids), times(self.mask)
  self.memory, self.memory_mask = times(self.memory), times(self.memory_mask)
  self.cache:map(function(t)
    -- A copy, because each write to a gathered view would gather its base again.
    return t:is_sharded() and times(t):clone() or times(t)
  end)
  return times(scores)
end

return new_decoder
