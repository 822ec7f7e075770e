--- The memory of this process.
local ffi = require "ffi"

ffi.cdef [[
  int malloc_trim(size_t);
  void MallocExtension_ReleaseFreeMemory(void);
]]

local process_memory = {}

--- Returns memory that was freed to the system: what malloc keeps would hide what a body takes.
function process_memory.release()
  ffi.C.malloc_trim(0)
  pcall(function() ffi.C.MallocExtension_ReleaseFreeMemory() end)  -- no sanitizer has it
end

--- The sum of a field, in bytes, of a file of /proc/self: "status" or, of all mappings or of those
--- whose path has the text, "smaps".
function process_memory.bytes(file, field, mapping)
  local total, counts = 0, mapping == nil
  for line in io.lines("/proc/self/" .. file) do
    if mapping and line:find "^%x+%-%x+ " then counts = line:find(mapping, 1, true) ~= nil end
    local kb = counts and line:match("^" .. field .. ":%s+(%d+)")
    if kb then total = total + kb * 1024 end
  end
  return total
end

return process_memory
