-- In which dtypes a Trainer and its predictor compute: compute_dtype, and autocast.
local redco = require "redco"
local testing = require "testing"

local nn, torch = redco.nn, redco.torch
local test, expect_close, expect_equal = testing.test, testing.expect_close, testing.expect_equal
local expect_error = testing.expect_error

local generator = torch.Generator(1)
local function random(...) return torch.randn({ ... }, { generator = generator }) end

local deployer = redco.Deployer { seed = 1, verbose = false }

-- A batch with leaves of all dtypes, and a loss that needs the parameter.
local function example(i)
  return { x = torch.full({ 3 }, i), wide = torch.full({ 2 }, i, { dtype = "float64" }) }
end

local function collate(examples)
  local x, wide = {}, {}
  for i, e in ipairs(examples) do x[i], wide[i] = e.x:float(), e.wide end
  return {
    x = torch.stack(x), nested = { { wide = torch.stack(wide) } },
    half = torch.ones({ #examples }, { dtype = "float16" }),
    brain = torch.ones({ #examples }, { dtype = "bfloat16" }),
    id = torch.arange(#examples), flag = torch.ones({ #examples }, { dtype = "bool" }),
    byte = torch.ones({ #examples }, { dtype = "uint8" }),
    complex = torch.ones({ #examples }, { dtype = "complex64" }),
  }
end

local examples = {}
for i = 1, 4 do examples[i] = example(i) end

local function expect_cast(batch, params, dtype)
  for _, tensor in ipairs { batch.x, batch.nested[1].wide, batch.half, batch.brain, params.w } do
    expect_equal(tensor.dtype, dtype)
  end
  expect_equal(batch.id.dtype, "int64")
  expect_equal(batch.flag.dtype, "bool")
  expect_equal(batch.byte.dtype, "uint8")
  expect_equal(batch.complex.dtype, "complex64")
  expect_equal(params.ids.dtype, "int64")
end

local cases = {
  float32 = "float32", float64 = "float64", bfloat16 = "bfloat16", float16 = "float16",
  ["autocast:bfloat16"] = "float32", ["autocast:float16"] = "float32", float8 = "bfloat16",
}

for compute_dtype, dtype in pairs(cases) do
  local product = compute_dtype:match ":(.*)" or dtype

  test("floating-point leaves of params and batch: " .. compute_dtype, function()
    local seen = {}
    local function loss(name, params, batch)
      seen[name] = true
      expect_cast(batch, params, dtype)
      local y = batch.x:matmul(params.w)
      expect_equal(y.dtype, product)
      return y:pow(2):mean()
    end
    for _, options in ipairs { {}, { collate = "local" }, { num_workers = 1 } } do
      local trainer = redco.Trainer {
        deployer = deployer, compute_dtype = compute_dtype,
        params = { w = random(3), ids = torch.arange(2) },
        collate_fn = collate, collate = options.collate, num_workers = options.num_workers,
        loss_fn = function(_, _, params, batch, is_training)
          return loss(is_training and "training" or "evaluation", params, batch)
        end,
        optimizer = redco.optim.adamw { learning_rate = 0.01 },
      }
      local predictor = trainer:get_default_predictor { pred_fn = function(_, params, batch)
        loss("prediction", params, batch)
        return batch.x:matmul(params.w)
      end }
      trainer:fit {
        train_examples = examples, eval_examples = examples, per_device_batch_size = 2,
        n_epochs = 1, eval_predictor = predictor, eval_metric_fn = function(_, preds)
          return { first = preds[1]:item() }
        end,
      }
      -- Parameters, gradients and states keep their own.
      expect_equal(trainer.params.w.dtype, "float32")
      for _, leaf in ipairs(redco.tree.leaves(trainer.state.opt_state)) do
        assert(not torch.is_tensor(leaf) or leaf.dtype == "float32")
      end
    end
    assert(seen.training and seen.evaluation and seen.prediction)
  end)

  test("a step of one's own: " .. compute_dtype, function()
    local trainer
    trainer = redco.Trainer {
      deployer = deployer, compute_dtype = compute_dtype,
      params = { w = random(3), ids = torch.arange(2) }, collate_fn = collate,
      loss_fn = function() error "not called" end,
      optimizer = redco.optim.sgd { learning_rate = 0.1 },
      loss_scale = product == "float16" and { scale = 1 } or nil,
      train_step_fn = function(_, state, batch, defaults)
        local value, gradients = defaults.value_and_grad(function(params)
          expect_cast(batch, params, dtype)
          local y = batch.x:matmul(params.w)
          expect_equal(y.dtype, product)
          return y:sum()
        end)
        expect_equal(gradients.w.dtype, "float32")
        expect_equal(state.params.w.dtype, "float32")
        return { value = value, norm = defaults.apply_gradients(gradients) }
      end,
    }
    trainer:train { examples = examples, per_device_batch_size = 2 }
    expect_equal(trainer.step, 2)
  end)
end

test("running statistics that loss_fn updates are kept, whatever they are cast to", function()
  local function start()
    return {
      w = torch.full({ 3 }, 0.5), frozen = torch.full({ 3 }, 1 + 2 ^ -20), table = random(2, 3),
      mean = torch.zeros { 3 }, var = torch.ones { 3 }, count = torch.zeros { 2, 2 },
    }
  end
  local function train(compute_dtype, own_step)
    local params = start()
    local function loss_fn(_, _, p, batch)
      torch.no_grad(function() p.count:add_(1) end)
      local y = torch.batch_norm(batch.x * p.w, nil, nil, p.mean, p.var, true, 0.5, 1e-5, false)
      return (y * p.w * p.frozen):sum()
    end
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
      compute_dtype = compute_dtype, collate_fn = collate,
      loss_scale = compute_dtype:find "float16$" and not compute_dtype:find "bfloat16"
        and { scale = 1 } or nil,
      loss_fn = loss_fn,
      train_step_fn = own_step and function(_, _, batch, defaults)
        local loss, gradients = defaults.value_and_grad(function(p)
          return loss_fn(nil, nil, p, batch)
        end)
        defaults.apply_gradients(gradients)
        return { loss = loss }
      end or nil,
      optimizer = redco.optim.freeze(redco.optim.sgd { learning_rate = 1e-3 },
        function(name) return name ~= "w" end),
    }
    trainer:train { examples = examples, per_device_batch_size = 2 }
    return trainer.params, params
  end
  local expected = train "float32"
  for compute_dtype in pairs(cases) do
    for _, own_step in ipairs { false, true } do
      local params, given = train(compute_dtype, own_step)
      expect_close(params.mean, expected.mean, 0.02)
      expect_close(params.var, expected.var, 0.02)
      expect_close(params.count, torch.full({ 2, 2 }, 2), 0, 0)
      -- Parameters that no step changes keep all their digits.
      expect_close(params.frozen, given.frozen, 0, 0)
      expect_close(params.table, given.table, 0, 0)
    end
  end
end)

test("other dtypes are refused, by name", function()
  for _, name in ipairs { "int64", "complex64", "autocast:float8", "autocast:float32", "autocast",
    "autocast:int64", "bf16" } do
    expect_error(function()
      redco.Trainer {
        deployer = deployer, params = { w = random(3) }, collate_fn = collate,
        loss_fn = function() end, optimizer = redco.optim.sgd { learning_rate = 1 },
        compute_dtype = name,
      }
    end, "precision_spec.lua", 'compute_dtype = "' .. name .. '"', "autocast:bfloat16")
  end
  expect_error(function() torch.autocast("tpu", {}, print) end, '"tpu"', '"cuda"')
  expect_error(function() torch.autocast("cpu", { dtype = "float32" }, print) end, '"float32"')
  expect_error(function() torch.autocast("cpu", {}) end, "expected a function")
  expect_error(function() torch.autocast(print) end, "name of a device")
end)

-- torch.autocast, by itself.
test("the options of autocast may be omitted", function()
  local x = torch.ones { 2, 2 }
  expect_equal(torch.autocast("cpu", torch.mm, x, x).dtype, "bfloat16")
  expect_error(function() torch.autocast "cpu" end, "torch.autocast")
end)


local function under(dtype, f, ...) return torch.autocast("cpu", { dtype = dtype }, f, ...) end

local x, w = random(4, 6), random(6, 6)
local image, kernel = random(2, 3, 5, 5), random(4, 3, 3, 3)
local labels = torch.tensor { 1, 0, 5, 3 }
local truth = x:gt(0):float()

-- Dtypes of results, by operator: of arguments in float32, and of the result of a product.
local lower = {
  matmul = function(a) return a:matmul(w) end, mm = function(a) return a:mm(w) end,
  mv = function(a) return a:mv(w[0]) end, linear = function(a) return torch.linear(a, w) end,
  few_rows = function(a) return nn.linear({ weight = w }, a) end,
  einsum = function(a) return torch.einsum("ij,jk->ik", { a, w }) end,
  bmm = function(a) return a:unsqueeze(0):bmm(w:unsqueeze(0)) end,
  addmm = function(a) return torch.addmm(torch.zeros { 6 }, a, w) end,
  conv = function() return torch.conv2d(image, kernel) end,
  attention = function(a)
    local q = a:view { 1, 1, 4, 6 }
    return nn.attention(q, q, q)
  end,
}
local float32 = {
  exp = function(a) return a:exp() end, log = function(a) return a:abs():log() end,
  pow = function(a) return a:pow(2) end, sum = function(a) return a:sum() end,
  sum_dim = function(a) return a:sum(1) end, cumsum = function(a) return a:cumsum(0) end,
  softmax = function(a) return a:softmax(-1) end, norm = function(a) return a:norm() end,
  log_softmax = function(a) return a:log_softmax(-1) end,
  rsqrt = function(a) return a:abs():rsqrt() end,
  layer_norm = function(a) return torch.layer_norm(a, { 6 }) end,
  group_norm = function(a) return torch.group_norm(a, 2) end,
  logsumexp = function(a) return a:logsumexp(1) end, prod = function(a) return a:prod() end,
  mse = function(a) return torch.mse_loss(a, w:narrow(0, 0, 4)) end,
  cross_entropy = function(a) return torch.cross_entropy_loss(a, labels) end,
  fused = function(a) return (nn.linear_cross_entropy(a, w, labels)) end,
  bce = function(a) return torch.binary_cross_entropy_with_logits(a, truth) end,
}

test("products run in 16 bits, norms, softmax, losses and sums in float32", function()
  for _, dtype in ipairs { "bfloat16", "float16" } do
    local made = under(dtype, function() return x:matmul(w) end)
    for name, f in pairs(lower) do
      for _, a in ipairs { x, made } do
        local y = under(dtype, f, a)
        if y.dtype ~= dtype then error(name .. " runs in " .. y.dtype) end
        expect_close(y:float(), f(a:float()), 0.05, 0.3)
      end
      expect_equal(f(x:double():float()).dtype, "float32")
    end
    for name, f in pairs(float32) do
      for _, a in ipairs { x, made } do
        local y = under(dtype, f, a)
        if y.dtype ~= "float32" then error(name .. " runs in " .. y.dtype) end
        -- In float32 to the last digit: only what it is given is rounded.
        if name ~= "fused" then expect_close(y, f(a:float()), 1e-6, 1e-6) end
      end
    end
    expect_equal(under(dtype, function() return torch.relu(made).dtype end), dtype)
    expect_equal(under(dtype, function() return (made + x).dtype end), "float32")
    expect_equal(under(dtype, function() return x:double():mm(w:double()).dtype end), "float64")
    expect_equal(under(dtype, function() return torch.arange(3):sum().dtype end), "int64")
    expect_equal(under(dtype, function() return made:sum(0, false, { dtype = dtype }).dtype end),
      dtype)
  end
end)

test("autocast nests, ends with its function and with an error, and passes all results", function()
  local function dtype() return x:mm(w).dtype end
  local a, b, c = torch.autocast("cpu", {}, function(...)
    expect_equal(select("#", ...), 3)
    expect_equal(dtype(), "bfloat16")
    expect_equal(under("float16", dtype), "float16")
    expect_equal(torch.autocast("cpu", { enabled = false }, dtype), "float32")
    expect_equal(dtype(), "bfloat16")
    return ...
  end, 1, nil, 3)
  assert(a == 1 and b == nil and c == 3)
  assert(not pcall(under, "bfloat16", error, "out of tea"))
  expect_equal(dtype(), "float32")
end)

test("gradients arrive in float32, and see each change of a weight", function()
  local weight = w:clone():requires_grad_()
  local seen = {}
  local loss = under("bfloat16", function()
    -- A cast that was kept from here would have no gradient.
    torch.no_grad(function() seen[1] = x:matmul(weight):sum():item() end)
    local first = x:matmul(weight):sum()
    seen[2] = first:item()
    torch.no_grad(function() weight:data():mul_(2) end)
    seen[3] = x:matmul(weight):sum():item()
    return first
  end)
  loss:backward()
  expect_equal(weight.grad.dtype, "float32")
  expect_close(weight.grad, x:sum(0):unsqueeze(1):expand { 6, 6 }:clone(), 0.02, 0.02)
  expect_equal(seen[1], seen[2])
  expect_equal(seen[3], 2 * seen[1])
end)

test("recomputed activations are those of the first run", function()
  local function block(a, weight)
    return torch.gelu(torch.layer_norm(a:matmul(weight), { 6 })):matmul(weight)
  end
  local gradients = {}
  for i, run in ipairs { block, function(...) return redco.checkpoint(block, ...) end } do
    local weight = w:clone():requires_grad_()
    under("bfloat16", function() return run(x, weight):sum() end):backward()
    gradients[i] = weight.grad
  end
  expect_close(gradients[2], gradients[1], 0, 0)
end)

-- The share of the gradients of a step that are accumulated before the last product of backward:
-- these can be sent, and their copies in 16 bits freed, while backward runs.
local function share_of_gradients(name, options)
  local workdir = os.tmpname() .. name
  local model = redco.models.from_config({
    model_type = "llama", vocab_size = 32, hidden_size = 16, intermediate_size = 32,
    num_hidden_layers = 12, num_attention_heads = 2, num_key_value_heads = 2,
    max_position_embeddings = 16, tie_word_embeddings = options.is_tied or false,
  }, { generator = generator })
  local optimizer = redco.optim.sgd { learning_rate = 0.1 }
  local params = model.params
  if options.has_adapters then
    params = redco.lora.add(params, { target_modules = { "q_proj", "down_proj" } })
    optimizer = redco.lora.freeze_base(optimizer)
  end
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, workdir = workdir, verbose = false },
    params = params, optimizer = optimizer, loss_fn = model.loss_fn,
    collate_fn = redco.data.default_collate, compute_dtype = "bfloat16",
    recompute = options.recompute,
  }
  local ids = torch.arange(8)
  trainer:fit {
    train_examples = redco.data.dataset(4, function() return { input_ids = ids, labels = ids } end),
    per_device_batch_size = 2, n_epochs = 1, profile = { steps = { 1, 1 } },
  }
  local events = redco.data.json(workdir .. "/profile_step1-1.json").traceEvents
  table.sort(events, function(a, b) return a.ts < b.ts end)
  local n, n_before, is_backward = 0, 0, false
  for _, event in ipairs(events) do
    if event.name == "backward" then is_backward = true end
    if event.name == "torch::autograd::AccumulateGrad" then n = n + 1 end
    if is_backward and event.name == "aten::mm" then n_before = n end
  end
  assert(n >= 24, n)
  return n_before / n
end

for name, options in pairs {
  plain = {}, recomputed = { recompute = "blocks" }, tied = { is_tied = true },
  adapters = { has_adapters = true },
  adapters_recomputed = { has_adapters = true, recompute = "blocks" },
} do
  test("gradients of cast parameters come while backward runs: " .. name, function()
    local share = share_of_gradients(name, options)
    assert(share >= 0.9, share)
  end)
end

test("a step of one's own scales a float16 loss by more than float16 can hold", function()
  local trainer = redco.Trainer {
    deployer = deployer, compute_dtype = "float16", params = { w = torch.zeros { 3 } },
    collate_fn = collate, loss_fn = function() error "not called" end,
    optimizer = redco.optim.sgd { learning_rate = 1 },
    train_step_fn = function(_, _, _, defaults)
      local _, gradients = defaults.value_and_grad(function(params) return params.w:sum() end)
      return { norm = defaults.apply_gradients(gradients) }
    end,
  }
  trainer:train { examples = examples, per_device_batch_size = 4 }
  expect_equal(trainer.state.loss_scale.scale, 65536)
  expect_equal(trainer.step, 1)
  expect_close(trainer.params.w, torch.full({ 3 }, -1), 0, 0)
end)

test("vmap and grad work under autocast", function()
  local function loss(weight, row) return row:matmul(weight):softmax(-1):log():sum() end
  local per_example = redco.vmap(redco.grad(loss), { in_dims = { false, 0 } })
  local gradients = under("bfloat16", per_example, w, x)
  expect_equal(gradients.dtype, "float32")
  expect_close(gradients, per_example(w, x), 0.05, 0.1)
end)

testing.finish()
