-- Milliseconds of a question to `help`: the first one of a process, about a whole module, which loads
-- and reads all texts; then over all names, and of named arguments. One JSON line.
local clock = require "clock"
local redco = require "redco"
local registry = require "redco.registry"

local function milliseconds(f, ...)
  local start = clock.now()
  f(...)
  return (clock.now() - start) * 1e3
end

local help = redco.help
local first = milliseconds(help.text, redco.nn)

local names = registry.names()
for _, name in ipairs(redco.torch.operators()) do names[#names + 1] = "torch." .. name end

-- The best of three runs: others use the machine.
local function measure(f)
  local times = {}
  for i, name in ipairs(names) do
    times[i] = math.min(milliseconds(f, name), milliseconds(f, name), milliseconds(f, name))
  end
  local median = clock.median(times)  -- which sorts them
  return median, times[#times]
end

local text, longest_text = measure(help.text)
local arguments, longest_arguments = measure(help.arguments)
print(('{"name": "help", "names": %d, "first_ms": %.2f, "text_ms": %.3f, "text_max_ms": %.2f, '
  .. '"arguments_ms": %.3f, "arguments_max_ms": %.2f}'):format(#names, first, text, longest_text,
  arguments, longest_arguments))
