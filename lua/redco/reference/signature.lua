--- Reads the texts of the registry, which all have one form:
---
---     name(argument, argument [its shape], argument: its type, argument = default,
---       {named, named = default}, ...) -> results
---     What it does, in paragraphs with blank lines between them.
---       argument: what more there is to say of it, over as many lines as it takes;
---         those that go on are indented further
---
--- `name{...}` takes nothing but named arguments, or with "..." among them a list. A class or a
--- property is `Name {field, field: its type}` or `name: type`, a module its full name alone.
local signature = {}

--- The parts of a text between commas that are in no brackets or quotes.
local function split(text)
  local parts, depth, start, quoted = {}, 0, 1, false
  for i = 1, #text do
    local c = text:sub(i, i)
    if c == '"' then
      quoted = not quoted
    elseif quoted then  -- luacheck: ignore
    elseif c:find "[({[]" then
      depth = depth + 1
    elseif c:find "[)}%]]" then
      depth = depth - 1
    elseif c == "," and depth == 0 then
      parts[#parts + 1] = text:sub(start, i - 1):match "^%s*(.-)%s*$"
      start = i + 1
    end
  end
  local last = text:sub(start):match "^%s*(.-)%s*$"
  if last ~= "" then parts[#parts + 1] = last end
  return parts
end
signature.split = split

local function read_argument(text)
  local name, rest = text:match "^([%w_]+)(.*)$"
  if not name then return { name = text } end  -- ...
  local before, default = rest:match "^(.-)%s*=%s*(.*)$"
  rest = before or rest
  return {
    name = name, default = default, type = rest:match "^:%s*(.+)$", shape = rest:match "%[.*%]",
  }
end

-- The lines of the signature are those until its brackets are closed.
local function split_head(text)
  local head, rest = text:match "^([^\n]*)\n?(.*)$"
  local function is_open()
    local plain = head:gsub('"[^"]*"', "")
    local _, opened = plain:gsub("[({[]", "")
    local _, closed = plain:gsub("[)}%]]", "")
    return opened > closed or plain:find "%->%s*$"
  end
  while rest ~= "" and is_open() do
    local line, after = rest:match "^%s*([^\n]*)\n?(.*)$"
    head, rest = head .. " " .. line, after
  end
  return head, rest
end

-- The prose, as paragraphs, and the texts of the arguments by name, in their order.
local function read_body(body)
  local paragraphs, described, item = {}, {}, nil
  local open = false
  for line in (body .. "\n"):gmatch "([^\n]*)\n" do
    local names, text = line:match "^  ([%w_.][%w_., ]*):%s+(.*)$"
    if names then
      item = { names = names, text = text }
      described[#described + 1] = item
      for _, name in ipairs(split(names)) do described[name] = text end
      open = false
    elseif item and line:find "^    " then
      local more = " " .. line:match "^%s*(.*)$"
      item.text = item.text .. more
      for _, name in ipairs(split(item.names)) do described[name] = item.text end
    elseif line == "" then
      open = false
    else
      if open then
        paragraphs[#paragraphs] = paragraphs[#paragraphs] .. "\n" .. line
      else
        paragraphs[#paragraphs + 1] = line
      end
      open, item = true, nil
    end
  end
  return paragraphs, described
end

local function read_arguments(inside, is_named, all)
  for _, part in ipairs(split(inside)) do
    local table_of_named = part:match "^{(.*)}$"
    if table_of_named then
      read_arguments(table_of_named, true, all)
    else
      local argument = read_argument(part)
      argument.is_named = is_named
      all[#all + 1] = argument
    end
  end
  return all
end

--- What a text says: `head` (the signature on one line), `kind` ("function", "class", "property"
--- or "module"), `arguments` (name, type, default, shape, is_named, text; a class' fields),
--- `is_list` (called with a list), `results` (texts), `paragraphs` and `described` (the lines of
--- arguments).
function signature.read(text)
  local head, body = split_head(text)
  local paragraphs, described = read_body(body)
  local read = { head = head, paragraphs = paragraphs, described = described, arguments = {},
    results = {} }
  local name, brackets, after = head:match "^([%w_.]+)%s*(%b())(.*)$"
  if not name then name, brackets, after = head:match "^([%w_.]+)(%b{})(.*)$" end
  local fields = head:match "^[%w_]+ (%b{})$"
  read.name = name or head:match "^[%w_.]+"
  if fields then
    read.kind, brackets = "class", fields
  elseif brackets then
    read.kind = "function"
    local results = after:match "^%s*%->%s*(.*)$"
    -- A function that is returned has results of its own, with commas.
    read.results = not results and {} or results:find "^function%(" and { results }
      or split(results)
  else
    read.type = head:match "^[%w_]+:%s*(.+)$"
    read.kind = read.type and "property" or "module"
    return read
  end
  read_arguments(brackets:sub(2, -2), brackets:sub(1, 1) == "{" and not fields, read.arguments)
  local last = read.arguments[#read.arguments]
  read.is_list = brackets:sub(1, 1) == "{" and last ~= nil and last.name == "..."
  for _, argument in ipairs(read.arguments) do argument.text = described[argument.name] end
  return read
end

--- The signature of what `signature.read` gave, with the names alone: "fit(self, {...})".
function signature.short(read)
  if read.kind ~= "function" then return read.head end
  local names, has_named = {}, false
  for _, argument in ipairs(read.arguments) do
    if not argument.is_named then names[#names + 1] = argument.name end
    has_named = has_named or argument.is_named
  end
  local only_named = read.head:find "^[%w_.]+{"
  if has_named and not only_named then names[#names + 1] = "{...}" end
  return read.name .. (only_named and "{...}" or "(" .. table.concat(names, ", ") .. ")")
    .. (#read.results > 0 and " -> " .. table.concat(read.results, ", ") or "")
end

return signature
