--- Finds comparisons of a tensor with a number in the text of a script. In Lua values of two types
--- are never equal, without a call of a metamethod, so `x == 1` is false for every tensor x.
local warn = require "redco.warn"

local function set_of(words)
  local set = {}
  for word in words:gmatch "%S+" do set[word] = true end
  return set
end

-- Functions of redco.torch, and methods, that return exactly one tensor.
local functions = set_of [[abs add all amax amin any arange argmax argmin argsort bmm bool cat clamp
  clone contiguous cumsum detach div double empty eq exp eye flatten float float16 full ge gelu
  gather gt half index_select int le linspace log log_softmax logical_and logical_not logical_or
  long lt masked_fill matmul mean mul narrow ne neg nonzero norm ones ones_like permute pow prod rand
  randint randn relu reshape round select sigmoid sign softmax sqrt square squeeze stack std sub sum
  t tanh tensor transpose tril triu unsqueeze var view where zeros zeros_like]]

local closing = { [")"] = "(", ["]"] = "[", ["}"] = "{" }
local opening = { ["("] = ")", ["["] = "]", ["{"] = "}" }
local arithmetic = set_of "+ - * / ^ %"
local continues = set_of "+ - * / ^ % .. : . [ ( {"

local function long_bracket(code, position)
  local level = code:match("^%[(=*)%[", position)
  if not level then return nil end
  local _, last = code:find("]" .. level .. "]", position, true)
  return last or #code
end

-- Returns the end of the string that begins at `position`.
local function end_of_string(code, position)
  local quote, at = code:sub(position, position), position + 1
  while at <= #code do
    local c = code:sub(at, at)
    if c == quote or c == "\n" then return at end
    at = at + (c == "\\" and 2 or 1)
  end
  return #code
end

-- Returns the tokens of a script, {kind, text, line}, without comments.
local function tokens_of(code)
  local tokens, position, line = {}, 1, 1
  while position <= #code do
    local first = position
    local kind, last, _
    if code:find("^%-%-", position) then
      last = long_bracket(code, position + 2) or (code:find("\n", position, true) or #code + 1) - 1
    elseif code:find("^%s", position) then
      _, last = code:find("^%s+", position)
    elseif code:find("^[%a_]", position) then
      kind, _, last = "name", code:find("^[%w_]+", position)
    elseif code:find("^%.?%d", position) then
      kind, _, last = "number", code:find("^[%w.]+", position)
      if code:find("^0[xX]", position) == nil and code:sub(first, last):find("[eE]$") then
        _, last = code:find("^[%w.]+[+-]?%d*", position)
      end
    elseif code:find("^[\"']", position) then
      kind, last = "string", end_of_string(code, position)
    elseif long_bracket(code, position) then
      kind, last = "string", long_bracket(code, position)
    else
      kind, _, last = "operator", code:find("^[=~<>]=", position)
      if not last then _, last = code:find("^%.+", position) end
      last = last or position
    end
    local text = code:sub(first, last)
    if kind then tokens[#tokens + 1] = { kind = kind, text = text, line = line } end
    line = line + select(2, text:gsub("\n", ""))
    position = last + 1
  end
  return tokens
end

-- Returns the position of the bracket that belongs to the one at `i`, looking by `step`.
local function partner(tokens, i, brackets, step)
  local own, other, depth = tokens[i].text, brackets[tokens[i].text], 0
  while tokens[i] do
    local text = tokens[i].kind == "operator" and tokens[i].text
    if text == own then depth = depth + 1 end
    if text == other then depth = depth - 1 end
    if depth == 0 then return i end
    i = i + step
  end
end

local function is(token, text) return token and token.kind ~= "string" and token.text == text end

-- Whether the expression that ends with token i is a tensor.
local function ends_tensor(tokens, i, tensors)
  local token = tokens[i]
  if not token or token.kind == "string" then return false end
  if token.kind == "name" then
    local before = tokens[i - 1]
    return tensors[token.text] and not (is(before, ".") or is(before, ":") or is(before, "#"))
  end
  local first = closing[token.text] and partner(tokens, i, closing, -1)
  if not first then return false end
  if token.text == "]" then return ends_tensor(tokens, first - 1, tensors) end
  local name = tokens[first - 1]
  if not name or name.kind ~= "name" or not functions[name.text] then return false end
  return is(tokens[first - 2], ":")
    or is(tokens[first - 2], ".") and is(tokens[first - 3], "torch")
      and not is(tokens[first - 4], "#")
end

-- Whether the expression that begins with token i is a tensor: torch.f(...):g(...) or a variable
-- that holds a tensor, also in arithmetic.
local function begins_tensor(tokens, i, tensors)
  if is(tokens[i], "torch") and is(tokens[i + 1], ".") then
    if not functions[(tokens[i + 2] or {}).text] then return false end
    i = i + 3
  elseif tokens[i] and tokens[i].kind == "name" and tensors[tokens[i].text] then
    i = i + 1
    if not is(tokens[i], ":") then return arithmetic[(tokens[i] or {}).text] or false end
    if not functions[(tokens[i + 1] or {}).text] then return false end
    i = i + 2
  else
    return false
  end
  while true do
    if not (is(tokens[i], "(") or is(tokens[i], "{")) then return false end
    i = partner(tokens, i, opening, 1)
    if not i then return false end
    i = i + 1
    if not is(tokens[i], ":") then break end
    if not functions[(tokens[i + 1] or {}).text] then return false end
    i = i + 2
  end
  local after = tokens[i]
  return not after or after.kind == "name" and after.text ~= "and" and after.text ~= "or"
    or arithmetic[after.text] or is(after, ";") or is(after, "end")
end

-- Forgets the names of parameters and of loops, and those of an assignment to several.
local function forget(tokens, i, tensors, last)
  while tokens[i] and not is(tokens[i], last) do
    tensors[tokens[i].text] = nil
    i = i + 1
  end
end

--- Shows a warning for each comparison of a tensor with a number or a boolean in a script.
return function(code, path)
  local tokens, tensors = tokens_of(code), {}
  for i, token in ipairs(tokens) do
    local before, after = tokens[i - 1], tokens[i + 1]
    if is(token, "function") then
      forget(tokens, i + 1, tensors, ")")
    elseif is(token, "for") then
      forget(tokens, i + 1, tensors, "do")
    elseif is(token, "local") then
      forget(tokens, i + 1, tensors, "=")
    elseif is(token, "=") and before and before.kind == "name" and not is(tokens[i - 2], ".")
      and not is(tokens[i - 2], ",") and not is(tokens[i - 2], "{") then
      tensors[before.text] = begins_tensor(tokens, i + 1, tensors) or nil
    elseif is(token, "==") or is(token, "~=") then
      local literal = is(after, "-") and i + 2 or i + 1
      local value = tokens[literal]
      local is_literal = value
        and (value.kind == "number" or is(value, "true") or is(value, "false"))
      local next_text = (tokens[literal + 1] or {}).text
      local number = (literal > i + 1 and "-" or "") .. (value and value.text or "")
      if is_literal and not continues[next_text] and ends_tensor(tokens, i - 1, tensors) then
        warn("%s:%d: `%s %s` is %s for every tensor: x:%s(%s) compares its elements, and x:item() "
          .. "is the number of one element", path, token.line, token.text, number,
          token.text == "==" and "false" or "true", token.text == "==" and "eq" or "ne", number)
      end
    end
  end
end
