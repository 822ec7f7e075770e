--- The options of `model.generate`: from the call, else from the model's files, else the defaults
--- below. Names and meanings are those of transformers 4.57.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local ties = require "redco.models.ties"

local function is_count(v) return type(v) == "number" and v >= 0 and v % 1 == 0 end
local function is_share(v) return type(v) == "number" and v >= 0 and v <= 1 end
local function is_positive(v) return type(v) == "number" and v > 0 and v < math.huge end

local function is_list(v, is_entry)
  if type(v) ~= "table" then return false end
  for _, entry in ipairs(v) do
    if not is_entry(entry) then return false end
  end
  return true
end

local function is_tokens(v) return is_list(v, is_count) and #v > 0 end

-- Kinds of values: a description and a predicate.
local count = { "a whole number from 0 on", is_count }
local from_one = { "a whole number of at least 1", function(v) return is_count(v) and v >= 1 end }
local share = { "a number from 0 to 1", is_share }
local positive = { "a number greater than 0", is_positive }
local boolean = { "true or false", function(v) return type(v) == "boolean" end }
local number = { "a number", function(v) return type(v) == "number" end }
local token = { "a token, a whole number", function(v)
  return type(v) == "number" and v % 1 == 0
end }
local some_tokens = { "a token or a list of tokens", function(v)
  return token[2](v) or is_list(v, token[2])
end }
local tokens = { "a list of tokens", function(v) return is_list(v, token[2]) end }
local anything = { "", function() return true end }

