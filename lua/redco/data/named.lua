--- Errors of memory that name the file.
local fail = require "redco.fail"

local of_memory = { "not enough memory", "out of memory", "can't allocate memory",
  "string length overflow" }

local function results(path, ok, ...)
  if ok then return ... end
  local message = tostring((...))
  for _, text in ipairs(of_memory) do
    if message:find(text, 1, true) then
      fail("%s: the file, or what it unpacks to, is larger than the memory: %s", path,
        message:gsub("^[^ ]*:%d+: ", ""))
    end
  end
  error((...), 0)
end

--- Calls `f(...)`, which reads or decodes the file at `path`. An error of memory names the file.
return function(path, f, ...) return results(path, pcall(f, ...)) end
