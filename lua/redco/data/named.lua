--- Errors of memory that name the file.
local fail = require "redco.fail"
local without_position = require "redco.without_position"

local of_memory = { "not enough memory", "out of memory", "can't allocate memory",
  "string length overflow" }

local function is_of_memory(message)
  for _, text in ipairs(of_memory) do
    if message:find(text, 1, true) then return true end
  end
end

local function results(place, first, ok, ...)
  if ok then return ... end
  local message = tostring((...))
  if is_of_memory(message) then
    if type(place) == "function" then place = place(first) end
    if not message:find(place, 1, true) then
      fail("%s: the file, or what it unpacks to, is larger than the memory: %s", place,
        without_position(message))
    end
  end
  error((...), 0)
end

--- Calls `f(first, ...)`, which reads or decodes a file. An error of memory names its `place`: the
--- path, or what the function `place` returns for `first`.
return function(place, f, first, ...) return results(place, first, pcall(f, first, ...)) end
