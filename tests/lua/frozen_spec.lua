-- Checkpoints of runs that train few of their parameters: they name the rest, which came from files
-- of weights, and do not contain it.
local redco = require "redco"
local testing = require "testing"

local torch, lora, tree = redco.torch, redco.lora, redco.tree
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error

local scratch = testing.folder()
local config = { model_type = "llama", vocab_size = 128, hidden_size = 64, intermediate_size = 96,
  num_hidden_layers = 2, num_attention_heads = 4, initializer_range = 0.1 }
local base = scratch .. "/base"
redco.models.from_config(config, { generator = redco.Rng(1) }).save_pretrained(base)

local rows, rng = {}, redco.Rng(3)
for i = 1, 12 do rows[i] = torch.randint(3, 128, { 6 }, { generator = rng }) end

local function collate(examples)
  local ids = torch.stack(examples)
  return { input_ids = ids, labels = ids }
end

local function new_deployer(name)
  return redco.Deployer { seed = 1, workdir = scratch .. "/" .. name, verbose = false }
end

local function size_of(path)
  local file = io.open(path, "rb")
  if not file then return 0 end
  local size = file:seek "end"
  file:close()
  return size
end

-- The bytes of the tensors of a checkpoint.
local function bytes_in(folder)
  local sum = 0
  for _, stem in ipairs { "params", "opt_state" } do
    sum = sum + size_of(("%s/%s.safetensors"):format(folder, stem))
  end
  return sum
end

local function names_in(folder)
  local names = {}
  for name in pairs(torch.load(folder .. "/params.safetensors")) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- A run with adapters, which goes on from a checkpoint if there is one. `o`: steps, and options of
-- load_last_ckpt and of fit.
local function run(name, o)
  local deployer = new_deployer(name)
  local model = redco.models.from_pretrained(o.base or base,
    { dtype = o.dtype, quantize = o.quantize })
  local base_params = model.params
  if o.rounds then
    base_params = redco.quant.quantize(base_params, { type = o.rounds, target_modules = { "o_proj",
      "q_proj" } })
  end
  local params = lora.add(base_params, { target_modules = { "q_proj" }, r = 2,
    generator = redco.Rng(2) })
  if o.load then o.load.params = o.load.params and params end
  local ckpt, info = deployer:load_last_ckpt(o.load or {})
  local trainer = redco.Trainer {
    deployer = deployer, params = ckpt and ckpt.params or params,
    opt_state = ckpt and ckpt.opt_state, last_ckpt_info = info, collate_fn = collate,
    loss_fn = o.loss_fn or model.loss_fn,
    optimizer = o.optimizer or lora.freeze_base(redco.optim.chain {
      redco.optim.adamw { learning_rate = 1e-2 }, redco.optim.ema { decay = 0.9 },
    }),
  }
  local options = { train_examples = rows, per_device_batch_size = 4, n_epochs = 4,
    max_steps = o.steps, save_last_ckpt = true }
  for key, value in pairs(o.fit or {}) do options[key] = value end
  trainer:fit(options)
  return trainer, model, deployer
end

local function expect_same(actual, expected)
  tree.map(function(a, b)
    if torch.is_tensor(b) then assert(torch.equal(a, b)) else expect_equal(a, b) end
  end, actual.params, expected.params)
  tree.map(function(a, b)
    if torch.is_tensor(b) then assert(torch.equal(a, b)) end
  end, actual.state.opt_state, expected.state.opt_state)
end

local last = "/ckpts/last"

test("a run with adapters writes the adapters, and resumes to the bit", function()
  local whole = run("whole", {})
  for _, dtype in ipairs { "float32", "bfloat16" } do
    local name = "killed_" .. dtype
    run(name, { steps = 5, dtype = dtype })
    local folder = scratch .. "/" .. name .. last
    for _, each in ipairs(names_in(folder)) do assert(each:find "lora_[AB]", each) end
    local trained = 2 * 2 * (64 + 64) * 4  -- of two layers
    -- Adam's two moments, the average, and the parameters.
    local bytes = bytes_in(folder)
    assert(bytes < 4 * trained + 6000, bytes)
    assert(bytes < size_of(base .. "/model.safetensors") / 10)
    local resumed = run(name, { dtype = dtype })
    if dtype == "float32" then expect_same(resumed, whole) end
    expect_equal(resumed.params["model.norm.weight"].dtype, dtype)
    assert(bytes_in(folder) < 4 * trained + 6000, "the resumed run writes the base")
  end
end)

test("the average of a frozen parameter is the parameter", function()
  local trainer = run("average", { steps = 3 })
  local averages = redco.optim.chain {
    redco.optim.adamw { learning_rate = 1e-2 }, redco.optim.ema { decay = 0.9 },
  }
  averages = lora.freeze_base(averages):averages({
    step = trainer.state.step, opt_state = trainer.state.opt_state,
  }, trainer.params)
  local name = "model.layers.0.self_attn.q_proj"
  assert(torch.equal(averages[name .. ".weight"], trainer.params[name .. ".weight"]))
  name = name .. ".lora_B.weight"
  assert(not torch.equal(averages[name], trainer.params[name]))
end)

