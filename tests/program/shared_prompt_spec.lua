-- redco-lua --nproc without a FILE: one prompt over several processes.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local run, write, expect_has = program.run, program.write, program.expect_has

-- The beginning of every session here: `r`, the rank; a Trainer, and its result. Chunks of one
-- line each. Ctrl-C reaches the launcher, as `kill -INT` does.
local prelude = [[
ffi = require "ffi"; ffi.cdef "int getppid(); int getpid(); int kill(int, int);"
r = tonumber(os.getenv "RANK" or 0); n = tonumber(os.getenv "WORLD_SIZE" or 1)
function ctrl_c() os.execute("(sleep 0.5; kill -INT " .. ffi.C.getppid() .. ") &") end
function clock() local p = io.popen "date +%s.%N"; local t = p:read "*n"; p:close(); return t end
function took() if r == 0 then print(clock() - from < limit and "soon" or clock() - from) end end
mp = n == 4 and 2 or 1; zero = zero or 0
d = redco.Deployer { seed = 1, n_model_shards = mp, zero = zero, zero_min_size = 1, verbose = false }
function weight(i) return torch.linspace(-1, i, 64, { dtype = "float64" }):reshape { 8, 8 } end
function collate_fn(rows) return { x = torch.tensor(rows, { dtype = "float64" }) } end
function apply(p, x) return x:matmul(p["l1.weight"]:t()):tanh():matmul(p["l2.weight"]:t()) end
function loss_fn(_, _, p, b) in_loss(); return apply(p, b.x):square():mean() end
function in_loss() end
options = { deployer = d, collate_fn = collate_fn, loss_fn = loss_fn, compute_dtype = "float64" }
options.params = { ["l1.weight"] = weight(1), ["l2.weight"] = weight(2) }
options.optimizer = redco.optim.adamw { learning_rate = 0.01 }
trainer = redco.Trainer(options)
rows = {}; for i = 1, 32 do rows[i] = {} for j = 1, 8 do rows[i][j] = math.sin(i * j) end end
sizes = { train_examples = rows, global_batch_size = 32, per_device_batch_size = 32 / d.mesh.dp }
function fit(epochs) sizes.n_epochs = epochs; trainer:fit(sizes) end
judged = { examples = rows, per_device_batch_size = 8 }
function step() in_loss = function() end; fit(1); return ("%.9f"):format(trainer:eval_loss(judged)) end
limit = 4
]]

local function session(chunks, args, input)
  return run(args or { "--nproc", "4" }, (input or prelude) .. table.concat(chunks, "\n") .. "\n")
end

local function expect_code(code, actual, out, err)
  if actual ~= code then
    error(("expected exit code %d, got %d\n%s%s"):format(code, actual, out, err), 2)
  end
end

test("all run what is typed; what they say alike comes out once, turn by turn", function()
  local code, out, err = session({ "1 + 1", "r", "for i = 1, 2 do", "  print(i, r == 2)", "end",
    "io.write 'no end';", "if r == 3 then print 'three' end", "d.mesh.mp, d.process_id",
    "io.stderr:write('error ', r % 2);", "x = torch.arange(3):tolist()", "x[2]",
    ":q", "print 'never'" })
  expect_code(0, code, out, err)
  expect_equal(out, [[
[all] 2
[0] 0
[1] 1
[2] 2
[3] 3
[0] 1	false
[0] 2	false
[1] 1	false
[1] 2	false
[2] 1	true
[2] 2	true
[3] 1	false
[3] 2	false
[all] no end
[3] three
[all] 2
[0] 0
[1] 1
[2] 2
[3] 3
[all] 1
]])
  expect_equal(err, "[0] error 0\n[1] error 1\n[2] error 0\n[3] error 1\n")
end)

test("the lines of a value of one process stay together", function()
  local code, out, err = session({ "torch.tensor { { 1, 2 }, { 3, r % 2 * 4 } }", "r, { a = 1 }",
    "torch.ones { 2, 1 }" }, { "--nproc", "2" }, "r = tonumber(os.getenv 'RANK')\n")
  expect_code(0, code, out, err)
  expect_equal(out, [=[
[0] tensor([[1, 2],
[0]         [3, 0]])
[0] [int64 [2, 2]]
[1] tensor([[1, 2],
[1]         [3, 4]])
[1] [int64 [2, 2]]
[0] 0
[0] { a = 1 }
[1] 1
[1] { a = 1 }
[all] tensor([[1.],
[all]         [1.]])
[all] [float32 [2, 1]]
]=])
end)

