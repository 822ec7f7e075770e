--- Tokens of times among those that Whisper writes, as in transformers 4.57: which of them may
--- follow, and the segments that they delimit.
local fail = require "redco.fail"

local timestamps = {}

local function forbid(scores, first, last)
  if last >= first then scores:narrow(-1, first, last - first + 1):fill_(-math.huge) end
end

-- Times do not decrease and come in pairs: the end of a segment and the start of the next one.
local function forbid_by_row(scores, tokens, begin, eos)
  local function is_time(place) return tokens[place] >= begin end
  local n, last_time = #tokens, nil
  for place = n, 1, -1 do
    if is_time(place) then
      last_time = tokens[place]
      break
    end
  end
  local ends_with_time, is_single = is_time(n), n >= 2 and not is_time(n - 1)
  if ends_with_time then
    if is_single then forbid(scores, 0, eos - 1) else forbid(scores, begin, scores:size(0) - 1) end
  end
  if last_time then
    forbid(scores, begin, ends_with_time and is_single and last_time - 1 or last_time)
  end
end

--- Returns a rule of generation: function(scores [rows, vocab_size], ids [rows, length], begin),
--- where ids[:, begin:] are new. `last_first` is the most that the first time may be, or nil.
function timestamps.rule(no_timestamps, eos, last_first)
  local begin = no_timestamps + 1
  return function(scores, ids, n_prompt)
    local vocab_size, n_new = scores:size(1), ids:size(1) - n_prompt
    if begin >= vocab_size then
      fail("model.generate: no_timestamps_token_id is %d, and the vocabulary of %d tokens has no "
        .. "times after it", no_timestamps, vocab_size)
    end
    scores = scores:clone()
    forbid(scores, no_timestamps, no_timestamps)
    if n_new == 0 then
      forbid(scores, 0, begin - 1)
      if last_first then forbid(scores, begin + last_first + 1, vocab_size - 1) end
    else
      for i, tokens in ipairs(ids:narrow(1, n_prompt, n_new):tolist()) do
        forbid_by_row(scores[i - 1], tokens, begin, eos)
      end
    end
    -- The next token is a time if all times together are more probable than any other token.
    local log_probs, texts = scores:float():log_softmax(-1), scores:narrow(1, 0, begin)
    local of_times = log_probs:narrow(1, begin, vocab_size - begin):logsumexp(1)
    local is_time = of_times:gt(log_probs:narrow(1, 0, begin):amax(1))
    texts:masked_fill_(is_time:unsqueeze(1), -math.huge)
    return scores
  end
end

local seconds = 0.02  -- from one token to the next
local frames = 2      -- of features, for each token

--- Splits the tokens of a window into segments {start, end, tokens}, in seconds from `offset`.
--- Returns them, and the number of frames after which the next window begins.
function timestamps.segments(tokens, begin, offset, n_frames)
  local function is_time(place) return (tokens[place] or -1) >= begin end
  local n, cuts, segments = #tokens, {}, {}
  local ends_with_one = is_time(n) and not is_time(n - 1)
  for place = 2, n do
    if is_time(place - 1) and is_time(place) then cuts[#cuts + 1] = place - 1 end
  end
  local function add(first, last, from, to)
    segments[#segments + 1] = { start = offset + from * seconds, ["end"] = offset + to * seconds,
      tokens = { unpack(tokens, first, last) } }
  end
  if #cuts == 0 then
    local last_time = n_frames / frames
    last_time = last_time - last_time % 1
    for place = n, 1, -1 do
      if is_time(place) then
        if tokens[place] ~= begin then last_time = tokens[place] - begin end
        break
      end
    end
    add(1, n, 0, last_time)
    return segments, n_frames
  end
  if ends_with_one then
    cuts[#cuts + 1] = n
  else
    cuts[#cuts] = cuts[#cuts] + 1  -- the last segment has both of its last times
  end
  local first = 1
  for i, last in ipairs(cuts) do
    local ends = i == #cuts and not ends_with_one and last - 1 or last
    add(first, last, tokens[first] - begin, tokens[ends] - begin)
    first = last + 1
  end
  if ends_with_one then return segments, n_frames end
  -- The segment after the last pair is incomplete: the next window begins there.
  local n_done = (tokens[cuts[#cuts] - 1] - begin) * frames
  return segments, n_done > 0 and math.min(n_done, n_frames) or n_frames
end

return timestamps
