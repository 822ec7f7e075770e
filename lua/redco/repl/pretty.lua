--- Formats values for the prompt: tensors with their type, tables as indented trees, functions by
--- their signatures. It never communicates with another process.
local members = require "redco.repl.members"
local registry = require "redco.registry"
local torch = require "redco.torch"

local max_depth = 4       -- of tables in tables
local max_lines = 100     -- of tables in tables: a larger value is shown less deeply
local max_entries = 100   -- of one table
local max_total = 1000    -- of all
local max_string = 200    -- bytes of a string in a table
local max_text = 20000    -- bytes of a string that is the value itself
local min_signature = 40  -- of a function in a table, however narrow the screen

local styles = { dim = 2, string = 32, tensor = 36, callable = 35 }

local pretty = {}

local Writer = {}
Writer.__index = Writer

function Writer:paint(style, text)
  if not self.colors then return text end
  return ("\27[%dm%s\27[0m"):format(styles[style], text)
end

-- Returns the width of a text without newlines, in columns.
local function columns(text)
  return #text:gsub("\27%[%d+m", ""):gsub("[\128-\191]", "")
end

local escapes = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ['"'] = '\\"', ["\\"] = "\\\\" }

local function quoted(text)
  local cut = #text > max_string
  local shown = (cut and text:sub(1, max_string) or text)
    :gsub('[\r\n\t"\\]', escapes)
    :gsub("%c", function(c) return ("\\%03d"):format(c:byte()) end)
  return '"' .. shown .. '"' .. (cut and ("... (%d bytes)"):format(#text) or "")
end

--- Returns "float32 [2, 3]", with device, placement and requires_grad if they are not the default.
function pretty.tensor_kind(t)
  local parts = { ("%s [%s]"):format(t.dtype, table.concat(t.shape, ", ")) }
  if t.device ~= "cpu" then parts[#parts + 1] = t.device end
  if t:is_sharded() then
    local placement = t:placement()
    for _, dim in ipairs { "dp", "ep", "cp", "mp", "pp", "dp_replicate" } do
      if placement[dim] then parts[#parts + 1] = dim .. " " .. placement[dim] end
    end
  end
  if t.requires_grad then parts[#parts + 1] = "requires_grad" end
  return table.concat(parts, ", ")
end

local function name_of_operator(f)
  for _, methods in ipairs { torch, torch.Tensor } do
    for name, value in next, methods do
      if value == f then return name end
    end
  end
end

local function parameters(f)
  local names = {}
  local info = debug.getinfo(f, "u")
  for i = 1, info.nparams or 0 do names[i] = debug.getlocal(f, i) end
  if info.isvararg then names[#names + 1] = "..." end
  return table.concat(names, ", ")
end

--- Returns the signature in a function's help text, its schema, or Lua's own description.
function pretty.signature(f)
  local text, full_name = registry.text(f)
  if text then
    local call = text:match "^[%w_.:]*%b()[^\n]*" or text:match "^[%w_.:]*%b{}[^\n]*"
      or text:match "^[^\n]*"
    return full_name .. call:gsub("^[%w_.:]*", ""):gsub("%s*\n%s*", " ")
  end
  local operator = name_of_operator(f)
  local schemas = operator and torch.schemas(operator)
  if schemas then
    local more = #schemas > 1 and (" and %d more"):format(#schemas - 1) or ""
    return "torch." .. schemas[1] .. more
  end
  local info = debug.getinfo(f, "S")
  if info.what == "C" then return "built in" end
  return ("(%s) %s:%d"):format(parameters(f), info.short_src, info.linedefined)
end

local rank = { number = 1, string = 2 }

local function before(a, b)
  local rank_a, rank_b = rank[type(a)] or 3, rank[type(b)] or 3
  if rank_a ~= rank_b then return rank_a < rank_b end
  if rank_a == 3 then return tostring(a) < tostring(b) end
  return a < b
end

-- Returns the keys of a table that are not in its list 1..n.
local function other_keys(t, n)
  local keys = {}
  for key in next, t do
    if not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then
      keys[#keys + 1] = key
    end
  end
  table.sort(keys, before)
  return keys
end

function Writer:key(key)
  if type(key) ~= "string" then return "[" .. self:leaf(key, min_signature) .. "]" end
  if key:find "^[%a_][%w_]*$" and loadstring("local " .. key) then return key end
  return "[" .. quoted(key) .. "]"
end

-- Returns one or more lines; all but the first are indented by `indent`.
function Writer:tree(t, indent, depth)
  if self.open[t] then return self:paint("dim", "<cycle>") end
  if next(t) == nil then return "{}" end
  local n = #t
  local keys = other_keys(t, n)
  if depth > self.depth then
    return self:paint("dim", ("{ ... %d }"):format(n + #keys))
  end
  self.open[t] = true
  local entries, is_flat = {}, true
  local function add(key_text, value)
    local room = self.width - indent - 3 - columns(key_text)
    local text = key_text .. self:value(value, indent + 2, depth + 1, room)
    is_flat = is_flat and not text:find("\n", 1, true)
    entries[#entries + 1] = text
    self.total = self.total + 1
  end
  local function is_full() return #entries >= max_entries or self.total >= max_total end
  for i = 1, n do
    if is_full() then break end
    add("", rawget(t, i))
  end
  for _, key in ipairs(keys) do
    if is_full() then break end
    add(self:key(key) .. " = ", rawget(t, key))
  end
  self.open[t] = nil
  if #entries < n + #keys then
    entries[#entries + 1] = self:paint("dim", ("... %d more"):format(n + #keys - #entries))
  end
  return self:joined(entries, indent, is_flat, #keys == 0)
end

-- Joins entries on one line if they fit. Else each takes a line; entries of a list fill lines.
function Writer:joined(entries, indent, is_flat, is_list)
  local line = "{ " .. table.concat(entries, ", ") .. " }"
  if is_flat and columns(line) <= self.width - indent then return line end
  local margin = "\n" .. (" "):rep(indent + 2)
  if not (is_flat and is_list) then
    return "{" .. margin .. table.concat(entries, "," .. margin) .. "\n" .. (" "):rep(indent) .. "}"
  end
  local text, column = "{" .. margin, indent + 2
  for i, entry in ipairs(entries) do
    local size = columns(entry) + 2
    if i > 1 and column + size > self.width then
      text, column = text .. margin, indent + 2
    end
    text, column = text .. entry .. (i < #entries and ", " or ""), column + size
  end
  return text:gsub(" \n", "\n") .. "\n" .. (" "):rep(indent) .. "}"
end

function Writer:callable(f, room)
  local text = "function " .. pretty.signature(f)
  if #text > room then text = text:sub(1, room - 3) .. "..." end
  return self:paint("callable", text)
end

-- Whole numbers have all their digits, others 14.
local function number(x)
  return x % 1 == 0 and math.abs(x) < 2 ^ 63 and ("%.0f"):format(x) or tostring(x)
end

-- Cuts a long text at the end of a character.
local function text_of(text)
  if #text <= max_text then return text end
  return ("%s... (%d bytes; print(_) prints all)"):format(
    text:sub(1, max_text):gsub("[\192-\255][\128-\191]*$", ""), #text)
end

--- Formats a value that is not a table, on one line.
function Writer:leaf(value, room)
  local kind = type(value)
  if kind == "string" then return self:paint("string", quoted(value)) end
  if kind == "function" then return self:callable(value, math.max(room, min_signature)) end
  if kind == "number" then return number(value) end
  if not torch.is_tensor(value) then return members.class(value) or tostring(value) end
  if value:dim() == 0 and not value:is_sharded() then
    return self:paint("tensor", (tostring(value):gsub("%s*\n%s*", " ")))
  end
  return self:paint("tensor", pretty.tensor_kind(value))
end

function Writer:value(value, indent, depth, room)
  if type(value) ~= "table" then return self:leaf(value, room) end
  local meta = debug.getmetatable(value)
  if meta and meta.__tostring then
    return (tostring(value):gsub("\n", "\n" .. (" "):rep(indent)))
  end
  return self:tree(value, indent, depth)
end

-- Returns the state of an object, and below it its methods.
function Writer:object(value, class)
  local names = members.of_class(class, ":", "")
  local text, column = tostring(value) .. "\n ", 1
  for _, name in ipairs(names) do
    if column + #name + 2 > self.width then
      text, column = text .. "\n ", 1
    end
    text, column = text .. self:paint("dim", " :" .. name), column + #name + 2
  end
  return text
end

-- Formats a result at the prompt: strings without quotes, tensors with their elements.
function Writer:answer(value)
  if type(value) == "string" then return text_of(value) end
  if type(value) == "function" then return self:callable(value, math.huge) end
  if torch.is_tensor(value) then
    return tostring(value) .. "\n" .. self:paint("dim", "[" .. pretty.tensor_kind(value) .. "]")
  end
  local class = members.class(value)
  if class then return self:object(value, class) end
  for depth = max_depth, 1, -1 do
    self.depth, self.total = depth, 0
    local text = self:value(value, 0, 1)
    local _, n_lines = text:gsub("\n", "\n")
    if depth == 1 or n_lines <= max_lines then return text end
  end
end

--- Formats a result at the prompt. `options`: `width` in columns, `colors`.
function pretty.answer(value, options)
  local writer = { open = {}, width = options.width, colors = options.colors }
  return setmetatable(writer, Writer):answer(value)
end

return pretty
