-- num_workers: collate_fn on threads with Lua states of their own.
local redco = require "redco"
local testing = require "testing"

local data, torch = redco.data, redco.torch
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local folder = testing.folder()

local write = testing.write
local function new_trainer(options)
  return redco.Trainer {
    deployer = redco.Deployer { seed = 3, verbose = false },
    params = { w = torch.zeros { 1 } }, num_workers = options.num_workers or 2,
    prefetch_factor = options.prefetch_factor, collate_fn = options.collate_fn,
    accumulate_grad_batches = options.accumulate_grad_batches,
    loss_fn = options.loss_fn or function(_, _, params, batch)
      return (params.w * batch.x - 2):pow(2):mean()
    end,
    optimizer = redco.optim.sgd { learning_rate = 1e-2 },
  }
end

local function numbers(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end

--- What `f` returns in a worker, as a batch.
local function in_worker(f)
  local seen
  local trainer = new_trainer {
    num_workers = 1,
    collate_fn = function(examples) return f(examples) end,
    loss_fn = function(_, _, params, batch)
      seen = batch
      return params.w:sum()
    end,
  }
  trainer:eval_loss { examples = { 1 }, per_device_batch_size = 1 }
  return seen
end

-- Numbers.

for _, given in ipairs { "list", "set" } do
  test("the same numbers for any number of workers, random ones too: " .. given, function()
    local list = numbers(50)
    local examples = given == "list" and list or data.dataset(50, function(i) return i end)
    local function collate(batch)
      local x = torch.tensor(batch, { dtype = "float32" }) / 50
      local noise = {}
      for i = 1, #batch do noise[i] = math.random() end
      return { x = torch.dropout(x + torch.randn_like(x) + torch.tensor(noise), 0.2, true) }
    end
    local function run(n)
      local trainer = new_trainer { num_workers = n, collate_fn = collate,
        accumulate_grad_batches = 2 }
      trainer:fit {
        train_examples = examples, eval_examples = examples, per_device_batch_size = 4,
        n_epochs = 2, max_steps = 9,
      }
      local loss = trainer:eval_loss { examples = examples, per_device_batch_size = 8 }
      local predictor = trainer:get_default_predictor {
        pred_fn = function(_, params, preds) return preds.x * params.w end,
      }
      local preds = predictor:predict {
        examples = examples, per_device_batch_size = 7, params = trainer.params,
      }
      return trainer.params.w:item(), loss, torch.stack(preds)
    end
    local w, loss, preds = run(0)
    assert(w ~= 0)
    for _, n in ipairs { 1, 4 } do
      local their_w, their_loss, their_preds = run(n)
      expect_equal(their_w, w)
      expect_equal(their_loss, loss)
      assert(torch.equal(their_preds, preds))
    end
  end)
end

test("what is drawn differs by step and epoch, not by micro-batch sizes", function()
  local function run(options)
    local drawn = {}
    options.collate_fn = function(batch) return { x = torch.rand { #batch } } end
    options.loss_fn = function(_, _, params, batch)
      for _, x in ipairs(batch.x:tolist()) do drawn[#drawn + 1] = ("%.9g"):format(x) end
      return params.w:sum()
    end
    local trainer = new_trainer(options)
    trainer:fit { train_examples = numbers(16), n_epochs = 2,
      per_device_batch_size = 8 / (options.accumulate_grad_batches or 1) }
    return drawn
  end
  local whole = run { num_workers = 0 }
  expect_equal(table.concat(run { accumulate_grad_batches = 4 }, " "), table.concat(whole, " "))
  local seen = {}
  for _, x in ipairs(whole) do
    assert(not seen[x], x)
    seen[x] = true
  end
end)

--- The parameters at the end of a run of 3 epochs whose example number 13 of 40 spoils a batch.
local function run_restored(num_workers, name, max_steps)
  local deployer = redco.Deployer { seed = 3, verbose = false, workdir = folder .. "/" .. name }
  local ckpt, info = deployer:load_last_ckpt {}
  local trainer = redco.Trainer {
    deployer = deployer, params = ckpt and ckpt.params or { w = torch.zeros { 1 } },
    opt_state = ckpt and ckpt.opt_state, last_ckpt_info = info, num_workers = num_workers,
    optimizer = redco.optim.adamw { learning_rate = 0.01 },
    collate_fn = function(batch)
      local x = torch.rand { #batch } * math.random()
      for i, number in ipairs(batch) do if number == 13 then x[i - 1] = 0 / 0 end end
      return { x = x }
    end,
    loss_fn = function(_, _, params, batch) return (params.w * batch.x - 2):pow(2):mean() end,
  }
  trainer:fit { train_examples = numbers(40), n_epochs = 3, per_device_batch_size = 4,
    save_ckpt_every_k_steps = 3, max_steps = max_steps, on_nonfinite = "restore" }
  return trainer.params.w:item()
end

test("the same numbers in a run that leaves out batches, and in one that is resumed", function()
  local expected = run_restored(0, "in_turn")
  expect_equal(run_restored(2, "ahead"), expected)
  run_restored(2, "resumed", 13)
  expect_equal(run_restored(3, "resumed"), expected)
end)

test("math.random of the script goes on undisturbed", function()
  local function draws(n)
    math.randomseed(7)
    local first = math.random()
    new_trainer { num_workers = n, collate_fn = function(batch)
      return { x = torch.full({ #batch }, math.random()) }
    end }:eval_loss { examples = { 1, 2 }, per_device_batch_size = 1 }
    return first .. " " .. math.random()
  end
  math.randomseed(7)
  local expected = math.random() .. " " .. math.random()
  expect_equal(draws(0), expected)
  expect_equal(draws(2), expected)
end)

-- Values that workers can be given.

test("plain values, tables, cycles and metatables", function()
  local number, text, yes, nothing, big = 2.5, "a\0b", true, nil, 9007199254740993LL
  local shared = { 7 }
  local tree = { a = { b = { 3, 4 } }, [true] = "yes", one = shared, two = shared }
  tree.self = tree
  local object = setmetatable({ x = 5 }, {
    __index = { twice = function(self) return self.x * 2 end }, __call = function() return 8 end,
  })
  local batch = in_worker(function()
    tree.one[1] = 9
    return { number = number, text = text, yes = yes, nothing = nothing == nil, big = big,
      b = tree.a.b[2], of_true = tree[true], same = tree.self == tree, shared = tree.two[1],
      twice = object:twice(), called = object() }
  end)
  expect_equal(batch.number, 2.5)
  expect_equal(batch.text, "a\0b")
  expect_equal(batch.yes, true)
  expect_equal(batch.nothing, true)
  expect_equal(batch.big, big)
  expect_equal(batch.b, 4)
  expect_equal(batch.of_true, "yes")
  expect_equal(batch.same, true)
  expect_equal(batch.shared, 9)
  expect_equal(batch.twice, 10)
  expect_equal(batch.called, 8)
  expect_equal(shared[1], 7)  -- a copy
end)

test("functions, their shared variables, recursion, C functions and modules", function()
  local count = 0
  local function add() count = count + 1 end
  local function get() return count end
  local function factorial(n) return n < 2 and 1 or n * factorial(n - 1) end
  local floor, stack, cross_entropy = math.floor, torch.stack, redco.nn.cross_entropy
  local ffi, view = require "ffi", torch.Tensor.view
  local batch = in_worker(function()
    add()
    add()
    return { count = get(), factorial = factorial(5), floor = floor(2.7),
      stacked = stack { torch.ones { 2 }, torch.zeros { 2 } }, size = ffi.sizeof "int64_t",
      loss = cross_entropy(torch.zeros { 1, 2 }, torch.tensor { 0 }), same = floor == math.floor,
      modules = redco.nn == require "redco.nn", viewed = view(torch.ones { 4 }, { 2, 2 }) }
  end)
  expect_equal(batch.count, 2)
  expect_equal(count, 0)
  expect_equal(batch.factorial, 120)
  expect_equal(batch.floor, 2)
  expect_close(batch.stacked, torch.tensor { { 1, 1 }, { 0, 0 } })
  expect_close(batch.loss, torch.tensor(math.log(2)))
  expect_equal(batch.size, 8)
  assert(batch.same and batch.modules)
  expect_equal(batch.viewed:size(1), 2)
end)

test("pairs, global or not, visits tables in order", function()
  local own = pairs
  local batch = in_worker(function()
    local names = ""
    for name in own { c = 1, a = 2, b = 3 } do names = names .. name end
    for name in pairs { f = 1, d = 2, e = 3 } do names = names .. name end
    return { names = names }
  end)
  expect_equal(batch.names, "abcdef")
end)

test("tensors are shared; tokenizers, data sets and image processors work there", function()
  local tensor, other = torch.zeros { 3 }, torch.ones { 2 }
  local tokenizer = redco.Tokenizer.from_pretrained "../cases/gpt2"
  local lines = data.lines(write("lines.txt", "one\ntwo\n")):map(string.upper)
  local processor = data.image_processor { do_resize = false, do_rescale = false,
    do_normalize = false }
  local batch = in_worker(function()
    tensor[1] = 5
    return { same = tensor, ids = torch.tensor(tokenizer:encode "hello world"), line = lines[2],
      n = #lines, image = processor(torch.full({ 3, 4, 4 }, 7, { dtype = "uint8" })),
      other = other }
  end)
  expect_close(tensor, torch.tensor { 0, 5, 0 })
  expect_close(batch.same, tensor)
  expect_close(batch.ids, torch.tensor(tokenizer:encode "hello world"))
  expect_equal(batch.line, "TWO")
  expect_equal(batch.n, 2)
  assert(batch.image:numel() == 48)
end)

test("a later change of a variable is not seen", function()
  local factor = 2
  local trainer = new_trainer {
    collate_fn = function(batch) return { x = torch.tensor(batch) * factor } end,
    loss_fn = function(_, _, params, batch) return params.w:sum() + batch.x:sum() end,
  }
  factor = 100
  expect_equal(trainer:eval_loss { examples = { 1 }, per_device_batch_size = 1 }, 2)
end)

test("modules beside the script, and the standard globals alone", function()
  write("beside.lua", "return { f = function(x) return x + 1 end }")
  local path = package.path
  package.path = folder .. "/?.lua;" .. path
  local beside = require "beside"
  local batch = in_worker(function()
    return { a = beside.f(1), b = require("beside").f(2), c = tonumber "3",
      d = select("#", pcall(error)) }
  end)
  expect_equal(batch.a + batch.b + batch.c, 8)
  package.path = path
  expect_error(function()
    in_worker(function() return { x = undeclared_thing } end)  -- luacheck: ignore
  end, "workers_spec.lua:", "undeclared global 'undeclared_thing'")
end)

test("what cannot travel is an error that names the way to it", function()
  local function expect(value, ...)
    local cache = { list = { 1, { x = value } } }
    local function helper() return cache end
    expect_error(function()
      new_trainer { collate_fn = function() return { x = helper() } end }
    end, "workers_spec.lua:", "redco.Trainer: collate_fn: upvalue 'helper' -> upvalue 'cache' -> "
      .. "field 'list' -> entry 2 -> field 'x' is ", ...)
  end
  expect(coroutine.create(print), "a coroutine")
  expect(io.stdout, "a file (")
  expect(("x"):gmatch ".", "a C function that belongs to no module")
  expect(redco.Deployer { seed = 1, verbose = false }, "a Deployer")
  expect(torch.Generator(1), "a Generator", "the generator of the batch")
  expect(require("ffi").new "int[2]", "a cdata")
  local deep = {}
  for _ = 1, 200 do deep = { deep } end
  expect_error(function()
    new_trainer { collate_fn = function() return deep end }
  end, "nested too deeply")
  local trainer = new_trainer { collate_fn = function() return { x = torch.ones { 1 } } end }
  expect_error(function()
    trainer:eval_loss { examples = { 1, { f = coroutine.create(print) } },
      per_device_batch_size = 1 }
  end, "workers_spec.lua:", "the examples: entry 2 -> field 'f' is a coroutine")
end)

test("arguments out of range", function()
  local function collate() return { x = torch.ones { 1 } } end
  expect_error(function() new_trainer { num_workers = -1, collate_fn = collate } end,
    "redco.Trainer: num_workers = -1")
  expect_error(function() new_trainer { prefetch_factor = 0, collate_fn = collate } end,
    "redco.Trainer: prefetch_factor = 0")
  expect_error(function()
    redco.Predictor { deployer = redco.Deployer { seed = 1, verbose = false }, num_workers = 5000,
      collate_fn = collate, pred_fn = collate }
  end, "redco.Predictor: num_workers = 5000")
end)

-- Errors, bounds and ends.

test("an error of a worker is that of the step that needed the batch", function()
  local function check(x) if x == 27 then error "no such thing" end end
  local trainer = new_trainer {
    collate_fn = function(batch)
      for _, x in ipairs(batch) do check(x) end
      return { x = torch.tensor(batch, { dtype = "float32" }) / 30 }
    end,
  }
  local function run(examples)
    return trainer:eval_loss { examples = examples, per_device_batch_size = 3 }
  end
  expect_error(function() run(numbers(30)) end, "workers_spec.lua:", "no such thing")
  assert(run(numbers(26)) > 0)  -- it is gone with its pass
  -- Of the steps before it the batches were there.
  local steps = {}
  for _, num_workers in ipairs { 0, 2 } do
    local run_of = new_trainer { num_workers = num_workers, collate_fn = function(batch)
      for _, x in ipairs(batch) do check(x) end
      return { x = torch.ones { #batch } }
    end }
    expect_error(function()
      run_of:fit { train_examples = numbers(40), per_device_batch_size = 1, n_epochs = 1 }
    end, "no such thing")
    steps[#steps + 1] = run_of.step
  end
  assert(steps[1] > 0)
  expect_equal(steps[2], steps[1])
end)

test("a worker's traceback is shown", function()
  local script = write("traceback.lua", [[
    local redco = require "redco"
    local function inner() error "deep down" end
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, num_workers = 1,
      params = { w = redco.torch.zeros { 1 } }, optimizer = redco.optim.sgd { learning_rate = 1 },
      collate_fn = function() inner() end, loss_fn = function() end,
    }
    trainer:train { examples = { 1 }, per_device_batch_size = 1 }
  ]])
  local pipe = io.popen(("'%s' '%s' 2>&1"):format(os.getenv "REDCO_LUA", script))
  local out = pipe:read "*a"
  pipe:close()
  for _, part in ipairs { "traceback.lua:2: deep down", "in function 'inner'",
    "traceback.lua:6: in function <" } do
    assert(out:find(part, 1, true), out)
  end
end)

test("batches are made ahead, and no more of them than allowed", function()
  local made = torch.zeros({ 40 }, { dtype = "int64" })  -- shared with the workers
  local most, used = 0, 0
  local trainer = new_trainer {
    num_workers = 2, prefetch_factor = 3,
    collate_fn = function(batch)
      made[batch[1] - 1] = 1
      return { x = torch.ones { 1 } }
    end,
    loss_fn = function(_, _, params)
      used = used + 1
      local start = os.clock()
      repeat until os.clock() - start > 0.01
      most = math.max(most, made:sum():item() - used)
      return params.w:sum()
    end,
  }
  trainer:eval_loss { examples = numbers(40), per_device_batch_size = 1 }
  expect_equal(used, 40)
  assert(most >= 3 and most <= 6, most)
end)

test("an interrupt ends the run at once, whatever the workers do", function()
  local started = folder .. "/started"
  local script = write("slow.lua", ("local started = %q"):format(started) .. [[
    local redco = require "redco"
    local torch = redco.torch
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, num_workers = 2,
      params = { w = torch.zeros { 1 } }, optimizer = redco.optim.sgd { learning_rate = 1 },
      collate_fn = function(batch)
        io.open(started, "w"):close()
        while true do torch.zeros { 1 } end
      end,
      loss_fn = function(_, _, params) return params.w:sum() end,
    }
    trainer:train { examples = { 1, 2, 3 }, per_device_batch_size = 1 }
  ]])
  -- Before it has started, a program that a shell runs in the background ignores the signal.
  local command = "'%s' '%s' 2>&1 & for i in $(seq 400); do [ -e '%s' ] && break; sleep 0.05; "
    .. "done; kill -INT $!; date +%%s; wait $!; echo $?; date +%%s"
  local pipe = io.popen(command:format(os.getenv "REDCO_LUA", script, started))
  local out = pipe:read "*a"
  pipe:close()
  assert(out:find("interrupted", 1, true) and out:find("130\n", 1, true), out)
  local signalled, ended = out:match "^(%d+)\n.-(%d+)\n$"
  assert(ended - signalled < 6, out)
end)

test("modules that a collate_fn alone uses are loaded, and strict, in the workers", function()
  local augment, metrics = redco.augment, redco.metrics
  local trainer = new_trainer {
    num_workers = 2,
    collate_fn = function(batch)
      assert(metrics.exact_match({ "a" }, { "a" }) == 1)
      assert(type(redco.lora.merge) == "function" and type(augment) == "table")
      for name, module in pairs { lora = redco.lora, augment = augment, redco = redco } do
        local ok, message = pcall(function() return module.nothing end)
        assert(not ok and tostring(message):find("has no 'nothing'", 1, true), name)
      end
      return { x = torch.ones { 1 } }
    end,
  }
  trainer:eval_loss { examples = numbers(4), per_device_batch_size = 1 }
end)

test("workers end with their Trainer", function()
  -- Linux counts a thread for a moment after it was joined.
  local function n_threads()
    local least = math.huge
    for _ = 1, 5 do
      os.execute "sleep 0.01"
      for line in io.lines "/proc/self/status" do
        least = math.min(least, tonumber(line:match "^Threads:%s*(%d+)") or math.huge)
      end
    end
    return least
  end
  local function collate() return { x = torch.ones { 1 } } end
  new_trainer { num_workers = 0, collate_fn = collate }:eval_loss {
    examples = numbers(9), per_device_batch_size = 1 }
  collectgarbage()
  collectgarbage()
  local before = n_threads()
  local trainer = new_trainer { num_workers = 5, collate_fn = collate }
  trainer:eval_loss { examples = numbers(9), per_device_batch_size = 1 }
  assert(n_threads() >= before + 5)
  trainer = nil  -- luacheck: ignore
  collectgarbage()
  collectgarbage()
  expect_equal(n_threads(), before)
end)

testing.finish()
