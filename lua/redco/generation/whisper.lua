--- Generation with Whisper, as in transformers 4.57: the prompt of language and task, times, and
--- sound of any length, window after window.
local fail = require "redco.fail"
local generation_options = require "redco.generation.options"
local prompt_of = require "redco.generation.whisper_prompt"
local timestamps = require "redco.generation.whisper_timestamps"
local torch = require "redco.torch"

-- Options that only Whisper has, in the call or in the model's files.
local own = { "forced_decoder_ids", "is_multilingual", "lang_to_id", "language",
  "max_initial_timestamp_index", "no_timestamps_token_id", "return_timestamps", "task",
  "task_to_id" }

-- Options of transformers' Whisper that do not exist here, in the call or in a file. `false` has no
-- effect.
local unsupported = { "compression_ratio_threshold", "condition_on_prev_tokens",
  "force_unique_generate_call", "logprob_threshold", "no_speech_threshold", "num_segment_frames",
  "prompt_condition_type", "prompt_ids", "return_token_timestamps" }

-- Returns the options of the call without those of Whisper, and those of Whisper.
local function split(model, given)
  local rest, found, file = {}, {}, model.generation_config or model.config
  for _, name in ipairs(unsupported) do
    local value = given[name]
    if value == nil then value = file[name] end
    if value then fail("model.generate: %s is not supported", name) end
  end
  if type(given.temperature) == "table" then
    fail("model.generate: a list of temperatures, to be tried in turn, is not supported: give one")
  end
  for name, value in pairs(given) do rest[name] = value end
  for _, name in ipairs(unsupported) do rest[name] = nil end
  for _, name in ipairs(own) do
    found[name], rest[name] = given[name], nil
    if found[name] == nil then found[name] = file[name] end
  end
  found.is_task_given, found.is_language_given = given.task ~= nil, given.language ~= nil
  -- A temperature turns sampling on; 0 turns it off.
  if given.temperature == 0 then
    rest.temperature, rest.do_sample = nil, false
  elseif given.temperature and given.do_sample == nil then
    rest.do_sample = true
  end
  rest.rng = given.rng or (given.seed and torch.Generator(given.seed))
  return rest, found
end

-- Returns `width` frames of each row from seeks[i] on, with 0 after the end limits[i] of the sound.
local function window_of(features, seeks, limits, width)
  local missing = width - features:size(2)
  if missing > 0 then features = torch.constant_pad_nd(features, { 0, missing }, 0) end
  local like = features:narrow(1, 0, 1):narrow(2, 0, width)
  local places = torch.arange(width):unsqueeze(0) + torch.tensor(seeks):unsqueeze(1)
  local is_sound = places:lt(torch.tensor(limits):unsqueeze(1))
  places = places:masked_fill(is_sound:logical_not(), 0):to "int64":unsqueeze(1)
  local index = torch.empty_like(like, { dtype = "int64" }):copy_(places)
  local kept = torch.empty_like(like):copy_(is_sound:unsqueeze(1))
  return features:gather(2, index:expand { -1, features:size(1), -1 }) * kept
end

-- Returns the tokens as a list, without padding and the end token. If several tokens may end a
-- text, the end token stays.
local function without_end(tokens, o)
  local n, pad, n_pads = #tokens, o.pad_token_id, 0
  local function is_end(token) return #o.eos == 1 and token == o.eos[1] end
  if tokens[n] == pad then
    for _, token in ipairs(tokens) do n_pads = n_pads + (token == pad and 1 or 0) end
    n = n - n_pads + (is_end(pad) and 1 or 0)
  end
  if is_end(tokens[n]) then n = n - 1 end
  return { unpack(tokens, 1, n) }
end

-- Returns the number of frames of each row.
local function lengths_of(features, mask, is_short)
  local batch, n_frames = features:size(0), features:size(2)
  local lengths = {}
  for i = 1, batch do lengths[i] = n_frames end
  if is_short or batch == 1 then return lengths end
  if not mask then
    fail("model.generate: several rows of more than one window need inputs.attention_mask, the "
      .. "second result of redco.data.feature_extractor")
  end
  return mask:full():cpu():ne(0):sum(1):tolist()
end