-- Name, kind, and default if there is one.
local options = {
  max_length = { from_one },
  max_new_tokens = { from_one },
  min_length = { count, 0 },
  min_new_tokens = { count },
  do_sample = { boolean, false },
  temperature = { positive, 1 },
  top_k = { { "a whole number; 0 keeps all tokens", is_count }, 50 },
  top_p = { share, 1 },
  min_p = { share },
  typical_p = { { "a number greater than 0, at most 1", function(v)
    return is_share(v) and v > 0
  end }, 1 },
  epsilon_cutoff = { share, 0 },
  eta_cutoff = { share, 0 },
  repetition_penalty = { positive, 1 },
  frequency_penalty = { number, 0 },  -- this and the next are OpenAI's
  presence_penalty = { number, 0 },
  encoder_repetition_penalty = { positive, 1 },
  no_repeat_ngram_size = { count, 0 },
  encoder_no_repeat_ngram_size = { count, 0 },
  sequence_bias = { { "a list of {tokens, bias}", function(v)
    return is_list(v, function(entry)
      return type(entry) == "table" and is_tokens(entry[1]) and type(entry[2]) == "number"
    end) and #v > 0
  end } },
  bad_words_ids = { { "a list of lists of tokens", function(v)
    return is_list(v, is_tokens) and #v > 0
  end } },
  suppress_tokens = { tokens },
  begin_suppress_tokens = { tokens },
  remove_invalid_values = { boolean, false },
  renormalize_logits = { boolean, false },
  exponential_decay_length_penalty = { { "a list of two numbers, {start, factor}", function(v)
    return is_list(v, number[2]) and #v == 2
  end } },
  num_beams = { from_one, 1 },
  num_return_sequences = { from_one, 1 },
  length_penalty = { number, 1 },
  early_stopping = { { "true, false or \"never\"", function(v)
    return type(v) == "boolean" or v == "never"
  end }, false },
  eos_token_id = { some_tokens },
  pad_token_id = { token },
  bos_token_id = { some_tokens },
  decoder_start_token_id = { token },
  forced_bos_token_id = { token },
  forced_eos_token_id = { some_tokens },
  stop_strings = { { "a string or a list of strings", function(v)
    local function is_string(s) return type(s) == "string" end
    return is_string(v) or is_list(v, is_string)
  end } },
  logits_processor = { { "a function or a list of functions", function(v)
    local function is_function(f) return type(f) == "function" end
    return is_function(v) or (is_list(v, is_function) and #v > 0)
  end } },
  tokenizer = { anything }, seed = { anything }, rng = { anything }, streamer = { anything },
  cache = { anything },
  cache_implementation = { { "\"dynamic\" or \"static\"", function(v)
    return v == "dynamic" or v == "static"
  end } },
}

-- Options of transformers that do not exist here, with the value that has no effect, or `false` if
-- every value has an effect. Options of its return value, cache and compiler are not listed: they
-- change no token.
local unsupported = {
  assistant_early_exit = false,
  assistant_model = false,
  constraints = false,
  custom_generate = false,
  diversity_penalty = 0,
  dola_layers = false,
  force_words_ids = false,
  guidance_scale = 1,
  max_time = false,
  negative_prompt_ids = false,
  num_beam_groups = 1,
  penalty_alpha = 0,
  prefix_allowed_tokens_fn = false,
  prompt_lookup_num_tokens = false,
  stopping_criteria = false,
  token_healing = false,
  watermarking_config = false,
}

local defaults, optional = {}, {}
for name, option in pairs(options) do
  defaults[name] = option[2]
  if option[2] == nil then optional[#optional + 1] = name end
end

local complete = arguments("model.generate", defaults, optional)

-- Raises an error if a table has an unsupported option, unless its value has no effect. Returns the
-- table without them.
local function supported(given)
  if type(given) ~= "table" then return given end
  local rest = {}
  for name, value in pairs(given) do
    local neutral = unsupported[name]
    if neutral == nil then
      rest[name] = value
    elseif value ~= neutral then
      fail("model.generate: %s = %s is not supported%s", name, value,
        neutral and (", only %s"):format(tostring(neutral)) or "")
    end
  end
  return rest
end

-- The options in generation_config.json or, in older folders, config.json.
local function from_files(model)
  local source, found = supported(model.generation_config or model.config), {}
  for name in pairs(options) do found[name] = source[name] end
  -- A folder's value is about the memory of transformers and changes no token.
  found.cache_implementation = nil
  return found
end

local function list_of(value)
  if not value then return {} end
  return type(value) == "table" and value or { value }
end

local function check(o)
  for name, option in pairs(options) do
    local expected, fits = unpack(option[1])
    -- `false` means no value for an option without a default.
    local is_absent = o[name] == nil or (o[name] == false and option[2] == nil)
    if not is_absent and not fits(o[name]) then
      fail("model.generate: %s is %s, expected %s", name, o[name], expected)
    end
  end
  if o.do_sample and o.num_beams > 1 then
    fail "model.generate: do_sample with num_beams > 1 is not supported: choose one of them"
  end
  if o.streamer and o.num_beams > 1 then
    fail "model.generate: streamer needs num_beams = 1: beams change until the end"
  end
  if not o.do_sample and o.num_return_sequences > o.num_beams then
    fail("model.generate: num_return_sequences is %d, but without do_sample it can be at most "
      .. "num_beams, %d", o.num_return_sequences, o.num_beams)
  end
  if o.encoder_repetition_penalty ~= 1 and math.max(o.num_beams, o.num_return_sequences) > 1 then
    -- transformers applies the penalty only to the first rows, with the prompts of other rows.
    fail("model.generate: encoder_repetition_penalty needs num_beams = 1 and "
      .. "num_return_sequences = 1")
  end
  if o.exponential_decay_length_penalty and #o.eos == 0 then
    fail "model.generate: exponential_decay_length_penalty needs an eos_token_id"
  end
  if o.cache and o.cache_implementation == "static" then
    fail "model.generate: cache_implementation = \"static\" makes a new cache: leave `cache` out"
  end
  if o.stop_strings and not o.tokenizer then
    fail "model.generate: stop_strings need the tokenizer that reads them: give it as `tokenizer`"
  end
end

--- Returns all options of a call. `eos`, `forced_eos` and `stop_strings` are lists. `pad_token_id`
--- defaults to the first end token.
local function generation_options(model, given)
  given = supported(given)
  complete(given)  -- refuses unknown names
  local all = from_files(model)
  for key, value in pairs(given or {}) do all[key] = value end
  local o = {}
  for key, value in pairs(complete(all)) do o[key] = value end
  o.eos, o.forced_eos = list_of(o.eos_token_id), list_of(o.forced_eos_token_id)
  check(o)
  o.stop_strings = list_of(o.stop_strings)
  -- Version 4 of transformers takes 20 in a file for its default, version 5 writes no default.
  local version = ties.version(model.generation_config or {})
  o.is_length_given = (given or {}).max_length or (version or 0) >= 5
  o.has_padding = o.pad_token_id and true or false
  o.pad_token_id = o.pad_token_id or o.eos[1] or 0
  o.decoder_start_token_id = o.decoder_start_token_id or list_of(o.bos_token_id)[1]
  return o
end

local default_new_tokens = 20

-- Returns the number of positions in the configuration, or nil.
local function n_positions(model)
  for _, key in ipairs { "max_position_embeddings", "n_positions" } do
    if model.family.defaults[key] then return model.config[key] end
  end
end

--- Sets `max_length` and `min_length`, which count the prompt too.
local function set_lengths(o, model, prompt_length)
  if o.max_new_tokens then
    o.max_length = prompt_length + o.max_new_tokens
  elseif not o.max_length or (o.max_length == default_new_tokens and not o.is_length_given) then
    o.max_length = math.min(prompt_length + default_new_tokens, n_positions(model) or math.huge)
  end
  if o.max_length <= prompt_length then
    fail("model.generate: max_length is %d, but the prompt already has %d tokens: set "
      .. "max_new_tokens", o.max_length, prompt_length)
  end
  if o.min_new_tokens then o.min_length = prompt_length + o.min_new_tokens end
end

return { n_positions = n_positions, read = generation_options, set_lengths = set_lengths }
