-- Each case is what one process may do and the others not, and what the error must name. `start`
-- makes the Deployer; `run` runs a case in which the process `who` strays.
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local strays = { cases = {} }
local d, x

function strays.start(n_model_shards, workdir)
  d = redco.Deployer { seed = 1, n_model_shards = n_model_shards, workdir = workdir,
    verbose = false, collective_timeout = 20 }
  x = redco.shard(torch.arange(24):reshape { 4, 6 }:float(), { dp = 0, mp = 1 })
end

--- Two steps of a small training. `options` may have `examples` and `in_loss`, and options of the
--- Trainer.
local function train(options)
  local examples = options.examples or {}
  for i = 1, options.examples and 0 or 8 do
    examples[i] = { x = torch.full({ 4 }, i / 8), y = i % 3 }
  end
  local params = options.params or nn.MLP({ 4, 6, 3 }, { generator = torch.Generator(1) })
  local trainer = redco.Trainer {
    deployer = d, params = params,
    collate_fn = redco.data.default_collate,
    loss_fn = function(_, _, p, batch, is_training)
      local h = nn.linear(p[1], batch.x)
      if options.in_loss then h = options.in_loss(h) or h end
      h = torch.dropout(h:tanh(), 0.5, is_training)
      return nn.cross_entropy(nn.linear(p[2], h), batch.y)
    end,
    optimizer = options.optimizer or redco.optim.sgd { learning_rate = 0.1 },
  }
  trainer:train { examples = examples,
    per_device_batch_size = (options.batch_size or 4) / d.mesh.dp }
  return trainer
end

--- `expected`: parts of the error; a case without any is right. `is_checked`: found only with
--- REDCO_CHECK_SPMD=1. `has_line`: the error names a line of the case.
local function case(name, body, expected, options)
  local info = debug.getinfo(body, "S")
  strays.cases[#strays.cases + 1] = { name = name, body = body, expected = expected or {},
    is_checked = options and options.is_checked, has_line = not (options and options.no_line),
    first_line = info.linedefined, last_line = info.lastlinedefined }
end

function strays.run(name, who)
  for _, each in ipairs(strays.cases) do
    if each.name == name then
      each.body(d.process_id == who)
      return x:sum():item()
    end
  end
  error("no case " .. name)
end

-- Collectives that one process alone calls.
case("full", function(is_stray) if is_stray then x:full() end end, { "calls all_gather" })
case("sort", function(is_stray) if is_stray then x:sort(0) x:sort(1) end end, { "aten::sort" })
case("item", function(is_stray) if is_stray then x:mean():item() end end, { "aten::mean" })
case("maximum", function(is_stray) if is_stray then x:max():item() end end, { "all_reduce" })
case("twice", function(is_stray)
  for _ = 1, is_stray and 3 or 2 do x:full() end
end, { "all_gather" })
case("skips", function(is_stray) if not is_stray then x:full() end end, { "all_gather" })
case("grad", function(is_stray)
  if is_stray then redco.grad(function(w) return (w * x):prod() end)(torch.ones { 4, 6 }) end
end, { "diverged" })
case("save", function(is_stray)
  local trainer = train {}
  if is_stray then trainer:save_ckpt { ckpt_name = "of_one" } end
end, { 'saves the checkpoint "of_one"' })
case("evaluates", function(is_stray)
  local trainer = train {}
  local batch = { { x = torch.ones { 4 }, y = 1 } }
  if is_stray then trainer:eval_loss { examples = batch, per_device_batch_size = 4 } end
end, { "evaluates the loss of 1 examples" })
case("predicts", function(is_stray)
  local trainer = train {}
  local predictor = trainer:get_default_predictor {
    pred_fn = function(_, p, batch) return nn.linear(p[1], batch.x) end }
  if is_stray then
    predictor:predict { examples = { { x = torch.ones { 4 } } }, params = trainer.params,
      per_device_batch_size = 4 }
  end
end, { "predicts 1 examples" })
case("another Deployer", function(is_stray)
  if is_stray then redco.Deployer { seed = 1, verbose = false } end
end, { "makes a mesh" })

-- Other collectives, or of another size or type.
case("another operator", function(is_stray)
  local _ = is_stray and { x:sort(0), x:sort(1) } or { x:flip(0), x:flip(1) }
end, { "aten::sort", "aten::flip" })
case("another reduction", function(is_stray)
  local _ = is_stray and x:mean():item() or x:amax():item()
end, { "aten::mean", "aten::amax" })
case("another size", function(is_stray)
  redco.shard(torch.ones { 4, is_stray and 8 or 12 }, { dp = 0, mp = 1 }):full()
end, { "all_gather" })
case("another type", function(is_stray)
  redco.shard(torch.ones({ 4, 8 }, { dtype = is_stray and "float64" or "float32" }),
    { dp = 0, mp = 1 }):full()
end, { "Double[", "Float[" })

case("another order", function(is_stray)
  local sizes = is_stray and { 8, 12 } or { 12, 8 }
  for _, n in ipairs(sizes) do redco.shard(torch.ones { 4, n }, { dp = 0, mp = 1 }):full() end
end, { "all_gather", "next visits a table in another order" })

-- Random numbers.
case("randn", function(is_stray)
  train { in_loss = function() if is_stray then torch.randn { 3 } end end }
end, { "draws random numbers" })
case("dropout", function(is_stray)
  train { in_loss = function(h) if is_stray then torch.dropout(h, 0.5, true) end end }
end, { "draws random numbers" })
case("parameters", function(is_stray)
  train { params = nn.MLP({ 4, 6, 3 }, { generator = torch.Generator(is_stray and 2 or 1) }) }
end, { "is not the same on all processes" })

