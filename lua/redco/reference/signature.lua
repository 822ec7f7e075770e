--- Parses the help texts of the registry, which all have this form:
---
---     name(argument, argument [its shape], argument: its type, argument = default,
---       {named, named = default}, ...) -> results
---     A description, in paragraphs with blank lines between them.
---       argument: details, over several lines if necessary;
---         further lines are indented more
---
--- `name{...}` takes only named arguments, or a list if "..." is among them. A class is
--- `Name {field, field: its type}`, a property `name: type`, a module only its full name.
local signature = {}

-- Replaces quoted strings by blanks.
local function unquoted(text)
  return (text:gsub('"[^"]*"', function(quoted) return (" "):rep(#quoted) end))
end

--- Splits a text at commas outside brackets and quotes.
function signature.split(text)
  local parts, depth, start = {}, 0, 1
  for i, c in unquoted(text):gmatch "()([%(%){}%[%],])" do
    if c == "," then
      if depth == 0 then
        parts[#parts + 1] = text:sub(start, i - 1):match "^%s*(.-)%s*$"
        start = i + 1
      end
    else
      depth = depth + (c:find "[({[]" and 1 or -1)
    end
  end
  local last = text:sub(start):match "^%s*(.-)%s*$"
  if last ~= "" then parts[#parts + 1] = last end
  return parts
end

local split = signature.split

local function read_argument(text)
  local name, rest = text:match "^([%w_]+)(.*)$"
  if not name then return { name = text } end  -- ...
  local before, default = rest:match "^(.-)%s*=%s*(.*)$"
  rest = before or rest
  return {
    name = name, default = default, type = rest:match "^:%s*(.+)$", shape = rest:match "%[.*%]",
  }
end

-- Splits off the signature: the lines until its brackets are closed.
local function split_head(text)
  local head, rest = text:match "^([^\n]*)\n?(.*)$"
  local function is_open()
    local plain = unquoted(head)
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

-- Returns the prose as a list of paragraphs, and the described arguments as a list of {names,
-- text}.
local function read_body(body)
  local paragraphs, described = {}, {}
  local is_open = false  -- whether the next line continues the last paragraph
  for line in (body .. "\n"):gmatch "([^\n]*)\n" do
    local names, text = line:match "^  (%w[%w_, ]*): (.*)$"
    local more = #described > 0 and line:match "^    (.*)$"
    if names then
      described[#described + 1] = { names = names, text = text }
    elseif more then
      described[#described].text = described[#described].text .. " " .. more
    elseif is_open and line ~= "" then
      paragraphs[#paragraphs] = paragraphs[#paragraphs] .. "\n" .. line
    elseif line ~= "" then
      paragraphs[#paragraphs + 1] = line
    end
    is_open = line ~= "" and not names and not more
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

-- A returned function has results itself, separated by commas.
local function read_results(after)
  local results = after:match "^%s*%->%s*(.*)$"
  if not results then return {} end
  return results:find "^function%(" and { results } or split(results)
end

local function text_of(name, described)
  for _, item in ipairs(described) do
    for _, each in ipairs(split(item.names)) do
      if each == name then return item.text end
    end
  end
end

--- Parses a text. Returns `head` (the signature on one line), `name`, `kind` ("function", "class",
--- "property" or "module"), `paragraphs` and `described`, the described arguments. Functions and
--- classes also have `arguments` (name, type, default, shape, is_named, text); those of a class are
--- its fields. Functions have `results` (texts), `is_braced` (called with braces only) and
--- `is_list` (called with a list). Properties have a `type`.
function signature.read(text)
  local head, body = split_head(text)
  local paragraphs, described = read_body(body)
  local read = { head = head, name = head:match "^[%w_.]+", paragraphs = paragraphs,
    described = described, arguments = {}, results = {} }
  local list, after = head:match "^[%w_.]+(%b())(.*)$"
  if not list then
    list, after = head:match "^[%w_.]+(%b{})(.*)$"
    read.is_braced = list ~= nil
  end
  local fields = head:match "^%w+ (%b{})$"
  if list then
    read.kind, read.results = "function", read_results(after)
  elseif fields then
    read.kind = "class"
  else
    read.type = head:match "^[%w_]+: (.+)$"
    read.kind = read.type and "property" or "module"
  end
  read_arguments((list or fields or ""):sub(2, -2), read.is_braced, read.arguments)
  local last = read.arguments[#read.arguments]
  read.is_list = read.is_braced and last ~= nil and last.name == "..."
  for _, argument in ipairs(read.arguments) do argument.text = text_of(argument.name, described) end
  return read
end

--- Returns the signature of a result of `signature.read` with names only: "fit(self, {...})".
function signature.short(read)
  if read.kind ~= "function" then return read.head end
  local names, has_named = {}, false
  for _, argument in ipairs(read.arguments) do
    if not argument.is_named then names[#names + 1] = argument.name end
    has_named = has_named or argument.is_named
  end
  if has_named and not read.is_braced then names[#names + 1] = "{...}" end
  return read.name .. (read.is_braced and "{...}" or "(" .. table.concat(names, ", ") .. ")")
    .. (#read.results > 0 and " -> " .. table.concat(read.results, ", ") or "")
end

return signature
