--- Completion at the cursor.
local help = require "redco.help"
local members = require "redco.repl.members"
local registry = require "redco.registry"

local keywords = [[and break do else elseif end false for function goto if in local nil not or repeat
return then true until while]]

local function end_of_string(text, at)
  local quote = text:sub(at, at)
  local i = at + 1
  while i <= #text do
    local c = text:sub(i, i)
    if c == quote then return i end
    i = i + (c == "\\" and 2 or 1)
  end
end

local function end_of_long(text, level, from)
  local _, last = text:find("]" .. level .. "]", from, true)
  return last
end

--- Returns the brackets that are open at the end of a text, innermost last, each { bracket,
--- position }. If the text ends in a string, returns nil and the position of its quote. If it ends
--- in a comment or a long string, returns nil and "text".
local function scan(text)
  local open, i = {}, 1
  while i <= #text do
    local from = text:find("[%-%[\"'(){}%]]", i)
    if not from then break end
    local c = text:sub(from, from)
    local dashes, level, body = text:match("^(%-?%-?)%[(=*)%[()", from)
    local last = from
    if level and #dashes ~= 1 then
      last = end_of_long(text, level, body)
      if not last then return nil, "text" end
    elseif text:find("^%-%-", from) then
      last = text:find("\n", from, true)
      if not last then return nil, "text" end
    elseif c == '"' or c == "'" then
      last = end_of_string(text, from)
      if not last then return nil, from end
    elseif c:find "[({%[]" then
      open[#open + 1] = { c, from }
    elseif c ~= "-" then
      open[#open] = nil
    end
    i = last + 1
  end
  return open
end

-- Returns the name at the end of the text, "redco.optim.adamw" or "x:sum".
local function callee(text)
  return text:match "([%a_][%w_.:]*)%s*$"
end

--- Returns the function whose named arguments are in the innermost braces, if a key may come next.
local function called(text, open, word_start)
  local innermost, outer = open[#open], open[#open - 1]
  if not innermost or innermost[1] ~= "{" then return end
  if not text:sub(1, word_start - 1):find "[{,;]%s*$" then return end
  local before = text:sub(1, innermost[2] - 1)
  if callee(before) then return callee(before) end
  if outer and outer[1] == "(" and before:find "[(,]%s*$" then
    return callee(text:sub(1, outer[2] - 1))
  end
end

local function beginning_with(prefix, names, suffix)
  local found = {}
  for _, name in ipairs(names) do
    if name:sub(1, #prefix) == prefix then found[#found + 1] = name .. (suffix or "") end
  end
  return found
end

local function is_public_module(name)
  local surface = require "redco.reference.surface"
  local _, full_name = registry.text(package.loaded[name])
  local is_public = full_name and surface.is_group(full_name) and surface.page(full_name)
  return is_public and (full_name == name or "redco." .. full_name == name)
end

-- Of this library's modules only the public ones.
local function module_names(prefix)
  local names = {}
  for _, loaders in ipairs { package.preload, package.loaded } do
    for name in next, loaders do
      if type(name) == "string" and (not name:find "^redco%." or is_public_module(name)) then
        names[#names + 1] = name
      end
    end
  end
  return beginning_with(prefix, names)
end

local function globals(prefix)
  local found = members.names(_G, ".", prefix)
  for word in keywords:gmatch "%S+" do
    if word:sub(1, #prefix) == prefix then found[#found + 1] = word end
  end
  return found
end

-- Lists the names that may follow the owner before the cursor.
local function names(text)
  local path = text:match "[%w_.:]*$"
  if path:find "^%d" then return {}, path end
  local owner, separator, prefix = path:match "^(.*)([.:])([%w_]*)$"
  if not owner then return globals(path), path end
  if owner == "" then
    -- The result of a call is unknown; most often it is a tensor.
    local is_result = separator == ":" and text:sub(1, -#path - 1):find "[)}%]]%s*$"
    return is_result and members.of_class("Tensor", ":", prefix) or {}, prefix
  end
  local value = members.resolve(owner)
  return value ~= nil and members.names(value, separator, prefix) or {}, prefix
end

-- Names that begin with an underscore are offered only if the prefix has one.
local function sorted_once(list, prefix)
  table.sort(list)
  local found = {}
  for _, name in ipairs(list) do
    local is_private = name:find "^_" and not prefix:find "^_"
    if not is_private and name ~= found[#found] then found[#found + 1] = name end
  end
  return found
end

--- Returns a position in `line` and a sorted list of candidates; each may replace the text between
--- that position and the byte `cursor`. The third result, if any, is the beginning of a file name,
--- which the caller must complete. `pending` has the lines before this one.
local function complete(line, cursor, pending)
  local lines = pending and pending .. "\n" or ""
  local text = lines .. line:sub(1, cursor)
  local open, quote = scan(text)
  if quote == "text" then return cursor + 1, {} end
  if quote then
    local prefix, before = text:sub(quote + 1), text:sub(1, quote - 1)
    local start = cursor + 1 - #prefix
    if before:find "%f[%w_]require%s*%(?%s*$" then
      return start, sorted_once(module_names(prefix), prefix)
    end
    local owner = before:match "([%a_][%w_.]*)%[$"
    local value = owner and members.resolve(owner)
    if type(value) == "table" then
      return start, sorted_once(members.names(value, ".", prefix), prefix)
    end
    return start, {}, prefix
  end
  local word = text:match "[%w_]*$"
  local fn = called(text, open, #text + 1 - #word)
  if fn then
    for _, subject in ipairs(members.subjects(fn)) do
      local keys = beginning_with(word, help.arguments(subject), " = ")
      if #keys > 0 then return cursor + 1 - #word, sorted_once(keys, word) end
    end
  end
  local found, prefix = names(text)
  return cursor + 1 - #prefix, sorted_once(found, prefix)
end

return complete
