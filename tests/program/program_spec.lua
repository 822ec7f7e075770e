-- The program redco-lua: what it runs, its flags, exit codes and messages.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local run, shell, write = program.run, program.shell, program.write
local expect_has = program.expect_has

--- Fails unless the run ends with this code and the outputs have the given parts.
local function expect_run(code, out, err, actual_code, actual_out, actual_err)
  if actual_code ~= code then
    error(("expected exit code %d, got %d\n%s%s"):format(code, actual_code, actual_out, actual_err),
      2)
  end
  if out then expect_equal(actual_out, out) end
  if err == "" then expect_equal(actual_err, "") elseif err then expect_has(actual_err, err) end
end

test("script_folder is the folder of the script, as the script was named", function()
  write("folder.lua", 'print(require("redco").script_folder())')
  local code, out = program.shell '"$REDCO_LUA" folder.lua; "$REDCO_LUA" "$PWD/folder.lua"'
  expect_equal(code, 0)
  expect_equal(out, ("./\n%s/\n"):format(program.folder))
  local _, none = program.run { "-e", 'print(require("redco").script_folder())' }
  expect_equal(none, "./\n")
end)

test("a script runs, gets its arguments as ... and arg, and ends with 0", function()
  local path = write("args.lua", [[
local words = { ... }
print(#words, #arg, arg[0])
for i, word in ipairs(words) do print(word, word == arg[i]) end]])
  expect_run(0, ("3\t3\t%s\n-x\ttrue\n--version\ttrue\na b\ttrue\n"):format(path), "",
    run { path, "-x", "--version", "a b" })
  expect_run(0, ("0\t0\t%s\n"):format(path), "", run { path })
end)

test("an error in a script ends with 1 and names file and line", function()
  local path = write("fails.lua", "local x = 1\nerror 'it went wrong'\n")
  local code, out, err = run { path }
  expect_run(1, "", path .. ":2: it went wrong", code, out, err)
  expect_has(err, "stack traceback")
  path = write("fails2.lua", "local t = nil\nlocal function f()\n  return t.x\nend\nprint(f())\n")
  expect_run(1, "", path .. ":3: attempt to index", run { path })
  path = write("fails3.lua", [[
local torch = require "redco.torch"

torch.zeros { 2 }:matmul(torch.zeros { 3 })
]])
  expect_run(1, "", path .. ":3: ", run { path })
  path = write("fails4.lua", "error { code = 5 }\n")
  expect_run(1, "", "table", run { path })
  path = write("fails5.lua", [[
error(setmetatable({}, { __tostring = function() return "as text" end }))
]])
  expect_run(1, "", "as text", run { path })
  path = write("fails6.lua", "error()\n")
  expect_run(1, "", "nil", run { path })
end)

test("a syntax error ends with 1 and names file and line", function()
  local path = write("syntax.lua", "local a = 1\nlocal b = = 2\n")
  expect_run(1, "", path .. ":2:", run { path })
  expect_run(1, "", "-e:1:", run { "-e", "local = 5" })
end)

test("a file that is not there or cannot be read is wrong usage", function()
  expect_run(2, "", "nowhere.lua", run { "nowhere.lua" })
  expect_run(2, "", program.folder, run { program.folder })
end)

test("an empty script does nothing", function()
  local code, out, err = run { write("empty.lua", "") }
  expect_equal(code .. out .. err, "0")
end)

test("os.exit gives its code", function()
  expect_run(7, "", "", run { "-e", "os.exit(7)" })
  expect_run(0, "x\n", "", run { "-e", "print 'x' os.exit(0)" })
  expect_run(0, "", "", run { "-e", "os.exit()" })
end)

test("a first line with #! is passed over, and lines keep their numbers", function()
  local path = write("bang.lua", "#!/usr/bin/env redco-lua\nprint 'ran'\nerror 'line 3'\n")
  expect_run(1, "ran\n", path .. ":3: line 3", run { path })
end)

test("bytecode is refused", function()
  local path = write("code.luac", string.dump(function() return 1 end))
  expect_run(1, "", nil, run { path })
end)

test("-e runs a piece, several in order, before the file", function()
  expect_run(0, "1\n", "", run { "-e", "print(1)" })
  expect_run(0, "1\n2\n", "", run { "-e", "print(1)", "-e", "print(2)" })
  local path = write("third.lua", "print(3, ...)")
  expect_run(0, "1\n3\t-e\n", "", run { "-e", "print(1)", path, "-e" })
  expect_run(1, "", "-e:1: broken", run { "-e", "error 'broken'" })
  expect_run(0, "", "", run { "-e", "" })
end)

test("-l loads a module", function()
  local home = "package.path = '" .. program.folder .. "/?.lua'"
  write("my_module.lua", "print 'loaded' return {}")
  expect_run(0, "loaded\n", "", shell("LUA_PATH='./?.lua' \"$REDCO_LUA\" -l my_module </dev/null"))
  expect_run(0, nil, "", run { "-l", "redco", "-e", home .. " print(package.loaded.redco ~= nil)" })
  local code, out, err = run { "-l", "no_such_module" }
  expect_run(1, "", "no_such_module", code, out, err)
end)

test("- reads the script from the standard input, no file at all reads chunks", function()
  expect_run(0, "in\tx\n", "", run({ "-", "x" }, "print('in', ...)"))
  expect_run(0, "in\n", "", run({}, "print 'in'"))
  expect_run(0, "2\n", "", run({ "-" }, "print(#arg + 2)"))
  expect_run(1, "", "stdin:2: mine", run({ "-" }, "\nerror 'mine'"))
  expect_run(0, "", "", run({ "-" }, ""))
end)

test("--version and --help", function()
  local code, out, err = run { "--version" }
  expect_run(0, nil, "", code, out, err)
  assert(out:find "^redco%-lua %d+%.%d+%.%d+\n$", out)
  code, out, err = run { "--help" }
  expect_run(0, nil, "", code, out, err)
  expect_has(out, "redco-lua", "FILE", "-e", "-l", "-i", "--nproc", "--report-sharding",
    "--version", "--no-strict", "--help")
  code, out = run { "-h" }
  expect_run(0, nil, "", code, out, "")
end)

test("wrong usage ends with 2 and says what", function()
  for _, flag in ipairs { "--nothing", "-x", "--no-such=3" } do
    local code, out, err = run { flag }
    expect_run(2, "", flag:match "^%-+%a+", code, out, err)
    expect_has(err, "redco-lua")
  end
  expect_run(2, "", "-e", run { "-e" })
  expect_run(2, "", "-l", run { "-l" })
end)

test("--no-strict and --no_strict are the same", function()
  local path = write("global.lua", "x = 5\nprint(x, y)\n")
  for _, flag in ipairs { "--no-strict", "--no_strict" } do
    expect_run(0, "5\tnil\n", "", run { flag, path })
  end
end)

test("an undeclared global is an error with its name, file and line", function()
  local path = write("reads.lua", "local a = 1\n\nprint(a, undefined_name)\n")
  expect_run(1, "", path .. ":3: undeclared global 'undefined_name' is read", run { path })
  path = write("writes.lua", "local function f()\n  counter = 1\nend\nf()\n")
  expect_run(1, "", path .. ":2: undeclared global 'counter' is assigned", run { path })
  path = write("own.lua", [[
rawset(_G, "declared", 3)
declared = declared + 1
print(declared, rawget(_G, "no"))
]])
  expect_run(0, "4\tnil\n", "", run { path })
end)

test("flags after the file are the script's own", function()
  local path = write("own_flags.lua", "print(table.concat(arg, ' '))")
  expect_run(0, "--no-strict -i --help -e --nothing\n", "",
    run { path, "--no-strict", "-i", "--help", "-e", "--nothing" })
end)

test("-i: a prompt after the file, expressions printed, chunks over lines, errors go on", function()
  local code, out, err = run({ "-i" }, [[
1 + 1
x = 5
x * 2, "two"
for i = 1, 2 do
  print("line", i)
end
error "an error"
local = 3
torch.ones { 2 }
redco.nn ~= nil
"after"
]])
  expect_equal(code, 0)
  expect_has(out, "2\n10\ntwo\n", "line\t1\nline\t2\n", "tensor([1., 1.])\n", "true\n", "after\n")
  expect_has(err, "an error", "stdin:1:")
  local path = write("before.lua", "rawset(_G, 'made', 'by the file')")
  code, out = run({ "-i", path }, "made\n")
  expect_equal(code, 0)
  expect_has(out, "by the file\n")
  code, out = run({ "-i", "-e", "rawset(_G, 'made', 7)" }, "made\n")
  expect_equal(code, 0)
  expect_equal(out, "7\n")
  code, out = run({ "-i" }, "os.exit(3)\n")
  expect_equal(code, 3)
  assert(out)
end)

test("a piece that is never finished ends with the input", function()
  local code = run({ "-i" }, "for i = 1, 2 do\n")
  expect_equal(code, 0)
end)

-- Starts the script in the background, sends the signals once it has printed a line, and tells how
-- it ended and how long after the first signal.
local function interrupt(script, n_signals)
  local path = write("long.lua", script)
  local _, out, err = shell(([[
set -m
rm -f long.out  # or the "started" of the run before is taken for this one's
"$REDCO_LUA" %s >long.out 2>long.err </dev/null &
pid=$!
for i in $(seq 200); do grep -q started long.out && break; sleep 0.05; done
sleep 0.2
from=$(date +%%s%%N)
for i in $(seq %d); do kill -INT $pid 2>/dev/null; sleep 0.3; done
( sleep 20; kill -KILL $pid ) 2>/dev/null &
wait $pid
echo "$? $(( ($(date +%%s%%N) - from) / 1000000 ))"
kill %%2 2>/dev/null]]):format(path, n_signals or 1))
  local code, milliseconds = out:match "(%d+) (%d+)"
  assert(code, out .. err)
  return tonumber(code), tonumber(milliseconds), program.read(program.folder .. "/long.err"),
    program.read(program.folder .. "/long.out")
end

local training = [[
local redco = require "redco"
local torch = redco.torch
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 1, verbose = false },
  params = { w = torch.randn { 300, 300 } },
  collate_fn = function() return { x = torch.randn { 300, 300 } } end,
  loss_fn = function(_, state, params, batch)
    if state.step == 2 then print "started" io.flush() end
    local x = batch.x
    for _ = 1, 5 do x = torch.tanh(x:matmul(params.w) / 300) end
    return x:square():mean()
  end,
  optimizer = redco.optim.sgd { learning_rate = 1e-3 },
}
local examples = {}
for i = 1, 1000000 do examples[i] = i end
%s
trainer:fit { train_examples = examples, per_device_batch_size = 1, n_epochs = 1 }
]]

