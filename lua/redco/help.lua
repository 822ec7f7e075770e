--- redco.help: describes functions, classes, modules, objects and operators. Its parts are loaded
--- on the first call, so they do not slow down the start of scripts.
local lazy = require "redco.lazy"
local registry = require "redco.registry"

local help = {}

--- Returns the full name of a value in the registry, or the class of an object.
local function name_of_value(x)
  local _, name = registry.text(x)
  if type(name) == "string" then return name end
  local meta = type(x) ~= "string" and getmetatable(x)
  local class = type(meta) == "table" and rawget(meta, "__name")
  return type(class) == "string" and registry.text(class) and class or nil
end

--- Returns the full names that end in `part`, "nn.linear" or "fit"; public ones first, and of them
--- the shortest.
local function names_ending_in(part)
  local surface = require "redco.reference.surface"
  local public, internal = {}, {}
  for _, name in ipairs(registry.names()) do
    if name:sub(-#part) == part and (#name == #part or name:sub(-#part - 1, -#part - 1):find "[.:]")
    then
      local list = surface.page(name) and public or internal
      list[#list + 1] = name
    end
  end
  table.sort(public, function(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
  end)
  for _, name in ipairs(internal) do public[#public + 1] = name end
  return public
end

--- Finds the subject of a question: full names in the registry, the best first, and an operator.
local function find(x)
  local operators = require "redco.reference.operators"
  if type(x) ~= "string" then
    local name = name_of_value(x)
    return name and { name } or {}, type(x) == "function" and not name and operators.read(x) or nil
  end
  lazy.load_all()
  local owner, name = x:match "^(%a+)[.:]([%w_]+)$"
  if owner ~= "torch" and owner ~= "Tensor" then name = not x:find "[.:]" and x or nil end
  local operator = name and operators.read(name)
  if operator and owner == "Tensor" then operator.full_name = "Tensor:" .. name end
  if registry.text(x) then return { x }, operator end
  return names_ending_in(x), operator
end

--- `x` is a value or a name: "torch.matmul", "Tensor:sum", "redco.Trainer", "fit".
help.text = registry.define("redco.help.text", [[
text(value) -> string or nil
Returns the text that `help` prints about a value or a name; nil if there is none.]], function(x)
  local names, operator = find(x)
  local is_word = type(x) == "string" and not x:find "[.:]"
  local similar = is_word and require "redco.reference.search".similar(x) or {}
  local topic = is_word and require "redco.reference.topics".line(x) or nil
  return require "redco.reference.screen".text(names, operator, similar, topic)
end)

help.arguments = registry.define("redco.help.arguments", [[
arguments(value) -> list of strings
Returns the names of the named arguments of a function or an operator, given as for `help`; {} if
there are none.]], function(x)
  local names, operator = find(x)
  local found, seen = {}, {}
  local function add(arguments, all)
    for _, argument in ipairs(arguments) do
      local name = argument.name
      if (all or argument.is_named) and name ~= "..." and name ~= "self" and not seen[name] then
        seen[name] = true
        found[#found + 1] = name
      end
    end
  end
  if names[1] then
    local read = require "redco.reference.surface".read(names[1])
    if not read.is_list then add(read.arguments) end
  elseif operator then
    for _, overload in ipairs(operator.overloads) do add(overload.arguments, true) end
  end
  return found
end)

help.search = registry.define("redco.help.search", [[
search(query: string) -> string or nil
Returns the list that `help` prints about a text that is no name: entries whose name, arguments or
text contain the words. nil if there are none.]], function(query)
  return require "redco.reference.search".text(query, help.text(query) ~= nil)
end)

local function text_about(x)
  local text = help.text(x)
  if text then return text end
  if type(x) ~= "string" then return "there is no help for " .. tostring(x) end
  return help.search(x) or require "redco.reference.search".missing(x)
end

local function print_help(...)
  local show = require "redco.repl.output".show
  if select("#", ...) == 0 then return show(require "redco.reference.screen".overview()) end
  show(text_about((...)))
end

setmetatable(help, {
  __call = function(_, ...) return print_help(...) end,
  __tostring = function()
    return 'help() lists all modules and classes; help(x) or help "fit" describes a value or a name'
  end,
})

return registry.define("redco.help", [[
redco.help
Prints the documentation of a value or a name. Examples: `help(redco.nn.linear)`, `help(x)` of any
object, `help "torch.matmul"`, `help "Tensor:sum"`, `help "fit"`. For ATen's operators it prints the
schemas and the ways to call them from Lua. Any other text searches the reference:
`help "learning rate"`. `help()` lists all modules and classes.]], help)
