--- Tool calls in the text of an answer. How a model writes them follows from its chat template:
--- what that makes of a message with a call is what the model was trained to write.
local native = require "redco.native"
local new_stops = require "redco.talk.stops"
local refusals = require "redco.serve.refuse"

local calls = {}

-- Returns the value of the JSON object or list at byte `at` of a text, and the place after it.
local function json_at(text, at)
  local depth, i = 0, at
  while true do
    i = text:find('[{}%[%]"]', i)
    if not i then return end
    local c = text:sub(i, i)
    if c == '"' then
      repeat
        i = text:find('["\\]', i + 1)
        local is_escape = i and text:sub(i, i) == "\\"
        if is_escape then i = i + 1 end
      until not is_escape
      if not i then return end
    else
      depth = depth + ((c == "{" or c == "[") and 1 or -1)
    end
    i = i + 1
    if depth == 0 then
      local ok, value = refusals.try(native.json_decode, "call", text:sub(at, i - 1))
      if ok then return value, i end
      return
    end
  end
end

-- Values of a probe call, which a template formats.
local name, key, value, words = "probe_name", "probe_key", "probe_value", "probe words"
local call_id = "call00001"  -- some templates want nine letters and digits

-- Returns the text that a template writes for an answer, without the text before it.
local function rendered(tokenizer, variables, answer)
  local function format(messages, has_prompt)
    local ok, text = refusals.try(tokenizer.apply_chat_template, tokenizer, messages,
      { tokenize = false, variables = variables, add_generation_prompt = has_prompt })
    return ok and text
  end
  local question = { role = "user", content = "probe" }
  local before, whole = format({ question }, true), format({ question, answer }, false)
  if before and whole and whole:sub(1, #before) == before then return whole:sub(#before + 1) end
end

-- Returns the text without special tokens, as answers are, and without blanks around it.
local function visible(tokenizer, text)
  return tokenizer:decode(tokenizer:encode(text, { add_special_tokens = false }),
    { skip_special_tokens = true }):match "^%s*(.-)%s*$"
end

-- Returns a call as a template writes it, cut where it has the name and the arguments: a list of
-- texts, with the words "name" and "arguments" in tables between them. `first` and `last` are the
-- ends of its JSON object.
local function cut(text, first, last)
  local places = {}
  local function add(what, from, to)
    if from and from < last then places[#places + 1] = { what, from, to } end
  end
  local key_at = text:find(key, first, true)
  for at = key_at, first, -1 do
    if text:sub(at, at) == "{" then
      local _, next_at = json_at(text, at)
      add("arguments", at, next_at - 1)
      break
    end
  end
  local quoted = '"' .. name .. '"'
  local at = text:find(quoted, first, true)
  add("name", at, at and at + #quoted - 1)
  table.sort(places, function(a, b) return a[2] < b[2] end)
  local pieces, done = {}, 0
  for _, place in ipairs(places) do
    pieces[#pieces + 1] = text:sub(done + 1, place[2] - 1)
    pieces[#pieces + 1] = { place[1] }
    done = place[3]
  end
  pieces[#pieces + 1] = text:sub(done + 1)
  return pieces
end

--- Returns how the chat template writes calls: `prefix`, a JSON object with the name and, at the
--- key `arguments`, the arguments, and `suffix`. `pieces` are a whole call, with its special
--- tokens. Returns nil if it writes them otherwise. `variables` has the tools.
function calls.format(tokenizer, variables)
  local plain = rendered(tokenizer, variables, { role = "assistant", content = words })
  local text = rendered(tokenizer, variables, { role = "assistant", content = "", tool_calls = {
    { id = call_id, type = "function",
      ["function"] = { name = name, arguments = { [key] = value } } },
  } })
  local at = text and text:find(name, 1, true)
  if not at or not plain then return end
  for first in text:sub(1, at):gmatch "(){" do
    local object, last = json_at(text, first)
    for each, arguments in pairs(object and object.name == name and object or {}) do
      if type(arguments) == "table" and arguments[key] == value then
        -- An answer without a call begins and ends with these texts, too.
        local opening, ending = plain:match("^(.*)" .. words .. "(.*)$")
        local prefix, suffix = text:sub(1, first - 1), text:sub(last)
        if opening and prefix:sub(1, #opening) == opening then prefix = prefix:sub(#opening + 1) end
        if ending and suffix:sub(-#ending) == ending then suffix = suffix:sub(1, -#ending - 1) end
        local start = prefix:match "^%s*(.*)$"
        return { prefix = visible(tokenizer, prefix), suffix = visible(tokenizer, suffix),
          arguments = each,
          pieces = cut(start .. text:sub(first, last - 1) .. suffix, #start + 1,
            #start + last - first) }
      end
    end
  end
end

--- Returns the name of the function of a tool, or nil.
function calls.name_of(tool)
  local called = type(tool) == "table" and tool["function"]
  return type(called) == "table" and type(called.name) == "string" and called.name or nil
end

--- Refuses tools that are no functions with a name.
function calls.check(tools)
  for i, tool in ipairs(tools) do
    local called = calls.name_of(tool)
    if not called or called == "" or (tool.type ~= nil and tool.type ~= "function") then
      refusals.refuse(400, { param = "tools", code = "invalid_value" },
        'tools[%d]: expected {"type": "function", "function": {"name": "..."}}', i - 1)
    end
  end
end

--- Returns a call of each tool as parts of a grammar.
function calls.parts(format, tools)
  local all = {}
  for i, tool in ipairs(tools) do
    local called = calls.name_of(tool)
    local of = { name = native.json_encode("name", called),
      arguments = { schema = tool["function"].parameters or { type = "object" } } }
    local parts = {}
    for at, piece in ipairs(format.pieces) do
      parts[at] = type(piece) == "table" and of[piece[1]] or piece
    end
    all[i] = parts
  end
  return all
end

-- Returns the place after a text and the blanks around it, or `at` if it is not there.
local function after(text, at, part)
  local first = text:find("%S", at) or #text + 1
  if text:sub(first, first + #part - 1) ~= part then return first end
  return text:find("%S", first + #part) or #text + 1
end

--- Returns the list of calls {name, arguments} that a text consists of; nil if it is another one.
function calls.parse(format, text)
  local found, at = {}, 1
  while true do
    at = after(text, at, format.prefix)
    local object
    if text:sub(at, at) ~= "{" then return end
    object, at = json_at(text, at)
    local arguments = object and object[format.arguments]
    if not object or type(object.name) ~= "string" or type(arguments) ~= "table" then return end
    found[#found + 1] = { name = object.name,
      arguments = native.json_encode("arguments", arguments) }
    at = after(text, at, format.suffix)
    if at > #text then return found end
    at = after(text, at, ",")
  end
end

-- Prefixes shorter than this also occur in other texts, so they count only at the beginning.
local least_prefix = 3

--- Returns `push(text)`, which returns the text that can be shown, and `finish()`, which returns
--- the rest of it, and a list of calls if there are any.
function calls.reader(format)
  local all, n_shown, is_call = "", 0, nil
  local push_until = new_stops { format.prefix }

  -- Whether the text begins with a call; nil as long as it may.
  local function begins_with_call()
    local start = format.prefix == "" and "{" or format.prefix
    local text = all:match "^%s*(.*)$"
    if text:sub(1, #start) == start then return true end
    if #text >= #start or start:sub(1, #text) ~= text then return false end
  end

  local function push(text)
    all = all .. text
    if is_call then return "" end
    local shown
    if #format.prefix >= least_prefix then
      shown, is_call = push_until(text)
    else
      if is_call == nil then is_call = begins_with_call() end
      shown = is_call == false and all:sub(n_shown + 1) or ""
    end
    n_shown = n_shown + #shown
    return shown
  end
  return push, function()
    local rest = all:sub(n_shown + 1)
    local found = is_call and calls.parse(format, rest)
    if found then return "", found end
    return rest
  end
end

return calls
