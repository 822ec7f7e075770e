--- The parameters of requests: which there are, and what they may be. The names and meanings are
--- those of the OpenAI API. What is not listed, or has a value that would need more than there is
--- here, is refused.
local names_of = require "redco.names_of"
local native = require "redco.native"
local refusals = require "redco.serve.refuse"

local refuse = refusals.refuse

local function is_number(v) return type(v) == "number" and v == v and math.abs(v) < math.huge end
local function is_integer(v) return is_number(v) and v % 1 == 0 and math.abs(v) <= 2 ^ 53 end
local function is_boolean(v) return type(v) == "boolean" end
local function is_string(v) return type(v) == "string" end
local function is_table(v) return type(v) == "table" end
local function is_absent() return false end

local function is_list(v, is_entry)
  if type(v) ~= "table" or #v == 0 then return false end
  for _, entry in ipairs(v) do
    if not is_entry(entry) then return false end
  end
  return true
end

-- Kinds of values: a description and a predicate.
local function whole(least, most)
  return { most and ("a whole number from %d to %d"):format(least, most)
    or ("a whole number of at least %d"):format(least),
    function(v) return is_integer(v) and v >= least and v <= (most or math.huge) end }
end
local function real(least, most)
  return { ("a number from %g to %g"):format(least, most), function(v)
    return is_number(v) and v >= least and v <= most
  end }
end
local boolean = { "true or false", is_boolean }
local text = { "a string", is_string }
local object = { "an object", function(v) return is_table(v) and #v == 0 end }
local integer = { "a whole number", is_integer }
local function only(value)
  return { "not supported" .. (value ~= nil and ("; only %s"):format(tostring(value)) or ""),
    function(v) return v == value end }
end
local none = { "not supported", is_absent }
local empty = { "not supported", function(v) return is_table(v) and next(v) == nil end }
local one_of = function(...)
  local words = { ... }
  return { "one of " .. table.concat(words, ", "), function(v)
    for _, word in ipairs(words) do
      if v == word then return true end
    end
    return false
  end }
end
local stops = { "a string or a list of at most 16 strings, none of them empty", function(v)
  local function is_stop(s) return is_string(s) and s ~= "" end
  return is_stop(v) or (is_list(v, is_stop) and #v <= 16)
end }
local function is_tokens(v) return is_list(v, is_integer) end
local prompts = { "a string, a list of strings, a list of tokens or a list of lists of tokens",
  function(v)
    return is_string(v) or is_tokens(v) or is_list(v, is_string) or is_list(v, is_tokens)
  end }

local biases = { "an object of tokens and numbers from -100 to 100", function(v)
  if not is_table(v) or #v > 0 then return false end
  for token, bias in pairs(v) do
    local is_token = type(token) == "string" and token:find "^%d+$"
    if not is_token or not is_number(bias) or math.abs(bias) > 100 then return false end
  end
  return true
end }
local tool_choices = { '"auto", "none", "required" or a function', function(v)
  return v == "auto" or v == "none" or v == "required" or (is_table(v) and v.type == "function")
end }
local formats = { 'an object whose type is "text", "json_object" or "json_schema"', function(v)
  return is_table(v) and (v.type == "text" or v.type == "json_object" or v.type == "json_schema")
end }

local max_logprobs, longest_name = 20, 64

-- Of both endpoints.
local shared = {
  model = text, stream = boolean, stream_options = object,
  temperature = real(0, 2), top_p = real(0, 1), n = whole(1, 128), stop = stops, seed = integer,
  max_tokens = whole(1),
  -- These are not in the OpenAI API; other servers have them.
  top_k = whole(0), min_p = real(0, 1),
  repetition_penalty = { "a number greater than 0, at most 100", function(v)
    return is_number(v) and v > 0 and v <= 100
  end },
  frequency_penalty = real(-2, 2), presence_penalty = real(-2, 2), logit_bias = biases,
  -- These change no token.
  user = text, metadata = object, store = boolean, safety_identifier = text,
  prompt_cache_key = text, prompt_cache_retention = text,
  service_tier = one_of("auto", "default"),
}

local of_chat = {
  messages = { "a list of at least one message", function(v) return is_list(v, is_table) end },
  max_completion_tokens = whole(1), logprobs = boolean, top_logprobs = whole(0, max_logprobs),
  tools = { "a list of objects", function(v) return is_list(v, is_table) or empty[2](v) end },
  tool_choice = tool_choices, parallel_tool_calls = boolean, response_format = formats,
  modalities = { 'not supported; only ["text"]', function(v)
    return is_list(v, function(entry) return entry == "text" end)
  end },
  chat_template_kwargs = object,  -- not in the OpenAI API; other servers have it
  audio = none, function_call = none, functions = none, prediction = none,
  reasoning_effort = none, verbosity = none, web_search_options = none,
}

local of_completions = {
  prompt = prompts, logprobs = whole(0, max_logprobs), echo = only(false), suffix = none,
  best_of = only(1),
}

local function with_shared(own)
  local all = {}
  for _, parameters in ipairs { shared, own } do
    for name, kind in pairs(parameters) do all[name] = kind end
  end
  return all
end

local endpoints = { chat = with_shared(of_chat), completions = with_shared(of_completions) }

local function check_stream_options(given)
  if not given.stream then
    refuse(400, { param = "stream_options" }, "stream_options needs stream = true")
  end
  for name, value in pairs(given.stream_options) do
    if (name ~= "include_usage" and name ~= "include_obfuscation") or not is_boolean(value)
      or (name == "include_obfuscation" and value) then
      refuse(400, { param = "stream_options." .. tostring(name), code = "unsupported_parameter" },
        "stream_options has include_usage, true or false, and nothing else")
    end
  end
end

--- Returns the parameters in the JSON text of a request to the endpoint "chat" or "completions".
return function(endpoint, body)
  local ok, given = refusals.try(native.json_decode, "body", body)
  if not ok then
    refuse(400, { code = "invalid_json" }, "the body is not valid JSON: %s",
      (tostring(given):gsub("^.-not valid JSON: *", "")))
  end
  if type(given) ~= "table" or #given > 0 then
    refuse(400, { code = "invalid_json" }, "the body of the request is not a JSON object")
  end
  local known = endpoints[endpoint]
  for name, value in pairs(given) do
    local kind = known[name]
    if not kind then
      name = name:sub(1, longest_name)
      local near = native.nearest(name, names_of(known))
      refuse(400, { param = name, code = "unknown_parameter" }, "there is no parameter %s here%s",
        name, near and ("; did you mean %s?"):format(near) or "")
    end
    local expected, fits = unpack(kind)
    if not fits(value) then
      local is_unsupported = expected:find "^not supported"
      refuse(400, { param = name, code = is_unsupported and "unsupported_parameter"
        or "invalid_value" }, is_unsupported and "%s is %s" or "%s: expected %s", name, expected)
    end
  end
  if given.stream_options then check_stream_options(given) end
  return given
end
