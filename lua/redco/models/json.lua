--- Reads and writes JSON, and keeps what Lua's tables lack: nulls, empty lists, and real numbers
--- that are whole. In Lua null is nil, so a key that is null would get the default of a missing
--- key; in a configuration null means no value. transformers refuses {} where it expects [], and 50
--- where it expects 50.0. The metatables of the decoded tables hold these facts.
local native = require "redco.native"
local sizes = require "redco.models.config_sizes"

local json = {}

-- Patterns of keys whose numbers are real, where no file says it.
local reals = { "^beta_", "^init", "_multiplier$", "_noise$", "_scaling$", "_theta$", "coef$",
  "cutoff$", "drop$", "dropout", "_eps$", "^eps$", "epsilon$", "factor$", "freq$", "^mscale",
  "penalty$", "^clip_qkv$", "^temperature$", "_p$", "_pct$", "_prob$", "softcapping$", "_std$" }

local function is_real(key)
  if sizes[key] then return false end
  for _, pattern in ipairs(type(key) == "string" and reals or {}) do
    if key:find(pattern) then return true end
  end
  return false
end

-- Python writes an infinite number as Infinity, which JSON lacks. Version 5 of transformers writes
-- an object instead.
local infinite, tagged = "%-?Infinity", '{"__float__": "%0"}'
local tag = '{%s*"__float__":%s*"(%-?Infinity)"%s*}'

-- Returns the place after a text that begins at `first` with its quote.
local function after_string(text, first)
  local at = first
  repeat
    at = text:find('["\\]', at + 1)
    local is_escape = at and text:sub(at, at) == "\\"
    if is_escape then at = at + 1 end
  until not is_escape
  return at and at + 1 or #text + 1
end

--- Decodes a text; `name` is that of the file. What is infinite becomes {__float__ = "Infinity"}.
function json.decode(name, text)
  if not text:find("Infinity", 1, true) then return native.json_decode(name, text) end
  local parts, at = {}, 1
  while at <= #text do
    local quote = text:find('"', at, true) or #text + 1
    local after = quote <= #text and after_string(text, quote) or quote
    parts[#parts + 1] = text:sub(at, quote - 1):gsub(infinite, tagged)
    parts[#parts + 1] = text:sub(quote, after - 1)
    at = math.max(after, quote + 1)
  end
  return native.json_decode(name, table.concat(parts))
end

local function facts_of(t) return getmetatable(t) or {} end

-- Whether a table was read from a file, which tells the kinds of numbers, or is a copy of such a
-- table.
local function is_of_file(facts) return facts.__is_of_file or type(facts.__keys) == "table" end

--- Returns the set of a table's keys that are null.
function json.nulls(t)
  local set = {}
  for key in pairs(facts_of(t).__nulls or {}) do
    if t[key] == nil then set[key] = true end
  end
  return set
end

--- Marks a key of a table as null; an entry of a list becomes redco.null.
function json.set_null(t, key)
  if type(key) == "number" then
    t[key] = native.null
    return
  end
  if not getmetatable(t) then setmetatable(t, {}) end
  local facts = getmetatable(t)
  facts.__nulls = facts.__nulls or {}
  facts.__nulls[key], t[key] = true, nil
end

--- Returns a copy of a table with its facts. The tables in it stay the same ones.
function json.copy(t)
  local copy, facts = {}, facts_of(t)
  local of_copy = { __reals = facts.__reals, __is_of_file = is_of_file(facts) }
  if facts.__keys == true then of_copy.__keys = true end  -- an empty list
  for key, value in pairs(t) do copy[key] = value end
  setmetatable(copy, of_copy)
  for key in pairs(json.nulls(t)) do json.set_null(copy, key) end
  return copy
end

--- Marks those of these keys (a set) of a copy that are real by their names.
function json.mark_reals(copy, keys)
  local facts, all = getmetatable(copy), {}
  if facts.__reals == true then return end
  for key in pairs(facts.__reals or {}) do all[key] = true end
  for key in pairs(keys) do all[key] = all[key] or is_real(key) or nil end
  facts.__reals = all
end

local function with_reals(value)
  if type(value) ~= "table" then return value end
  local copy = json.copy(value)
  for key, entry in pairs(copy) do copy[key] = with_reals(entry) end
  if not getmetatable(copy).__is_of_file then json.mark_reals(copy, copy) end
  return copy
end

--- Encodes a value with its facts, in the format of native.json_encode, with infinite numbers as
--- Python writes them. Keys are sorted.
function json.encode(name, value, indent)
  return (native.json_encode(name, with_reals(value), indent):gsub(tag, "%1"))
end

return json