local function joined(rows, pad)
  local longest, flat = 0, {}
  for i, segments in ipairs(rows) do
    flat[i] = {}
    for _, segment in ipairs(segments) do
      for _, token in ipairs(segment.tokens) do table.insert(flat[i], token) end
    end
    longest = math.max(longest, #flat[i])
  end
  for _, row in ipairs(flat) do
    for place = #row + 1, longest do row[place] = pad end
  end
  if longest == 0 then return torch.zeros({ #rows, 0 }, { dtype = "int64" }) end
  return torch.tensor(flat, { dtype = "int64" })
end

local function check_lengths(model, o, n_prompt)
  local most = model.config.max_target_positions
  if o.max_new_tokens and n_prompt + o.max_new_tokens > most then
    fail("model.generate: a prompt of %d tokens and max_new_tokens = %d are more than the model's "
      .. "max_target_positions, %d", n_prompt, o.max_new_tokens, most)
  end
end

-- Returns the most probable of the tokens after the start token, for each row.
local function detect(model, params, memory, start, tokens)
  local ids = torch.full_like(memory:select(-1, 0):narrow(1, 0, 1), start, { dtype = "int64" })
  local logits = model(params, { decoder_input_ids = ids, encoder_hidden_states = memory })
  table.sort(tokens)
  local allowed = torch.tensor(tokens, { dtype = "int64" })
  local best = logits:select(1, 0):float():full():cpu():index_select(1, allowed):argmax(1)
  return allowed:index_select(0, best):tolist()
end

-- Completes found.return_timestamps, and returns the rule of generation with times, or nil.
local function rule_of(o, found, is_short)
  if not is_short and found.return_timestamps == false then
    fail("model.generate: sound of more than one window needs times: leave out return_timestamps")
  end
  found.return_timestamps = found.return_timestamps or not is_short
  if not found.return_timestamps then return nil end
  local none = found.no_timestamps_token_id
    or fail("model.generate: times need no_timestamps_token_id, which generation_config.json lacks")
  return timestamps.rule(none, o.eos[1] or none, found.max_initial_timestamp_index)
end

--- Returns the tokens of each row, without the prompt and the end token and padded on the right,
--- and the segments of each row, lists of {start, end, tokens}. `plain` is the generation of any
--- model; with inputs.decoder_input_ids it does all.
return function(plain, model, params, inputs, options)
  local rest, found = split(model, options or {})
  if inputs.decoder_input_ids or not inputs.input_features then
    return plain(model, params, inputs, rest)
  end
  local features, width = inputs.input_features, 2 * model.config.max_source_positions
  local o = generation_options.read(model, rest)
  found.decoder_start_token_id = o.decoder_start_token_id
  local mask = inputs.attention_mask
  if o.num_return_sequences > 1 then
    features = features:repeat_interleave(o.num_return_sequences, 0)
    mask = mask and mask:repeat_interleave(o.num_return_sequences, 0)
    rest.num_return_sequences = 1
  end
  local batch, is_short = features:size(0), features:size(2) <= width
  local rule, limits = rule_of(o, found, is_short), lengths_of(features, mask, is_short)
  local begin = (found.no_timestamps_token_id or model.config.vocab_size) + 1
  local seeks, rows, prompt = {}, {}, nil
  for i = 1, batch do seeks[i], rows[i] = 0, {} end

  local function is_open(i) return seeks[i] < limits[i] end

  -- Returns nothing, except in a meta pass, where tokens have no values.
  local function next_window()
    local window = window_of(features, seeks, limits, width)
    local memory = model.encode(params, { input_features = window })
    if memory:to_local().device == "meta" then
      return plain(model, params, { encoder_hidden_states = memory }, rest)
    end
    prompt = prompt or torch.tensor(prompt_of(found, batch, function(tokens)
      return detect(model, params, memory, o.decoder_start_token_id, tokens)
    end), { dtype = "int64" })
    local n_prompt = prompt:size(1)
    check_lengths(model, o, n_prompt)
    local ids = torch.empty_like(window:select(1, 0):narrow(1, 0, n_prompt), { dtype = "int64" })
    local tokens = plain(model, params, { encoder_hidden_states = memory,
      decoder_input_ids = ids:copy_(prompt) }, rest, rule)
    tokens = tokens:narrow(1, n_prompt, tokens:size(1) - n_prompt):tolist()
    for i, row in ipairs(tokens) do
      if is_open(i) then
        local segments, n_frames = timestamps.segments(without_end(row, o), begin,
          seeks[i] * 0.01, math.min(limits[i] - seeks[i], width))
        for _, segment in ipairs(segments) do table.insert(rows[i], segment) end
        seeks[i] = seeks[i] + n_frames
      end
    end
  end

  local function any_open()
    for i = 1, batch do
      if is_open(i) then return true end
    end
    return false
  end

  while any_open() do
    local of_meta_pass = next_window()
    if of_meta_pass then return of_meta_pass end
  end
  return joined(rows, o.pad_token_id), rows
end