-- Values that decide what a training does next.
case("stop in a hook", function(is_stray)
  local params = { w = torch.ones { 4 } }
  redco.Trainer {
    deployer = d, params = params, optimizer = redco.optim.sgd { learning_rate = 0.1 },
    collate_fn = redco.data.default_collate,
    loss_fn = function(_, _, p, batch) return (batch.x * p.w):mean() end,
  }:fit {
    train_examples = redco.data.dataset(32, function() return { x = torch.ones { 4 } } end),
    per_device_batch_size = 4, n_epochs = 1,
    on_step = function(event) if is_stray then event.stop() end end,
  }
end, { "is ended by a hook of fit after 1 steps" })
case("a part of the params", function(is_stray)
  train { optimizer = redco.optim.multi {
    { is_stray and "1.*" or "*.weight", redco.optim.sgd { learning_rate = 0.1 } },
    { "*", redco.optim.adamw { learning_rate = 0.1 } } } }
end, { "has an optimizer for 2 parameters, the first one '1.bias'",
  "has an optimizer for 2 parameters, the first one '1.weight'" })
case("mask", function(is_stray)
  train { optimizer = redco.optim.adamw {
    learning_rate = 0.1, mask = is_stray and "1.*" or "*.weight" } }
end, { "decays the weights of 2 parameters, the first one '1.bias'",
  "decays the weights of 2 parameters, the first one '1.weight'" })
case("rate", function(is_stray)
  train { optimizer = redco.optim.sgd { learning_rate = is_stray and 0.5 or 0.1 } }
end, { "learning_rate = 0.5", "learning_rate = 0.1" })
case("weight_decay", function(is_stray)
  train { optimizer = redco.optim.adamw {
    learning_rate = 0.1, weight_decay = is_stray and 0 or 0.01 } }
end, { "adamw with weight_decay = 0 at", "adamw with weight_decay = 0.01" })
case("betas", function(is_stray)
  train { optimizer = redco.optim.lion { learning_rate = 0.1,
    betas = { 0.9, is_stray and 0.9 or 0.99 } } }
end, { "lion with betas[2] = 0.9", "lion with betas[2] = 0.99" })
case("max_norm", function(is_stray)
  train { optimizer = redco.optim.chain { redco.optim.clip_by_global_norm(is_stray and 2 or 1),
    redco.optim.sgd { learning_rate = 0.1 } } }
end, { "max_norm = 2", "max_norm = 1" })
case("lengths", function(is_stray)
  local examples = {}
  for i = 1, is_stray and 6 or 8 do examples[i] = { x = torch.ones { 4 }, y = i % 3 } end
  train { examples = examples }
end, { "trains on 6 examples", "trains on 8 examples" })
case("values", function(is_stray)
  local examples = {}
  for i = 1, 8 do examples[i] = { x = torch.full({ 4 }, is_stray and 2 or 1), y = i % 3 } end
  train { examples = examples }
end, { "has a batch with 'x' = Float[4, 4]", "with other values" })
case("batches", function(is_stray) train { batch_size = is_stray and 8 or 4 } end,
  { "has a batch with 'x' = Float[8, 4]", "has a batch with 'x' = Float[4, 4]" })
case("shapes", function(is_stray)
  train { params = nn.MLP({ 4, is_stray and 8 or 6, 3 }, { generator = torch.Generator(1) }) }
end, { "has the parameter '1.bias' = Float[8]", "has the parameter '1.bias' = Float[6]" })
case("names", function(is_stray)
  local params = nn.MLP({ 4, 6, 3 }, { generator = torch.Generator(1) })
  if is_stray then params[3] = { weight = torch.ones { 2 } } end
  train { params = params }
end, { "has 5 parameters", "has 4 parameters" })
case("steps", function(is_stray)
  train {}
  if is_stray then train {} end
end, { "diverged" }, { no_line = true })
case("error", function(is_stray)
  train { in_loss = function() if is_stray then error "out of tea" end end }
end, { "out of tea" })
-- The stray process calls alone what the others call next, and waits for them in vain.
case("the same", function(is_stray) if is_stray then x:sum():item() end end, { "process" },
  { no_line = true })
case("swallowed error", function(is_stray)
  pcall(train, { in_loss = function() if is_stray then error "out of tea" end end })
end, { "diverged" }, { no_line = true })

-- Right: nothing is communicated, or all do it.
case("metadata", function(is_stray) if is_stray then return x:size(0), x:dim(), tostring(x) end end)
case("later", function(is_stray)
  local sum = x:sum():full()
  if is_stray then return sum:item() end
end)
case("sleep", function(is_stray) if is_stray then os.execute "sleep 1.2" end end)

-- Calls without a collective.
local checked = { is_checked = true }
case("alone", function(is_stray) if is_stray then local _ = x + 1 end end, { "aten::add" }, checked)
case("a number", function(is_stray) local _ = x * (is_stray and 2 or 3) end,
  { "aten::mul", " 2", " 3" }, checked)
case("a dimension", function(is_stray) x:transpose(0, is_stray and 0 or 1) end,
  { "aten::transpose" }, checked)
case("strides", function(is_stray)
  local y = torch.ones { 4, 4 }
  local _ = redco.shard(is_stray and y:t() or y, {}) * 2
end, { "aten::mul", "strides [1, 4]" }, checked)

return strays
