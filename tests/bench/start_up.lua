-- Seconds from starting the program to its end, with nothing to do. One JSON line.
local clock = require "clock"

local program = arg[1] or "build/release/redco-lua"
local times = {}
for i = 1, 11 do
  local start = clock.now()
  assert(os.execute(program .. " -e ''") == 0, program .. " cannot be run; name it as the argument")
  times[i] = clock.now() - start
end
print(('{"name": "start_up", "seconds": %.4f}'):format(clock.median(times)))