test("packed weights of a file are named, and come from the tree with which the run began",
  function()
    for _, how in ipairs { { quantize = "q8_0" }, { rounds = "q4_0" } } do
      local name = how.quantize or how.rounds
      local function run_steps(folder, steps, load)
        return run(folder, { steps = steps, load = load, quantize = how.quantize,
          rounds = how.rounds })
      end
      local whole = run_steps("whole_" .. name)
      run_steps("killed_" .. name, 5)
      local folder = scratch .. "/killed_" .. name .. last
      for _, each in ipairs(names_in(folder)) do assert(each:find "lora_[AB]", each) end
      expect_error(function() run_steps("killed_" .. name) end, "Give their values",
        "load_last_ckpt { params = params }")
      expect_same(run_steps("killed_" .. name, nil, { params = true }), whole)
      for _, each in ipairs(names_in(folder)) do assert(each:find "lora_[AB]", each) end
    end
  end)

test("save_frozen writes everything", function()
  local trainer, _, deployer = run("everything", { steps = 3, fit = { save_frozen = true } })
  local folder = scratch .. "/everything"
  assert(#names_in(folder .. last) > 20)
  trainer:save_ckpt { ckpt_name = "few" }
  trainer:save_ckpt { ckpt_name = "all", save_frozen = true }
  assert(#names_in(folder .. "/ckpts/few") == 4 and #names_in(folder .. "/ckpts/all") > 20)
  local shapes = deployer:load_params_shape(folder .. "/ckpts/few")
  expect_equal(shapes["model.norm.weight"].shape[1], 64)
  expect_equal(tree.count(shapes), tree.count(trainer.params))
end)

test("the best, and those of steps", function()
  run("best", { steps = 6, fit = { save_ckpt_every_k_steps = 2, keep_last_k_ckpts = 2,
    eval_examples = rows, save_argmin_ckpt_by_metrics = { "loss" } } })
  for _, name in ipairs { "min_loss", "step_4", "step_6" } do
    expect_equal(#names_in(scratch .. "/best/ckpts/" .. name), 4)
  end
  local ckpt = new_deployer("best"):load_ckpt { ckpt_dir = scratch .. "/best/ckpts/min_loss" }
  local model = redco.models.from_pretrained(base)
  assert(torch.equal(ckpt.params["model.norm.weight"], model.params["model.norm.weight"]))
  -- A checkpoint whose params are not asked for needs no base.
  assert(new_deployer("best"):load_last_ckpt({ load_params = false }).params == nil)
end)

local function copy_of(path, to)
  os.execute(("cp -r '%s' '%s'"):format(path, to))
  return to
end

test("another base is refused by the name of what differs", function()
  local own = copy_of(base, scratch .. "/own")
  run("changed", { steps = 3, base = own })
  local model = redco.models.from_pretrained(own)
  local name = "model.layers.1.mlp.up_proj.weight"
  model.params[name] = model.params[name] + 0.1
  model.save_pretrained(own)
  expect_error(function() run("changed", { base = own }) end, "ckpts/last: the frozen parameter '"
    .. name .. "' has other values in " .. own, "XXH3-64", "Use the base that the run began with")
  expect_error(function() run("changed", { base = own, load = { params = true } }) end, name,
    "in the given tree")
  -- The checkpoint is not damaged, and goes on with the right base.
  run("changed", { load = { params = true } })
  -- Without its folder, the error says what to give.
  run("moved", { steps = 3, base = copy_of(base, scratch .. "/gone") })
  os.execute(("mv '%s/gone' '%s/elsewhere'"):format(scratch, scratch))
  expect_error(function() new_deployer("moved"):load_last_ckpt() end, "only by name",
    "was read from " .. scratch .. "/gone", "load_last_ckpt { params = params }")
  local resumed = run("moved", { base = scratch .. "/elsewhere", load = { params = true } })
  expect_same(resumed, run("unmoved", {}))
  assert(#names_in(scratch .. "/moved" .. last) == 4)
  expect_error(function()
    new_deployer("moved"):load_last_ckpt { params = { ["lm_head.weight"] = torch.zeros { 3 } } }
  end, "lm_head.weight", "[128, 64] F32", "[3]")
end)

test("what changes without being trained is written, and what the script made", function()
  local norm = "model.layers.0.input_layernorm.weight"
  local model = redco.models.from_pretrained(base)
  local trainer = run("changing", { steps = 4, loss_fn = function(random, state, p, batch, ...)
    torch.no_grad(function() p[norm]:mul_(0.99) end)
    return model.loss_fn(random, state, p, batch, ...)
  end })
  expect_equal(#names_in(scratch .. "/changing" .. last), 5)
  local ckpt = new_deployer("changing"):load_last_ckpt()
  assert(torch.equal(ckpt.params[norm], trainer.params[norm]))

  -- Running statistics that came from a file, which a kernel writes.
  local function forward(p, x, train)
    return redco.nn.batch_norm(p, x, { train = train })
  end
  local statistics = redco.nn.BatchNorm(4)
  for name, leaf in pairs(statistics) do
    require("redco.native").set_source(leaf, base, name)
  end
  local deployer = new_deployer "statistics"
  trainer = redco.Trainer {
    deployer = deployer, params = statistics,
    collate_fn = function() return { x = torch.randn({ 8, 4 }, { generator = redco.Rng(1) }) } end,
    loss_fn = function(_, _, p, batch, train) return forward(p, batch.x, train):square():mean() end,
    optimizer = redco.optim.adamw { learning_rate = 1e-2 },
  }
  trainer:fit { train_examples = { 1, 2 }, per_device_batch_size = 1, n_epochs = 1,
    save_last_ckpt = true }
  expect_equal(table.concat(names_in(scratch .. "/statistics" .. last), " "),
    "bias running_mean running_var weight")

  -- Large ones, of which only writes are noticed.
  local native, large = require "redco.native", {}
  for _, name in ipairs { "kept", "written" } do
    large[name] = torch.rand { 640, 512 }
    torch.save({ [name] = large[name] }, ("%s/%s.safetensors"):format(scratch, name))
    native.set_source(large[name], ("%s/%s.safetensors"):format(scratch, name), name)
  end
  large.scale = torch.ones { 1 }
  deployer = new_deployer "large"
  trainer = redco.Trainer {
    deployer = deployer, params = large, collate_fn = function() return {} end,
    loss_fn = function(_, _, p)
      torch.no_grad(function() p.written[0]:zero_() end)
      return p.kept:mean() * p.written:mean() * p.scale:sum()
    end,
    optimizer = redco.optim.freeze(redco.optim.adamw { learning_rate = 1e-2 },
      { "kept", "written" }),
  }
  trainer:fit { train_examples = { 1, 2 }, per_device_batch_size = 1, n_epochs = 1,
    save_last_ckpt = true }
  expect_equal(table.concat(names_in(scratch .. "/large" .. last), " "), "scale written")
  local read = deployer:load_last_ckpt().params
  assert(torch.equal(read.kept, large.kept) and read.written[0]:abs():max():item() == 0)

  -- No file has it.
  deployer = new_deployer "made"
  local params = { fixed = redco.nn.Linear(4, 4), trained = redco.nn.Linear(4, 2) }
  trainer = redco.Trainer {
    deployer = deployer, params = params, collate_fn = function() return {} end,
    loss_fn = function(_, _, p)
      return redco.nn.linear(p.trained, redco.nn.linear(p.fixed, torch.ones { 3, 4 })):sum()
    end,
    optimizer = redco.optim.freeze(redco.optim.adamw { learning_rate = 1e-2 }, "fixed.*"),
  }
  trainer:fit { train_examples = { 1, 2 }, per_device_batch_size = 1, n_epochs = 1,
    save_last_ckpt = true }
  assert(torch.equal(deployer:load_last_ckpt().params.fixed.weight, params.fixed.weight))
end)

test("a run that goes back to its checkpoint still writes only the adapters", function()
  local n = 0
  local model = redco.models.from_pretrained(base)
  run("restored", { steps = 8, fit = { save_ckpt_every_k_steps = 2, on_nonfinite = "restore" },
    loss_fn = function(random, state, p, batch, ...)
      local loss = model.loss_fn(random, state, p, batch, ...)
      n = n + 1
      return n == 5 and loss * 0 / 0 or loss
    end })
  expect_equal(#names_in(scratch .. "/restored/ckpts/step_8"), 4)
end)

test("textual inversion", function()
  local pipeline = redco.diffusion.from_pretrained "../cases/stable_diffusion"
  local params = redco.diffusion.add_token(pipeline, "<x>", { initializer = "!" })
  local deployer = new_deployer "inversion"
  local name = "text_encoder.text_model.embeddings.added_tokens.weight"
  local trainer = redco.Trainer {
    deployer = deployer, params = params, collate_fn = function() return {} end,
    optimizer = redco.optim.freeze(redco.optim.adamw { learning_rate = 0.1 },
      function(each) return not each:find "added_tokens" end),
    loss_fn = function(_, _, p)
      return p.text_encoder["text_model.embeddings.added_tokens.weight"]:square():mean()
    end,
  }
  trainer:fit { train_examples = { 1 }, per_device_batch_size = 1, n_epochs = 1,
    save_last_ckpt = true }
  expect_equal(table.concat(names_in(scratch .. "/inversion" .. last), " "), name)
  local loaded = deployer:load_last_ckpt().params
  tree.map(function(a, b) assert(torch.equal(a, b)) end, loaded, trainer.params)
end)

testing.finish()
