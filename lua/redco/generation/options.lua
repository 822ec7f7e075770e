--- The options of `model.generate`: what a call gives, else what the model's files say, else these
--- defaults. Names and meanings are Hugging Face's.
local arguments = require "redco.arguments"
local fail = require "redco.fail"

local defaults = {
  max_length = 20,
  do_sample = false,
  temperature = 1,
  top_k = 50,
  top_p = 1,
  repetition_penalty = 1,
  no_repeat_ngram_size = 0,
  min_length = 0,
  num_beams = 1,
  num_return_sequences = 1,
  length_penalty = 1,
  early_stopping = false,
}

local optional = {
  "max_new_tokens", "min_new_tokens", "eos_token_id", "pad_token_id", "bos_token_id",
  "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "stop_strings",
  "tokenizer", "seed", "rng", "streamer",
}

local complete = arguments("model.generate", defaults, optional)

-- Of what generation_config.json or, in older folders, config.json has, the options.
local function from_files(model)
  local source, found = model.generation_config or model.config, {}
  for key in pairs(defaults) do found[key] = source[key] end
  for _, key in ipairs(optional) do found[key] = source[key] end
  return found
end

local function list_of(ids)
  if not ids then return {} end
  return type(ids) == "table" and ids or { ids }
end

-- name, whether a value is allowed, what is allowed
local limits = {
  { "temperature", function(v) return v > 0 end, "more than 0" },
  { "top_k", function(v) return v >= 0 and v % 1 == 0 end, "a whole number; 0 keeps all" },
  { "top_p", function(v) return v > 0 and v <= 1 end, "in (0, 1]" },
  { "repetition_penalty", function(v) return v > 0 end, "more than 0" },
  { "num_beams", function(v) return v >= 1 and v % 1 == 0 end, "a whole number of at least 1" },
  { "num_return_sequences", function(v) return v >= 1 and v % 1 == 0 end,
    "a whole number of at least 1" },
}

local function check(o)
  for _, limit in ipairs(limits) do
    local name, allows, text = unpack(limit)
    if type(o[name]) ~= "number" or not allows(o[name]) then
      fail("model.generate: %s is %s, expected %s", name, tostring(o[name]), text)
    end
  end
  if o.do_sample and o.num_beams > 1 then
    fail "model.generate: do_sample with num_beams > 1 is not supported: choose one of them"
  end
  if not o.do_sample and o.num_return_sequences > o.num_beams then
    fail("model.generate: num_return_sequences is %d, but without do_sample no more than "
      .. "num_beams, %d, differ", o.num_return_sequences, o.num_beams)
  end
  if o.early_stopping ~= true and o.early_stopping ~= false and o.early_stopping ~= "never" then
    fail("model.generate: early_stopping is %s, expected true, false or \"never\"",
      tostring(o.early_stopping))
  end
  if o.stop_strings and not o.tokenizer then
    fail "model.generate: stop_strings need the tokenizer that reads them: give it as `tokenizer`"
  end
end

--- All options of a call. `eos` and `stop_strings` are lists; `pad_token_id` is the first end token
--- where there is no other. `max_length` and `min_length` follow from the length of the prompt.
local function generation_options(model, given, prompt_length)
  complete(given)  -- refuses unknown names
  local all = from_files(model)
  for key, value in pairs(given or {}) do all[key] = value end
  local o = {}
  for key, value in pairs(complete(all)) do o[key] = value end
  check(o)
  if o.max_new_tokens then o.max_length = prompt_length + o.max_new_tokens end
  if o.max_length <= prompt_length then
    fail("model.generate: max_length is %d, and the prompt has %d tokens already: give "
      .. "max_new_tokens", o.max_length, prompt_length)
  end
  o.min_length = math.max(o.min_length, prompt_length + (o.min_new_tokens or -prompt_length))
  o.eos, o.stop_strings = list_of(o.eos_token_id), list_of(o.stop_strings)
  o.pad_token_id = o.pad_token_id or o.eos[1] or 0
  return o
end

return generation_options