test("Ctrl-C during a training step ends the run within a second, with 130", function()
  local code, milliseconds, err = interrupt(training:format "")
  assert(code == 130, ("exit code %d\n%s"):format(code, err))
  assert(milliseconds < 1300, milliseconds .. " ms")  -- 300 of them are the wait after the signal
  expect_has(err, "interrupted")
end)

test("Ctrl-C in a loop of Lua, traced or not, and in one of tensors", function()
  for name, loop in pairs {
    traced = "while true do x = x + 1 end",
    untraced = "jit.off() while true do x = x + 1 end",
    tensors = "local t = require('redco.torch').ones { 10 } while true do t = t + 1 end",
  } do
    local code, milliseconds, err = interrupt("print 'started' io.flush() local x = 0 " .. loop, 2)
    assert(code == 130, ("%s: exit code %d\n%s"):format(name, code, err))
    assert(milliseconds < 1600, ("%s: %d ms"):format(name, milliseconds))
  end
end)

test("Ctrl-C is not taken inside the garbage collection", function()
  -- An error raised by a finalizer surfaces wherever the collection happened to run. What comes
  -- between two of them may end the call that collects, but not time after time.
  local code, err
  for _ = 1, 3 do
    code, _, err = shell(("\"$REDCO_LUA\" %s"):format(write("collects.lua", [[
local torch = require "redco.torch"
local t, garbage = torch.zeros { 1 }, {}
for i = 1, 400000 do garbage[i] = t:view { 1 } end
os.execute "(sleep 0.05; kill -INT $PPID) &"
garbage = nil
if not pcall(collectgarbage) then os.exit(7) end
while true do t = t + 1 end
]])))
    if code ~= 7 then break end
  end
  assert(code == 130, ("exit code %d\n%s"):format(code, err))
end)