-- Causes that leave a chunk half done, and all errors that are shown.
local failures = {
  { "one, alone", "if r == 1 then error 'apart' end", "[1] stdin:1: apart\n" },
  { "all alike", "error 'alike'", "[all] stdin:1: alike\n" },
  { "one, while the others wait for it in a step",
    "function in_loss() if r == 1 then error('astray', 0) end end fit(1)",
    "[1] astray\n[1] \tstdin:1: in function 'in_loss'\n[1] \tstdin:1: in function <stdin:1>\n" ..
    "[1] \tstdin:1: in function 'fit'\n[1] \tstdin:1: in main chunk\n" },
  { "one that makes a Deployer less", "if r == 2 then error 'less' end " ..
    "redco.Deployer { seed = 2, verbose = false }", "[2] stdin:1: less\n" },
  { "one that saves a checkpoint less", "if r == 0 then error 'unsaved' end " ..
    "d:save_ckpt { ckpt_dir = 'ckpt', params = trainer.params }", "[0] stdin:1: unsaved\n" },
  { "Ctrl-C where only one is still busy", "if r == 0 then ctrl_c() end while r == 2 do end",
    "[2] stdin:1: interrupted\n" },
  { "Ctrl-C in a loop of all", "if r == 1 then ctrl_c() end while true do end",
    "[all] stdin:1: interrupted\n" },
  { "Ctrl-C where one loops, and the others wait for it in a step",
    "if r == 0 then ctrl_c() end function in_loss() while r == 3 do end end fit(1)",
    "interrupted" },
  { "Ctrl-C in a training", "if r == 0 then ctrl_c() end fit(1000000)", "interrupted" },
}

