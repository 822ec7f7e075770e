--- Lists the globals that the user defined.
local pretty = require "redco.repl.pretty"
local registry = require "redco.registry"
local torch = require "redco.torch"

-- Lua's own globals are those that exist before any script runs.
local at_start = getfenv(1)
local of_prompt = {}
for name in ("_ arg help img nn optim redco torch who"):gmatch "%S+" do of_prompt[name] = true end

-- Counts the entries of a table, its tensors and their bytes.
local function count(root)
  local entries, tensors, bytes, seen = 0, 0, 0, {}
  local function walk(t)
    seen[t] = true
    for _, value in next, t do
      if t == root then entries = entries + 1 end
      if torch.is_tensor(value) then
        tensors, bytes = tensors + 1, bytes + value:to_local():nbytes()
      elseif type(value) == "table" and not seen[value] then
        walk(value)
      end
    end
  end
  walk(root)
  return entries, tensors, bytes
end

local max_columns = 56  -- of the description of a value

local function size_text(bytes)
  if bytes < 1000 then return bytes .. " bytes" end
  if bytes < 1e6 then return ("%.1f kB"):format(bytes / 1e3) end
  return bytes < 1e9 and ("%.1f MB"):format(bytes / 1e6) or ("%.2f GB"):format(bytes / 1e9)
end

local function described(value)
  if torch.is_tensor(value) then
    return "Tensor", pretty.tensor_kind(value) .. "  " .. size_text(value:to_local():nbytes())
  end
  local kind = type(value)
  if kind == "table" then
    local entries, tensors, bytes = count(value)
    local text = entries == 1 and "1 entry" or entries .. " entries"
    return kind, tensors == 0 and text
      or ("%s, %d tensor%s, %s"):format(text, tensors, tensors == 1 and "" or "s", size_text(bytes))
  end
  if kind == "function" then return kind, pretty.signature(value) end
  if kind == "userdata" then
    local class, state = tostring(value):match "^(%S+) ?(.*)$"
    return class, state
  end
  local text = kind == "string" and ("%q"):format(value):gsub("\\\n", "\\n") or tostring(value)
  return kind, text
end

return registry.define("who", [[
who() -> string
Lists the globals you defined, one on each line: name, type and description. A tensor has its
element type, shape, placement if it is sharded, and bytes in this process. A table has the number
of its tensors and their bytes.]], function()
  local rows, widths = {}, { 0, 0 }
  for name, value in next, _G do
    if type(name) == "string" and not of_prompt[name] and at_start[name] ~= value then
      local row = { name, described(value) }
      if #row[3] > max_columns then row[3] = row[3]:sub(1, max_columns - 3) .. "..." end
      rows[#rows + 1] = row
      for i = 1, 2 do widths[i] = math.max(widths[i], #row[i]) end
    end
  end
  table.sort(rows, function(a, b) return a[1] < b[1] end)
  for i, row in ipairs(rows) do
    rows[i] = ("%-" .. widths[1] .. "s  %-" .. widths[2] .. "s  %s"):format(unpack(row))
      :gsub("%s+$", "")
  end
  return #rows > 0 and table.concat(rows, "\n") or "no globals of yours yet: x = 1 makes one"
end)
