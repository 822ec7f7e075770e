--- Reads the schemas of ATen's operators: `sum(Tensor self, *, ScalarType? dtype=None) -> Tensor`.
local signature = require "redco.reference.signature"
local torch = require "redco.torch"

local operators = {}

-- The type names of signatures, by the types of schemas.
local words = {
  Tensor = "Tensor", Scalar = "number", SymInt = "integer", int = "integer", float = "number",
  bool = "boolean", str = "string", ScalarType = "string", Device = "string", Layout = "string",
  MemoryFormat = "string", Generator = "Generator",
}

local function type_of(text)
  local element, brackets = text:gsub("%b()", ""):match "^([%w_]+)%??(%[?%d*%]?)"
  local word = words[element]
  if not word then return "any" end
  if brackets == "" then return word end
  -- A number may stand for a list of numbers, and a call that ends in a list may omit its braces.
  local list = "list of " .. word .. "s"
  return (word == "integer" or word == "number") and word .. " or " .. list or list
end

local function read_argument(text, is_named)
  local before, default = text:match "^(.-)=(.*)$"
  local type, name = (before or text):match "^(.*)%s([%w_]+)$"
  return {
    name = name, type = type_of(type), is_named = is_named or default ~= nil,
    default = default, is_optional = default ~= nil or type:find "%?$" ~= nil,
    can_be_positional = default ~= nil and not is_named,
    is_out = is_named and type:find "!" ~= nil,
  }
end

local function read_overload(text)
  local inside, results = text:match "^[%w_.]+(%b()) %-> (.*)$"
  local overload = { schema = text, arguments = {}, results = {} }
  local keyword_only = false
  for _, part in ipairs(signature.split(inside:sub(2, -2))) do
    if part == "*" then
      keyword_only = true
    else
      local argument = read_argument(part, keyword_only)
      overload.arguments[#overload.arguments + 1] = argument
      overload.is_out = overload.is_out or argument.is_out
    end
  end
  local several = results:match "^%((.*)%)$"
  for _, result in ipairs(signature.split(several or results)) do
    if result ~= "" then overload.results[#overload.results + 1] = type_of(result) end
  end
  return overload
end

--- Describes an operator, given its name or function: `name`, `full_name` ("Tensor:sum" for a
--- method) and `overloads`. Each overload has its `schema`, `arguments` as from `signature.read`,
--- `results`, and `is_out`, whether it writes to `out`. Returns nil for anything else.
function operators.read(name_or_function)
  local schemas, full_name = torch.schemas(name_or_function)
  if not schemas then return nil end
  local operator = { name = full_name:match "[^.:]+$", full_name = full_name, overloads = {} }
  for i, schema in ipairs(schemas) do operator.overloads[i] = read_overload(schema) end
  return operator
end

--- Returns the overloads without `out`, or, if there are none, all.
function operators.plain(operator)
  local plain = {}
  for _, overload in ipairs(operator.overloads) do
    if not overload.is_out then plain[#plain + 1] = overload end
  end
  return #plain > 0 and plain or operator.overloads
end

--- Returns the signature of an overload, `sum(self: Tensor, {dtype: string}) -> Tensor`.
function operators.call(operator, overload)
  local positional, named = {}, {}
  for _, argument in ipairs(overload.arguments) do
    local list = argument.is_named and named or positional
    list[#list + 1] = argument.name .. ": " .. argument.type
  end
  if #named > 0 then positional[#positional + 1] = "{" .. table.concat(named, ", ") .. "}" end
  local results = #overload.results > 0 and " -> " .. table.concat(overload.results, ", ") or ""
  return ("%s(%s)%s"):format(operator.name, table.concat(positional, ", "), results)
end

return operators
