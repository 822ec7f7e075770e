--- The first tokens that Whisper's decoder is given: the start, the language, the task, and whether
--- it writes times; as in transformers 4.57.
local codes = require "redco.generation.whisper_languages"
local fail = require "redco.fail"
local native = require "redco.native"

local tasks = { translate = true, transcribe = true }

-- Returns the token of a language, which is a name, a code or a token.
local function language_token(o, language)
  if type(language) ~= "string" then
    fail("model.generate: language is %s, expected a string or a list of strings",
      language)
  end
  local name = language:lower()
  local token = o.lang_to_id[name] or o.lang_to_id[("<|%s|>"):format(codes[name] or name)]
  if token then return token end
  local known = {}
  for key in pairs(o.lang_to_id) do known[#known + 1] = key:match "^<|(.*)|>$" or key end
  table.sort(known)
  fail("model.generate: unknown language '%s'; the model's generation_config.json has %s", language,
    table.concat(known, ", "))
end

-- The tokens that older files force, by place; nil in the place of the language means any.
local function forced_tokens(o)
  local found = {}
  if o.language or o.task then return found end
  for i, pair in ipairs(o.forced_decoder_ids or {}) do
    if type(pair) ~= "table" or pair[1] ~= i then
      fail("model.generate: forced_decoder_ids must be {1, token}, {2, token} and so on")
    end
    found[i] = pair[2] ~= native.null and pair[2] or false
  end
  return found
end

local function check(o, batch)
  if o.is_multilingual == false and (o.is_task_given or o.is_language_given) then
    fail "model.generate: the model knows only English: leave out task and language"
  end
  for key, map in pairs { language = "lang_to_id", task = "task_to_id" } do
    if o[key] and type(o[map]) ~= "table" then
      fail("model.generate: %s needs %s, which generation_config.json lacks", key, map)
    end
  end
  if o.task and not (tasks[o.task] and o.task_to_id[o.task]) then
    fail("model.generate: unknown task '%s', expected 'transcribe' or 'translate'",
      o.task)
  end
  if type(o.language) == "table" and #o.language ~= batch then
    fail("model.generate: %d languages for %d rows", #o.language, batch)
  end
end

local function has_task(o, tokens)
  for _, token in pairs(o.task_to_id) do
    for _, other in ipairs(tokens) do
      if token == other then return true end
    end
  end
  return false
end

--- Returns the tokens of each row, lists of one length. `o` has the options of the call, else of
--- the model's files; `detect(tokens)` returns the most probable of the tokens for each row.
return function(o, batch, detect)
  check(o, batch)
  local forced, rows, detected = forced_tokens(o), {}, nil
  if not o.language and o.lang_to_id and not forced[1] then
    local tokens = {}
    for _, token in pairs(o.lang_to_id) do tokens[#tokens + 1] = token end
    detected = detect(tokens)
  end
  for i = 1, batch do
    local language = type(o.language) == "table" and o.language[i] or o.language
    local row = { o.decoder_start_token_id, language and language_token(o, language)
      or detected and detected[i] or forced[1] or nil }
    for place = 2, #forced do row[#row + 1] = forced[place] or nil end
    if o.task then
      row[#row + 1] = o.task_to_id[o.task]
    elseif language and o.task_to_id and not has_task(o, row) then
      row[#row + 1] = o.task_to_id.transcribe
    end
    local none = o.no_timestamps_token_id
    if none and not o.return_timestamps and row[#row] ~= none then
      row[#row + 1] = none
    elseif o.return_timestamps and row[#row] == none then
      row[#row] = nil
    end
    rows[i] = row
  end
  return rows
end
