--- The frame of the Lua specs: each file calls `testing.test(name, body)` and ends with
--- `testing.finish()`. A failing body does not stop the others. REDCO_TEST_TIMES=1 prints the
--- processor time of each test.
local testing = { passed = 0, failed = 0, names = {} }

--- Whether REDCO_TEST_FULL=1 asks for all tests.
testing.is_full = os.getenv "REDCO_TEST_FULL" ~= nil

--- Returns whether test i of many similar ones runs: the first and then every n-th, or all if
--- `is_full`.
function testing.is_chosen(i, n) return testing.is_full or (i - 1) % n == 0 end

local prints_times = os.getenv "REDCO_TEST_TIMES" ~= nil

-- The seconds that this process and those it has waited for have used.
local function processor_time()
  local file = assert(io.open "/proc/self/stat")
  local fields = file:read("*a"):match ".*%) (.*)"
  file:close()
  local ticks, i = 0, 2
  for field in fields:gmatch "%S+" do
    i = i + 1
    if i >= 14 and i <= 17 then ticks = ticks + tonumber(field) end
  end
  return ticks / 100
end

function testing.test(name, body)
  assert(not testing.names[name], "two tests have the name: " .. name)
  testing.names[name] = true
  local from = prints_times and processor_time()
  local ok, message = xpcall(body, function(e) return debug.traceback(tostring(e), 2) end)
  if from then print(("%6.2f s: %s"):format(processor_time() - from, name)) end
  if ok then
    testing.passed = testing.passed + 1
  else
    testing.failed = testing.failed + 1
    print(("not ok: %s\n  %s"):format(name, tostring(message):gsub("\n", "\n  ")))
  end
end

--- A folder for files, which goes when the tests are finished.
function testing.folder()
  if not testing.own_folder then
    testing.own_folder = os.tmpname()
    os.remove(testing.own_folder)
    assert(os.execute(("mkdir -p '%s'"):format(testing.own_folder)) == 0)
  end
  return testing.own_folder
end

--- Writes a file, into that folder unless `path` names another; returns its path.
function testing.write(path, bytes)
  if path:sub(1, 1) ~= "/" then path = testing.folder() .. "/" .. path end
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
  return path
end

--- Returns the bytes of a file.
function testing.read(path)
  local file = assert(io.open(path, "rb"))
  local bytes = file:read "*a"
  file:close()
  return bytes
end

--- Returns the error that a call raises; fails if it raises none.
function testing.refusal(f, ...)
  local ok, message = pcall(f, ...)
  assert(not ok, "expected an error, but there was none")
  return message
end

--- Fails unless `body` raises an error whose text has every given part (plain text, no pattern).
function testing.expect_error(body, ...)
  local message = tostring(testing.refusal(body))
  for _, part in ipairs { ... } do
    if not message:find(part, 1, true) then
      error(("expected an error with %q, got:\n%s"):format(part, message), 2)
    end
  end
  return message
end

--- Fails unless two tensors (or a tensor and nested tables) agree in shape and within the
--- tolerances, as torch.allclose defines them.
function testing.expect_close(actual, expected, rtol, atol)
  local torch = require "redco.torch"
  if not torch.is_tensor(expected) then
    expected = torch.tensor(expected, { dtype = actual.dtype })
  end
  local a, b = table.concat(actual.shape, ","), table.concat(expected.shape, ",")
  if a ~= b then error(("expected the shape [%s], got [%s]"):format(b, a), 2) end
  local close = torch.allclose(actual, expected:to(actual.dtype),
    { rtol = rtol or 1e-5, atol = atol or 1e-7, equal_nan = true })
  if not close then
    local off = actual:double():sub(expected:double()):abs():max():item()
    error(("values differ by up to %g\nexpected %s\ngot %s"):format(off, tostring(expected),
      tostring(actual)), 2)
  end
end

function testing.expect_equal(actual, expected)
  if actual ~= expected then
    error(("expected %s, got %s"):format(tostring(expected), tostring(actual)), 2)
  end
end

function testing.finish()
  if testing.own_folder then os.execute(("rm -rf '%s'"):format(testing.own_folder)) end
  print(("%d passed, %d failed"):format(testing.passed, testing.failed))
  if testing.failed > 0 then os.exit(1) end
  assert(testing.passed > 0, "the file has no test")
end

return testing
