--- Formats texts for `help`, in lines of at most 80 columns.
local examples = require "redco.reference.examples"
local operators = require "redco.reference.operators"
local pytorch = require "redco.reference.pytorch"
local surface = require "redco.reference.surface"
local wrap_lines = require "redco.reference.wrap"

local screen = {}

local function wrap(lines, text, first, hanging)
  wrap_lines(lines, 80, text, first, hanging)
end

-- Adds, for each member of a group, its short signature and its first sentence.
local function add_members(lines, group)
  for _, full_name in ipairs(surface.members(group)) do
    wrap(lines, surface.short(full_name), "  ", "      ")
    wrap(lines, surface.summary(surface.read(full_name)), "    ", "    ")
  end
end

local function add_example(lines, full_name)
  local example = examples.of(full_name)
  if not example then return end
  lines[#lines + 1] = example.after and ("Example, after that of %s:"):format(example.after)
    or "Example:"
  for line in example.code:gmatch "[^\n]+" do lines[#lines + 1] = "  " .. line end
end

local function add_address(lines, full_name)
  local address = pytorch.address(full_name)
  if address then
    lines[#lines + 1] = "In PyTorch:"
    lines[#lines + 1] = "  " .. address
  end
end

local function add_own(lines, full_name)
  local read = surface.read(full_name)
  wrap(lines, surface.signature(full_name), "", "    ")
  for i, paragraph in ipairs(read.paragraphs) do
    if i > 1 then lines[#lines + 1] = "" end
    wrap(lines, paragraph)
  end
  for _, item in ipairs(read.described) do
    wrap(lines, item.names .. ": " .. item.text, "  ", "    ")
  end
  add_example(lines, full_name)
  add_address(lines, full_name)
  local constructor = surface.constructor(full_name)
  if constructor then wrap(lines, "Made by " .. constructor .. ".") end
  if surface.is_group(full_name) then
    lines[#lines + 1] = ""
    add_members(lines, full_name)
  end
end

local function add_operator(lines, operator)
  local is_method = operator.full_name:find "^Tensor:" ~= nil
  wrap(lines, operator.full_name .. ": an operator of ATen, as in PyTorch. Calls:")
  for _, overload in ipairs(operators.plain(operator)) do
    wrap(lines, operators.call(operator, overload), "  ", "      ")
  end
  wrap(lines, "Pass arguments by position, or by name in a table that comes last. Arguments in "
    .. "braces are optional. " .. (is_method and "`self` is the tensor before the colon. " or "")
    .. "The results are written to the tensors in `out`.")
  lines[#lines + 1] = "Schemas:"
  for _, overload in ipairs(operator.overloads) do wrap(lines, overload.schema, "  ", "      ") end
  add_address(lines, operator.full_name)
end

--- Returns the text about full names, the best first, and an operator; nil if there are none. It
--- refers to the `similar` names and ends with the line `topic`, if there is one.
function screen.text(names, operator, similar, topic)
  local lines = {}
  if names[1] then
    add_own(lines, names[1])
  elseif operator then
    add_operator(lines, operator)
  else
    return nil
  end
  local others = { unpack(names, 2) }
  if names[1] and operator then others[#others + 1] = "the operator " .. operator.full_name end
  for _, name in ipairs(similar) do others[#others + 1] = name end
  if #others > 0 then
    lines[#lines + 1] = ""
    wrap(lines, "See also " .. table.concat(others, ", ") .. ".")
  end
  if topic then wrap(lines, topic) end
  return table.concat(lines, "\n")
end

--- Returns a list of all modules and classes, one on each line.
function screen.overview()
  local lines = {
    'help(x) describes a function, a module, an object or a name: help "torch.matmul".',
    "Modules and classes:",
  }
  for _, page in ipairs(surface.pages) do
    for i = 2, #page do
      wrap(lines, surface.summary(surface.read(page[i])), ("  %-20s"):format(page[i]),
        (" "):rep(22))
    end
  end
  wrap(lines, ("And ATen's %d operators, as torch.NAME(...) or tensor:NAME(...).")
    :format(#require "redco.torch".operators()))
  return table.concat(lines, "\n")
end

return screen