test("pcall does not swallow a Ctrl-C of a training for good", function()
  local code, _, err = interrupt(training:format [[
local ok, message = pcall(trainer.train, trainer, { examples = examples,
  per_device_batch_size = 1 })
print("caught", ok, message)
error(message, 0)
]])
  assert(code == 130, ("exit code %d\n%s"):format(code, err))
end)

test("an output that nobody reads does not hang or crash the program", function()
  local path = write("prints.lua", "for i = 1, 100000 do print('line', i) end")
  local _
  local code, out, err = shell(("\"$REDCO_LUA\" %s | head -n 1"):format(path))
  expect_equal(out, "line\t1\n")
  expect_equal(code, 0)
  assert(not err:find "terminate", err)
  code, _, err = shell(("\"$REDCO_LUA\" %s >&-"):format(write("one.lua", "print 'x'")))
  assert(code < 126, "exit code " .. code .. err)
  code, _, err = shell [["$REDCO_LUA" -e 'print(1)' >/dev/full]]
  assert(code < 126, "exit code " .. code .. err)
end)

test("training with the output closed ends as it would, and keeps its log", function()
  local path = write("trains.lua", ([[
local redco = require "redco"
local torch = redco.torch
local trainer = redco.Trainer {
  deployer = redco.Deployer { seed = 1, workdir = %q },
  params = { w = torch.zeros { 2 } }, collate_fn = function() return {} end,
  loss_fn = function(_, _, params) return params.w:square():sum() end,
  optimizer = redco.optim.sgd { learning_rate = 0.1 },
}
trainer:fit { train_examples = { 1, 2, 3 }, per_device_batch_size = 1, n_epochs = 1 }
]]):format(program.folder .. "/closed"))
  for _, where in ipairs { ">&- 2>&-", ">/dev/full 2>/dev/full" } do
    local code, _, err = shell(("rm -rf closed; \"$REDCO_LUA\" %s %s"):format(path, where))
    assert(code == 0, where .. ": exit code " .. code .. err)
    local _, n = program.read(program.folder .. "/closed/metrics.jsonl"):gsub("\n", "")
    expect_equal(n, 3)
  end
end)