local function expect_recovery(args)
  local chunks = {}
  for _, failure in ipairs(failures) do
    local _, chunk = unpack(failure)
    for _, each in ipairs { "io.stderr:write('--\\n');", "from = clock()", chunk, "took()",
      "trainer = redco.Trainer(options)",
      "d:save_ckpt { ckpt_dir = 'ckpt', params = options.params }",
      "print(step())" } do
      chunks[#chunks + 1] = each
    end
  end
  local code, out, err = session({ "print(step())" }, {})
  expect_code(0, code, out, err)
  local one = out:match "(%d%.%d+)\n$"
  code, out, err = session(chunks, args)
  expect_code(0, code, out, err)
  local expected = ("[0] soon\n[all] %s\n"):format(one)
  expect_equal(out, expected:rep(#failures))
  local i = 0
  for shown in (err .. "[all] --\n"):gmatch "(.-)%[all%] %-%-\n" do
    if i > 0 then
      local name, _, text = unpack(failures[i])
      local is_whole = text:find "\n"
      assert(is_whole and shown == text or not is_whole and shown:find(text, 1, true),
        name .. ": " .. shown)
    end
    i = i + 1
  end
  expect_equal(i, #failures + 1)
end

test("after an error of one, or Ctrl-C, all are back soon, and train as one process does",
  function() expect_recovery { "--nproc", "4" } end)

test("they are with REDCO_CHECK_SPMD too", function()
  local code, out, err = program.shell(("REDCO_CHECK_SPMD=1 \"$REDCO_LUA\" --nproc 2 < %s"):format(
    write("checked.lua", prelude .. "step()\nif r == 1 then error 'apart' end step()\nstep()\n")))
  expect_code(0, code, out, err)
  expect_equal(err, "[1] stdin:1: apart\n")
  expect_equal(select(2, out:gsub("%[all%] 0%.%d+\n", "")), 2)
end)

test("what was made before an error is used after it", function()
  local _, out = session({ "step()", "step()", "step()" }, {})
  local expected = out:gsub("[^\n]+", "[all] %0") .. "[all] true\n[all] true\n[all] 2\n"
  local chunks = {}
  local stray = "function in_loss() if r == 1 then error('astray', 0) end end fit(1)"
  for i, zero in ipairs { 0, 1, 3 } do
    chunks[i] = ("zero = %d\n"):format(zero) .. prelude .. table.concat({ stray, "step()",
      "step()", stray, "step()",
      "sum = function(p) return apply(p, weight(1)):sum() end; params = trainer.state.params;",
      "before = ('%.9f'):format(sum(params):item()); kept = torch.ones({ 2 })", stray,
      "before == ('%.9f'):format(sum(params):item())",
      "redco.grad(sum)(params)['l1.weight']:isfinite():all():item()", "kept:sum():item()" }, "\n")
  end
  local code, err
  code, out, err = session(chunks, nil, "")
  expect_code(0, code, out, err)
  expect_equal(out, expected:rep(3))
end)

test("what one calls alone ends at once, and says that the others wait at the prompt", function()
  local alone = { "if r == 0 then trainer:eval_loss(judged) end",
    "if r == 0 then redco.Deployer { seed = 2, verbose = false } end" }
  local chunks = { "one = step()" }
  for _, chunk in ipairs(alone) do
    for _ = 1, 2 do  -- the second time the groups have to connect again
      for _, each in ipairs { "from = clock()", chunk, "took()" } do chunks[#chunks + 1] = each end
    end
  end
  chunks[#chunks + 1] = "trainer = redco.Trainer(options)"
  chunks[#chunks + 1] = "step() == one"
  local code, out, err = session(chunks, { "--nproc", "2" })
  expect_code(0, code, out, err)
  expect_equal(out, ("[0] soon\n"):rep(4) .. "[all] true\n")
  local _, n = err:gsub("process 1 has ended its part without it and waits at the prompt", "")
  expect_equal(n, 4)
end)

test("random numbers are the same on all again", function()
  local code, out, err = session { "x = torch.rand({ 1 }); if r == 1 then error 'early' end " ..
    "x = torch.rand({ 1 }); rng = d:gen_rng()", "('%.6f'):format(torch.rand({ 1 }):item())",
    "('%.6f'):format(torch.rand({ 1 }, { generator = d:gen_rng() }):item())" }
  expect_code(0, code, out, err)
  assert(out:find "^%[all%] 0%.%d+\n%[all%] 0%.%d+\n$", out)
end)

test("the death of one ends all with its cause", function()
  local deaths = {
    { 2, "if r == 1 then os.exit(3) end", 3,
      "process 1 of 2 failed first: ended with exit code 3" },
    { 4, "if r == 2 then ffi.C.kill(ffi.C.getpid(), 9) end fit(3)", 137,
      "process 2 of 4 failed first: was ended by signal 9" },
    { 2, "if r == 0 then ffi.C.kill(ffi.C.getpid(), 6) end", 134,
      "process 0 of 2 failed first: was ended by signal 6" },
    { 2, "if r == 1 then os.exit(0) end", 1, "process 1 of 2 failed first: no sign of life" },
  }
  for _, death in ipairs(deaths) do
    local n, chunk, expected, text = unpack(death)
    -- The input stays open: it is not its end that ends them.
    write("chunks", prelude .. "ffi.C.getpid()\n" .. chunk .. "\n")
    local code, out, err = program.shell(([[
rm -f input; mkfifo input
{ cat chunks; exec sleep 60; } > input & feeder=$!
"$REDCO_LUA" --nproc %d < input; code=$?
kill $feeder; exit $code]]):format(n))
    expect_code(expected, code, out, err)
    expect_equal(err:gsub("^.*\n(.)", "%1"):sub(1, #text + 11), "redco-lua: " .. text)
    local _, n_seen = out:gsub("%[%d%] (%d+)\n", function(pid)
      assert(os.execute("kill -0 " .. pid .. " 2>/dev/null") ~= 0, pid .. " is left behind")
    end)
    expect_equal(n_seen, n)
  end
end)

test("a FILE, then a prompt with its globals", function()
  local path = write("file.lua", "value = tonumber(os.getenv 'RANK') * 2")
  local code, out, err = session({ "value" }, { "-i", "--nproc", "2", path }, "")
  expect_code(0, code, out, err)
  expect_equal(out, "[0] 0\n[1] 2\n")
  code, out, err = session({ "1" }, { "-i", "--nproc", "2", write("fails.lua", "error 'early'") },
    "")
  expect_code(1, code, out, err)
  expect_has(err, "failed first: ", "fails.lua:1: early")
end)

test("a prompt is not restarted", function()
  local code, _, err = run({ "--nproc", "2", "--max-restarts", "1" }, "1\n")
  expect_equal(code, 2)
  expect_has(err, "--max-restarts needs a FILE")
end)

program.remove_folder()
testing.finish()
