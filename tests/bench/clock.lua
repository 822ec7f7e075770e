--- The clocks of the benchmarks.
local ffi = require "ffi"

ffi.cdef [[
typedef struct { long s, ns; } redco_timespec;
int clock_gettime(int clock, redco_timespec* time);
]]

local clock = {}

--- Seconds of a clock that only goes forward.
function clock.now()
  local time = ffi.new "redco_timespec"
  ffi.C.clock_gettime(1, time)
  return tonumber(time.s) + tonumber(time.ns) * 1e-9
end

local function status(field)
  for line in io.lines "/proc/self/status" do
    local kb = line:match("^" .. field .. ":%s+(%d+)")
    if kb then return tonumber(kb) / 1024 end
  end
end

function clock.rss_mb() return status "VmRSS" end
function clock.peak_rss_mb() return status "VmHWM" end

function clock.median(values)
  table.sort(values)
  return values[math.ceil(#values / 2)]
end

return clock
