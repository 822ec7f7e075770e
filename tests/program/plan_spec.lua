-- `redco-lua plan` plans a script's training, and says what is wrong.
local data = require "redco.data"
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local expect_has = program.expect_has

-- A layer of 64 MB, which has no values, and a script that would write to its work folder.
program.write("train.lua", [[
local redco = require "redco"
local o = redco.options { batch = 4, global_batch_size = 0, shards = 1, width = 2048, how = "" }
local deployer = redco.Deployer { seed = 1, n_model_shards = o.shards, workdir = "run" }
local nn = redco.nn
local params = {
  up = nn.Linear(o.width, 4 * o.width, { generator = deployer:gen_rng() }),
  down = nn.Linear(4 * o.width, o.width, { generator = deployer:gen_rng() }),
}
if o.how == "no training" then return end
local trainer = redco.Trainer {
  deployer = deployer, params = params, optimizer = redco.optim.adamw { learning_rate = 0.01 },
  collate_fn = function(examples) return { x = redco.torch.ones { #examples, o.width } } end,
  loss_fn = function(_, _, params, batch)
    local y = nn.linear(params.down, nn.linear(params.up, batch.x):relu())
    if o.how == "endless" then while y:sum():item() > 0 do y = y * 0.5 end end
    if o.how == "broken" then error "the user's own" end
    return y:square():mean()
  end,
}
if o.how == "train_step" then trainer:train_step { examples = { 1, 2, 3, 4 } } end
trainer:fit {
  train_examples = { 1, 2, 3 }, per_device_batch_size = o.batch, n_epochs = 1,
  global_batch_size = o.global_batch_size > 0 and o.global_batch_size or nil,
}
print "not reached"
]])

local function plan(...)
  return program.run { "plan", ... }
end

local function fails(code, parts, ...)
  local found, out, err = plan(...)
  if found ~= code then error(("exit code %d: %s%s"):format(found, out, err), 2) end
  expect_has(err, unpack(parts))
end

test("adapters on 8 B parameters of four bits fit on a card of 24 GB: docs/quantized.md", function()
  assert(os.execute(("mkdir -p '%s/eight'"):format(program.folder)) == 0)
  program.write("eight/config.json", [[{ "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192 }]])
  program.write("qlora.lua", [[
    local redco = require "redco"
    local model = redco.models.from_pretrained("eight", { quantize = "nf4", dtype = "bfloat16" })
    local params = redco.lora.add(model.params, { r = 16, target_modules = {
      "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj" } })
    local ids = redco.torch.zeros({ 1024 }, { dtype = "int64" })
    redco.Trainer {
      deployer = redco.Deployer { seed = 1 }, params = params, loss_fn = model.loss_fn,
      optimizer = redco.lora.freeze_base(redco.optim.adamw { learning_rate = 1e-4 }),
      compute_dtype = "bfloat16", recompute = "blocks", collate_fn = redco.data.default_collate,
    }:fit { train_examples = { { input_ids = ids, labels = ids } }, per_device_batch_size = 1,
      n_epochs = 1 }
  ]])
  local code, _, err = plan("--servers", "1x RTX-4090-24G:1", "--json", "plan.json", "qlora.lua")
  if code ~= 0 then error(err) end
  local total = {}
  for _, layout in ipairs(data.json(program.folder .. "/plan.json").layouts) do
    total[layout.recompute] = layout.memory.total / 2 ^ 30
  end
  expect_equal(("%.1f %.1f"):format(total.none, total.blocks), "12.6 9.4")
end)

test("a mixture of experts, with the metrics of its loss_fn", function()
  program.write("mixture.lua", [[
    local redco = require "redco"
    local model = redco.models.from_config { model_type = "qwen3_moe", vocab_size = 32,
      hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 2,
      head_dim = 8, num_experts = 4, num_experts_per_tok = 2, moe_intermediate_size = 8 }
    local trainer = redco.Trainer { deployer = redco.Deployer { seed = 1 }, params = model.params,
      collate_fn = redco.data.default_collate, loss_fn = model.loss_fn,
      optimizer = redco.optim.adamw { learning_rate = 0.01 } }
    local ids = redco.torch.zeros({ 8 }, { dtype = "int64" })
    trainer:fit { train_examples = { { input_ids = ids, labels = ids + 1 } }, n_epochs = 1,
      per_device_batch_size = 1 }
  ]])
  local code, out, err = plan("mixture.lua")
  if code ~= 0 then error(err) end
  expect_has(out, "mixture.lua on ")
end)

test("a table, a JSON file, and nothing else", function()
  local code, out, err = plan("--servers", "1x A100-80G:2", "--json", "plan.json", "--explain", "1",
    "train.lua", "--batch=4")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "train.lua on ", "A100-80G", "global batch 8", "*", "the largest tensors:",
    "parameters")
  assert(not out:find("not reached", 1, true))
  local result = data.json(program.folder .. "/plan.json")
  expect_equal(result.schema, 1)
  expect_equal(result.n_devices, 2)
  expect_equal(result.n_parameters, 2 * 4 * 2048 * 2048 + 5 * 2048)
  local n_asked = 0
  for _, layout in ipairs(result.layouts) do
    if layout.is_asked then n_asked = n_asked + 1 end
    local sum = 0
    for kind, bytes in pairs(layout.memory) do
      if kind ~= "allocated" and kind ~= "total" then sum = sum + bytes end
    end
    expect_equal(sum, layout.memory.total)
  end
  expect_equal(n_asked, 1)
  expect_equal(os.execute("test -e '" .. program.folder .. "/run'") == 0, false)
end)

test("recomputation where a step does not fit without", function()
  program.write("deep.lua", [[
local redco = require "redco"
local o = redco.options { recompute = "none", rows = 4096 }
local nn, torch = redco.nn, redco.torch
local params = {}
for i = 1, 12 do params[i] = nn.Linear(512, 512) end
redco.Trainer {
  deployer = redco.Deployer { seed = 1 }, params = params, recompute = o.recompute,
  optimizer = redco.optim.sgd { learning_rate = 0.01 },
  collate_fn = function(examples) return { x = torch.ones { #examples, o.rows, 512 } } end,
  loss_fn = function(_, _, p, batch)
    local x = batch.x
    for _, layer in ipairs(p) do
      x = nn.block(function(y) return nn.linear(layer, nn.linear(layer, y):tanh()):tanh() end, x)
    end
    return x:mean()
  end,
}:fit { train_examples = { 1, 2 }, per_device_batch_size = 1, n_epochs = 1 }
]])
  program.write("small.toml", [[
hosts = [{ devices = 1, device = { like = "A100-40G", memory = "280 MiB" } }]
reserve = { context = 0, group = 0, workspace = 0 }
]])
  local code, out, err = plan("--cluster", "small.toml", "--json", "plan.json", "--explain", "1",
    "--out", "memory.svg", "deep.lua")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "recomp", "blocks")
  local layouts = data.json(program.folder .. "/plan.json").layouts
  expect_equal(layouts[1].recompute, "blocks")
  expect_equal(layouts[1].fits, true)
  expect_equal(layouts[2].is_asked, true)
  expect_equal(layouts[2].recompute, "none")
  assert(layouts[1].seconds.total > 1.2 * layouts[2].seconds.total)
  assert(layouts[1].mfu < layouts[2].mfu)  -- what is computed again is no work of the model
  local svg = program.read(program.folder .. "/memory.svg")
  expect_has(svg, "<polygon", "activations", "parameters", "available", "deep.lua, row 1")
end)

test("Lua's garbage is collected in proportion to what a step holds", function()
  -- Each result is over 5 % of this device's memory, but a small part of the parameters.
  program.write("collections.lua", [[
local redco = require "redco"
local torch, n = redco.torch, 0
local function sentinel()
  getmetatable(newproxy(true)).__gc = function() n = n + 1 sentinel() end
end
sentinel()
redco.Trainer {
  deployer = redco.Deployer { seed = 1 }, params = { w = torch.zeros { 16, 2 ^ 20 } },
  optimizer = redco.optim.sgd { learning_rate = 0.01 },
  collate_fn = function(examples) return { x = torch.ones { #examples, 2 ^ 18 } } end,
  loss_fn = function(_, _, p, batch)
    local from, x = n, batch.x
    for _ = 1, 100 do x = x * 0.5 end
    print("collections", n - from)
    return p.w:mean() + x:mean()
  end,
}:fit { train_examples = { 1 }, per_device_batch_size = 1, n_epochs = 1 }
]])
  program.write("tiny.toml", [[
hosts = [{ devices = 1, device = { like = "A100-40G", memory = "1 MiB" } }]
reserve = { context = 0, group = 0, workspace = 0 }
]])
  local code, out = plan("--cluster", "tiny.toml", "--timeout", "0", "collections.lua")
  expect_equal(code, 1)
  local n_steps = 0
  for n in out:gmatch "collections%s+(%d+)" do
    n_steps = n_steps + 1
    -- 100 results of 1 MiB, beside 64 MiB of parameters of which 5 % may be garbage.
    assert(tonumber(n) <= 30, n)
  end
  assert(n_steps >= 2, out)
end)

-- The layout that the script asks for, of a LLaMA of 31 million parameters on a GPU of 1 GiB.
local function plan_llama(...)
  program.write("one_gib.toml", [[
hosts = [{ devices = 1, device = { like = "H100-80G", memory = "1 GiB" } }]
reserve = { context = 0, group = 0, workspace = 0 }
]])
  program.write("llama.lua", [[
local redco = require "redco"
local o = redco.options { global_batch_size = 1, offload_optimizer = false }
local model = redco.models.from_config { model_type = "llama", vocab_size = 4096,
  hidden_size = 512, intermediate_size = 1536, num_hidden_layers = 8, num_attention_heads = 8 }
local ids = redco.torch.zeros({ 64 }, { dtype = "int64" })
redco.Trainer {
  deployer = redco.Deployer { seed = 1 }, params = model.params, loss_fn = model.loss_fn,
  optimizer = redco.optim.adamw { learning_rate = 0.01 }, compute_dtype = "bfloat16",
  recompute = "blocks", collate_fn = redco.data.default_collate,
  offload_optimizer = o.offload_optimizer,
}:fit {
  train_examples = redco.data.dataset(8, function() return { input_ids = ids, labels = ids } end),
  per_device_batch_size = 1, global_batch_size = o.global_batch_size, n_epochs = 1,
}
]])
  local code, out, err = plan("--cluster", "one_gib.toml", "--json", "plan.json", "llama.lua", ...)
  if code ~= 0 then error(err) end
  local result = data.json(program.folder .. "/plan.json")
  for _, layout in ipairs(result.layouts) do
    if layout.is_asked then return layout, out, result.n_parameters end
  end
end

test("micro-batches share the memory of the parameters' copies", function()
  local one, _, n = plan_llama "--global_batch_size=1"
  local four = plan_llama "--global_batch_size=4"
  assert(one.memory.activations > 2 * n)
  assert(four.memory.activations < one.memory.activations + 0.2 * n, four.memory.activations)
end)

test("masters and optimizer states in the memory of the host", function()
  local on_device, _, n = plan_llama "--global_batch_size=4"
  local on_host, out = plan_llama("--global_batch_size=4", "--offload_optimizer=true")
  expect_equal(on_device.host_memory, 0)
  assert(on_host.host_memory > 11.9 * n and on_host.host_memory <= 12 * n, on_host.host_memory)
  assert(on_device.memory.allocated - on_host.memory.allocated > 11.8 * n)
  expect_has(out, "Row 1: each device uses ", " of the memory of its host")
end)

test("the objective: memory", function()
  program.write("medium.toml", [[
hosts = [{ devices = 1, device = { like = "A100-40G", memory = "400 MiB" } }]
reserve = { context = 0, group = 0, workspace = 0 }
]])
  local code, out = plan("--cluster", "medium.toml", "--objective", "memory", "--json",
    "plan.json", "deep.lua")
  expect_equal(code, 0)
  local layouts = data.json(program.folder .. "/plan.json").layouts
  -- The rows with recomputation, and the one without, though that fits. A block of two products
  -- keeps less if it is not recomputed than with both results.
  expect_equal(#layouts, 3)
  for i, recompute in ipairs { "blocks", "none", "selective" } do
    expect_equal(layouts[i].recompute, recompute)
    expect_equal(layouts[i].is_least, i < 3)
    if i > 1 then assert(layouts[i - 1].memory.total < layouts[i].memory.total) end
  end
  assert(layouts[1].seconds.total > layouts[3].seconds.total)
  assert(layouts[3].seconds.total > layouts[2].seconds.total)
  expect_has(out, "Least memory: row 1, ", " with recomputation; row 2, ")
  -- By time only the faster one is a row.
  plan("--cluster", "medium.toml", "--json", "plan.json", "deep.lua")
  layouts = data.json(program.folder .. "/plan.json").layouts
  expect_equal(#layouts, 1)
  expect_equal(layouts[1].recompute, "none")
end)

test("the objective: cost", function()
  local toml = [[
hosts = [{ count = 4, devices = 1, device = "A100-80G", link = "nvlink3", price_per_hour = %s }]
network = { link = "ib-400" }
]]
  program.write("priced.toml", toml:format "3.6")
  local code, out = plan("--cluster", "priced.toml", "--objective", "cost", "--json", "plan.json",
    "--max-mp", "1", "train.lua")
  expect_equal(code, 0)
  expect_has(out, "1000 steps of row 1 cost ")
  local best = data.json(program.folder .. "/plan.json").layouts[1]
  assert(math.abs(best.price / (best.seconds.total * 4 * 3.6 / 3600) - 1) < 1e-9)
  local _, curve = plan("--cluster", "priced.toml", "--devices", "1,2,4", "--scaling", "strong",
    "--global-batch", "64", "train.lua")
  expect_has(curve, "Cheapest: 1 devices, ")
end)

test("what may be otherwise: --allow", function()
  local function dtypes(...)
    local code = plan("--servers", "1x A100-80G:2", "--max-mp", "1", "--json", "plan.json", ...)
    expect_equal(code, 0)
    local found = {}
    for _, layout in ipairs(data.json(program.folder .. "/plan.json").layouts) do
      found[layout.compute_dtype] = (found[layout.compute_dtype] or 0) + 1
    end
    return ("%d %d"):format(found.float32 or 0, found.bfloat16 or 0)
  end
  expect_equal(dtypes "train.lua", "4 0")
  expect_equal(dtypes("--allow", "dtype", "train.lua"), "4 4")
  local code, _, err = plan("--cluster", "small.toml", "--allow", "none", "deep.lua")
  expect_equal(code, 1)  -- it fits with recomputation only
  expect_has(err, "no layout of 1 devices fits")
end)

test("what is kept: --keep", function()
  local here = { "--servers", "1x A100-80G:2", "train.lua", "--global-batch-size=16" }
  local _, global = plan(unpack(here))
  expect_has(global, "global batch 16")
  local _, per_device = plan("--keep", "per-device", unpack(here))
  expect_has(per_device, "global batch 8")
end)

test("groups of copies within hosts", function()
  plan("--servers", "2x A100-80G:2, eth 10G", "--max-mp", "1", "--json", "plan.json", "--layouts",
    "20", "train.lua")
  local found = {}
  for _, layout in ipairs(data.json(program.folder .. "/plan.json").layouts) do
    found[layout.zero .. " " .. layout.zero_group] = layout
  end
  local all, in_host = found["3 4"], found["3 2"]
  assert(all.memory.states < in_host.memory.states)
  assert(in_host.seconds.total < all.seconds.total)
  -- The gradients of a part are reduced between the hosts.
  local share = in_host.collectives.dp_replicate.all_reduce.bytes
    / all.collectives.dp.reduce_scatter.bytes
  assert(math.abs(share - 2 / 3) < 0.01, share)
end)

test("attention of grouped heads on a GPU: in float32 k and v are repeated", function()
  program.write("heads.lua", [[
    local redco = require "redco"
    local nn = redco.nn
    local o = redco.options { dtype = "" }
    local deployer = redco.Deployer { seed = 1 }
    local rows, length, size = 4, 512, 64
    redco.Trainer {
      deployer = deployer, optimizer = redco.optim.adamw { learning_rate = 0.01 },
      params = { q = nn.Linear(size, 8 * size), k = nn.Linear(size, 2 * size) },
      compute_dtype = o.dtype,
      collate_fn = function() return { x = redco.torch.ones { rows, length, size } } end,
      loss_fn = function(_, _, params, batch)
        local function heads(name)
          return nn.linear(params[name], batch.x):view { rows, length, -1, size }:transpose(1, 2)
        end
        local k = heads "k"
        return nn.attention(heads "q", k, k, { causal = true, enable_gqa = true }):sum()
      end,
    }:fit { train_examples = { 1, 2, 3, 4 }, per_device_batch_size = rows, n_epochs = 1 }
  ]])
  local function largest(dtype)
    local _, out = plan("--servers", "1x A100-80G:1", "--explain", "1", "heads.lua",
      "--dtype=" .. dtype)
    return out:match "the largest tensors:.*"
  end
  expect_has(largest "float32", "aten::clone at heads.lua")
  local in_bfloat16 = largest "bfloat16"
  expect_has(in_bfloat16, "attention")
  assert(not in_bfloat16:find("aten::clone", 1, true), in_bfloat16)
end)

test("the second training", function()
  local code, out, err = plan("--servers", "1x A100-80G:2", "--fit", "2", "train.lua",
    "--how=train_step", "--batch=3")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "global batch 6", "*")
end)

test("another global batch", function()
  local _, out = plan("--servers", "1x A100-80G:2", "--global-batch", "32", "train.lua")
  expect_has(out, "global batch 32")
end)

test("a scaling curve", function()
  local code, out, err = plan("--servers", "4x A100-80G:2, eth 10G", "--devices", "1,2,...,8",
    "--global-batch", "64", "--scaling", "strong", "--out", "scaling.svg", "--json", "plan.json",
    "train.lua")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "strong scaling", "efficiency", "The curve bends: from ")
  expect_has(program.read(program.folder .. "/scaling.svg"), "<polyline", "strong scaling")
  local result = data.json(program.folder .. "/plan.json")
  expect_equal(#result.points, 4)
  expect_equal(result.points[1].efficiency, 1)
  assert(result.points[4].efficiency < result.points[2].efficiency)
  expect_equal(result.points[4].global_batch_size, 64)
end)

test("a calibration of two processes", function()
  local code, out, err = program.shell(("XDG_CACHE_HOME='%s/cache' \"$REDCO_LUA\" --nproc 2 plan "
    .. "--calibrate measured.toml --timeout 1"):format(program.folder))
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "written to measured.toml, and to ", "calibration.toml")
  expect_has(program.read(program.folder .. "/measured.toml"), "[measured", "matmul.float32",
    "collective.\"loopback\"")
  code, out, err = program.shell(("XDG_CACHE_HOME='%s/cache' \"$REDCO_LUA\" plan --devices 2 "
    .. "train.lua --width=256"):format(program.folder))
  expect_equal(err, "")
  expect_equal(code, 0)
  assert(not out:find("built-in constants", 1, true), out)
end)

test("two plans are equal", function()
  local texts = {}
  for i = 1, 2 do
    plan("--servers", "1x A100-80G:2", "--json", "plan.json", "train.lua")
    texts[i] = program.read(program.folder .. "/plan.json")
  end
  expect_equal(texts[1], texts[2])
end)

test("a global batch that the layout does not divide", function()
  local code, out, err = plan("--servers", "1x A100-80G:2", "--layouts", "1", "train.lua",
    "--global-batch-size=6")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "is not possible: global_batch_size = 6 is no multiple of 8", "the nearest: 8")
end)

test("a loop of train_step", function()
  local code, out, err = plan("--servers", "1x A100-80G:2", "train.lua", "--how=train_step")
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "global batch 4", "*")
end)

test("errors", function()
  local here = { "--servers", "1x A100-80G:2", "train.lua" }
  local function fails_with(code, parts, ...)
    fails(code, parts, here[1], here[2], here[3], ...)
  end
  fails(2, { "A100-81G", "A100-80G" }, "--servers", "1x A100-81G:2", "train.lua")
  fails(2, { "there is no flag --nodes" }, "--nodes", "train.lua")
  fails(2, { "--objective: speed not in {", "time", "memory", "cost" }, "--objective", "speed",
    "train.lua")
  fails(2, { "--keep: all not in {", "global", "per-device" }, "--keep", "all", "train.lua")
  fails(2, { "--global-batch excludes --keep" }, "--keep", "global", "--global-batch", "8",
    "train.lua")
  fails(2, { 'allow "fp8": expected "recompute", "dtype"' }, "--allow", "dtype,fp8", "train.lua")
  fails(2, { 'the objective "cost" needs the price_per_hour' }, "--servers", "1x A100-80G:2",
    "--objective", "cost", "train.lua")
  fails(2, { "give the script" }, "--servers", "1x A100-80G:2")
  fails(2, { "cannot read the script missing.lua" }, "--servers", "1x A100-80G:2", "missing.lua")
  fails(2, { "plan: --calibrate takes no script" }, "--calibrate", "a.toml", "train.lua")
  fails(2, { "--devices 8,4: the numbers must ascend" }, "--devices", "8,4", "train.lua")
  fails(1, { "--out must end in .svg or .png" }, "--servers", "1x A100-80G:2", "--out", "a.pdf",
    "train.lua")
  fails(1, { "plan: cannot write /dev/full: No space left on device" }, "--servers",
    "1x A100-80G:2", "--json", "/dev/full", "train.lua")
  fails(1, { "the last row is" }, "--servers", "1x A100-80G:2", "--explain", "99", "train.lua")
  local code, _, err = program.run { "--nproc", "2", "plan", "train.lua" }
  expect_equal(code, 2)
  expect_has(err, "plan runs in one process")
  fails_with(1, { "train.lua ended without a Trainer:fit" }, "--how=no training")
  fails_with(1, { "the user's own", "train.lua:" }, "--how=broken")
  fails_with(1, { "200000 operators", "train.lua:", "taken as 1" }, "--how=endless", "--width=16")
  fails_with(1, { "n_model_shards = 3 does not divide the 2 devices" }, "--shards=3")
  fails(1, { "global_batch_size = 3 is no multiple of 8", "the nearest: 8" }, "--servers",
    "1x A100-80G:2", "--max-mp", "1", "train.lua", "--global-batch-size=3")
  fails(1, { "no layout of 2 devices fits in 15.8 GiB",
    "GiB would do, with n_model_shards = ", "of which ",
    "at least 5 such devices" }, "--servers", "1x V100-16G:2", "train.lua", "--width=24576")
end)

test("stages share the operations of one process", function()
  local folder = os.getenv "REDCO_SOURCE" .. "/tests/plan"
  local function flops(n)  -- of all devices, as a part of their peak
    local code, _, err = plan("--servers", ("%dx H100-80G:1, ib 400G"):format(n), "--timeout", "0",
      "--json", "plan.json", folder .. "/train.lua", "--model=gpt2", "--length=64",
      "--global-batch-size=4", "--n-pipeline-stages=" .. n)
    expect_equal(code, 0, err)
    local layout = data.json(program.folder .. "/plan.json").layouts[1]
    return layout.mfu * layout.seconds.total * n
  end
  local whole = flops(1)
  -- Of four stages, one that is not planned takes the operations of another. The last has the head.
  for _, n in ipairs { 2, 4 } do
    local all = flops(n)
    assert(math.abs(all / whole - 1) < 1e-6, ("%d stages: %g of %g"):format(n, all, whole))
  end
end)

program.remove_folder()
testing.finish()