test("plain lines where there is no terminal: no control bytes, no carriage returns", function()
  local path = write("plain.lua", [[
local redco = require "redco"
local torch = redco.torch
redco.Trainer {
  deployer = redco.Deployer { seed = 1 }, params = { w = torch.zeros { 2 } },
  collate_fn = function() return {} end,
  loss_fn = function(_, _, params) return params.w:square():sum() end,
  optimizer = redco.optim.sgd { learning_rate = 0.1 },
}:fit { train_examples = { 1, 2, 3 }, per_device_batch_size = 1, n_epochs = 2 }
]])
  local code, out, err = run { path }
  expect_equal(code, 0)
  expect_has(out .. err, "Parameters", "Epoch 0 / 2", "loss")
  assert(not (out .. err):find "[\27\r]", out .. err)
end)

test("verbose = false writes nothing", function()
  expect_run(0, "", "", run { "-e", [[
local redco = require "redco"
local d = redco.Deployer { seed = 1, verbose = false }
d:log_info "nothing" d:log_metrics({ a = 1 }, 1)]] })
end)

test("REDCO_WITHOUT=tensor_heap leaves tensors to malloc", function()
  write("heap.lua", [[
local ffi, x = require "ffi", require("redco").torch.ones { 2 ^ 18 }
ffi.cdef 'int64_t tensor_heap_bytes(void) __asm__("_ZN5redco17tensor_heap_bytesEv")'
print(tonumber(ffi.C.tensor_heap_bytes()) >= 4 * x:numel())]])
  local command = '"$REDCO_LUA" heap.lua; REDCO_WITHOUT=tensor_heap "$REDCO_LUA" heap.lua'
  local code, out = shell(command)
  expect_equal(code, 0)
  expect_equal(out, "true\nfalse\n")
end)

test("backtraces of C++ come only with REDCO_TRACE", function()
  local path = write("op.lua", [[
local torch = require "redco.torch"
torch.ones { 2, 3 }:matmul(torch.ones { 2, 3 })
]])
  local _, _, err = run { path }
  assert(not err:find("Exception raised from", 1, true) and not err:find("frame #", 1, true), err)
  local _, _, traced = shell("REDCO_TRACE=1 \"$REDCO_LUA\" " .. path)
  expect_has(traced, "frame #")
end)

program.remove_folder()
testing.finish()
