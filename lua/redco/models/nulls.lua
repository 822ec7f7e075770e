--- Reads and writes JSON and keeps its nulls. In Lua null is nil, so a key that is null would get
--- the default of a missing key; in a configuration null means no value. Lua also has only one type
--- of numbers, and transformers refuses 50 where it expects 50.0.
local native = require "redco.native"

local nulls = {}

local mark, real_mark = "redco: null", "redco: real "
local keys_of = setmetatable({}, { __mode = "k" })  -- by table: the keys that are null

--- Returns the set of a table's keys that are null.
function nulls.keys(t) return keys_of[t] or {} end

--- Marks a key of a table as null.
function nulls.set(t, key)
  keys_of[t] = keys_of[t] or {}
  keys_of[t][key], t[key] = true, nil
end

-- Replaces each null outside strings by a marker string.
local function marked(text)
  local parts, at = {}, 1
  while true do
    local opening = text:find('"', at, true)
    parts[#parts + 1] = text:sub(at, (opening or #text + 1) - 1):gsub("null", '"' .. mark .. '"')
    if not opening then return table.concat(parts) end
    local closing = opening + 1
    while text:sub(closing, closing) ~= '"' do
      closing = closing + (text:sub(closing, closing) == "\\" and 2 or 1)
    end
    parts[#parts + 1] = text:sub(opening, closing)
    at = closing + 1
  end
end

local function unmarked(value)
  if type(value) ~= "table" then return value end
  local keys = {}
  for key, entry in pairs(value) do
    if entry == mark then keys[#keys + 1] = key else unmarked(entry) end
  end
  for _, key in ipairs(keys) do nulls.set(value, key) end
  return value
end

--- Decodes a JSON text; `name` is the file's, for errors.
function nulls.decode(name, text)
  native.json_decode(name, text)  -- raises the errors of the original text
  return unmarked(native.json_decode(name, marked(text)))
end

-- Patterns of keys whose numbers are real.
local reals = { "^init", "_multiplier$", "_noise$", "_scaling$", "_theta$", "coef$", "cutoff$",
  "drop$", "dropout", "_eps$", "^eps$", "epsilon$", "factor$", "freq$", "^mscale", "penalty$",
  "^clip_qkv$", "^temperature$", "_p$", "_pct$", "_prob$", "softcapping$", "_std$" }

local function is_real(key)
  for _, pattern in ipairs(type(key) == "string" and reals or {}) do
    if key:find(pattern) then return true end
  end
  return false
end

local function with_marks(value)
  if type(value) ~= "table" then return value end
  local copy = {}
  for key, entry in pairs(value) do
    local is_whole = type(entry) == "number" and entry % 1 == 0 and math.abs(entry) < 1e15
    copy[key] = is_whole and is_real(key) and real_mark .. ("%.0f"):format(entry)
      or with_marks(entry)
  end
  for key in pairs(nulls.keys(value)) do
    if copy[key] == nil then copy[key] = mark end
  end
  return copy
end

--- Encodes a value with its nulls and real numbers, in the format of native.json_encode.
function nulls.encode(name, value, indent)
  local text = native.json_encode(name, with_marks(value), indent)
  text = text:gsub(('"%s"'):format(mark), "null")
  return (text:gsub(('"%s(%%-?%%d+)"'):format(real_mark), "%1.0"))
end

return nulls
