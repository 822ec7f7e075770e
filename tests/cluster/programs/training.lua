--- Programs that are the loss function of a training step: their first line makes the parameters
--- `p`, the second the batch `b`, the third the sharding `rules`, with a `compute_dtype` if it is
--- another than that of the parameters; the others compute `loss`.
local redco = require "redco"
local torch = require "redco.torch"

local training = { n_head = 3, n_chunks = 1 }

local learning_rate = 0.1

function training.is_training(steps)
  for i, start in ipairs { "^p = ", "^b = ", "^rules = " } do
    if not (steps[i] or ""):find(start) then return false end
  end
  return true
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

--- After the head of a plain run: casts parameters and batch, as a Trainer does.
function training.compute(env)
  env.masters = env.p
  if not env.rules.compute_dtype then return end
  env.p = {}
  for _, name in ipairs { "p", "b" } do
    local tensors = {}
    for key, tensor in pairs(name == "p" and env.masters or env.b) do
      tensors[key] = env.cast(tensor, env.rules.compute_dtype)
    end
    env[name] = tensors
  end
end

--- Adds the updated parameters, ua, ub, ..., to a plain run.
function training.update(env)
  if not torch.is_tensor(env.loss) or not env.loss.requires_grad then return end
  local keys, leaves = sorted_keys(env.p), {}
  for i, key in ipairs(keys) do leaves[i] = env.masters[key] end
  local ok, gradients = pcall(torch.autograd.grad, env.loss, leaves, { allow_unused = true })
  local is_reached = false
  for _, gradient in ipairs(ok and gradients or {}) do is_reached = is_reached or gradient end
  if not is_reached then
    env.loss = nil  -- a Trainer refuses it
    return
  end
  for i, key in ipairs(keys) do
    local p = env.masters[key]:detach()
    env["u" .. key] = gradients[i] and p - learning_rate * gradients[i] or p:clone()
  end
end

--- Puts the rows of the batch in another order.
function training.reorder(env, order)
  for key, tensor in pairs(env.b) do env.b[key] = tensor[torch.tensor(order)] end
end

--- Whether the loss can be evaluated: in inference mode nothing has a gradient, and lines that
--- failed for having one do not.
local function may_evaluate(steps, errors)
  if next(errors) then return false end
  for _, line in ipairs(steps) do
    if line:find("gradient(", 1, true) or line:find("checkpoint(", 1, true) then return false end
  end
  return true
end

--- Keeps the tensors of the last calls, one for each chunk of a stage.
local function keep(kept, name, value)
  kept[name] = kept[name] or {}
  if #kept[name] == training.n_chunks then table.remove(kept[name], 1) end
  table.insert(kept[name], value)
end

--- Of the tensors of these calls, the one that has values: from_stage returns 0 for the others.
local function with_values(tensors)
  for i = 1, #tensors - 1 do
    local found = redco.from_stage(tensors[i])
    if found:ne(0):any():full():item() then return found end
  end
  return #tensors > 1 and redco.from_stage(tensors[#tensors]) or tensors[1]
end

--- Trains one step and evaluates; run(env) runs the lines of the loss function. Returns the orders
--- that the batch had, { trained, evaluated }, and what run returns.
function training.step(deployer, head, env, steps, errors, run, new_env)
  for key, tensor in pairs(head.p) do head.p[key] = tensor:detach() end
  local keys, examples, order = sorted_keys(head.b), {}, nil
  local n = head.b[keys[1]]:size(0)
  for i = 0, n - 1 do
    examples[i + 1] = { row = i }
    for _, key in ipairs(keys) do examples[i + 1][key] = head.b[key][i]:clone() end
  end
  local results
  local kept = {}
  local has_blocks = table.concat(steps, "\n"):find("block(", 1, true) ~= nil
  local trainer = redco.Trainer {
    deployer = deployer, params = head.p, params_sharding_rules = { unpack(head.rules) },
    compute_dtype = head.rules.compute_dtype or head.p.a.dtype,
    recompute = has_blocks and (#steps % 2 == 0 and "blocks" or "selective") or "none",
    optimizer = redco.optim.sgd { learning_rate = learning_rate },
    collate_fn = function(list)
      local batch = {}
      order = {}
      for i, example in ipairs(list) do order[i] = example.row end
      for _, key in ipairs(keys) do
        local rows = {}
        for i, example in ipairs(list) do rows[i] = example[key] end
        batch[key] = torch.stack(rows)
      end
      return batch
    end,
    loss_fn = function(_, _, params, batch, is_training)
      if not is_training then
        local own = new_env()
        own.p, own.b = params, batch
        local kind, line, message = run(own)
        if kind then error("line " .. line .. ": " .. message, 0) end
        return own.loss
      end
      -- Functions that backward computes again read what their own call has made.
      local own = training.n_chunks > 1 and new_env() or env
      own.p, own.b = params, batch
      results = { run(own) }
      if results[1] then error("line " .. results[2] .. ": " .. results[3], 0) end
      local loss = own.loss
      -- The step changes what shares memory with the parameters; functions that are computed again
      -- in backward read the originals.
      for _, name in ipairs(sorted_keys(own)) do
        local value = own[name]
        if torch.is_tensor(value) then keep(kept, name, value:detach():clone()) end
      end
      return loss
    end,
  }
  local data = { examples = examples,
    per_device_batch_size = math.ceil(n / (deployer.mesh.dp * deployer.mesh.dp_replicate)) }
  local ok, message = pcall(trainer.train, trainer, data)
  env.p, env.b = nil, nil
  if results and results[1] then return { trained = order }, unpack(results) end
  if not ok then return { trained = order }, "step", training.n_head, tostring(message) end
  for _, name in ipairs(sorted_keys(kept)) do env[name] = with_values(kept[name]) end
  for _, key in ipairs(sorted_keys(head.p)) do
    env["u" .. key] = trainer.params[key]:detach():clone()
  end
  local orders = { trained = order }
  if may_evaluate(steps, errors) then
    ok, message = pcall(trainer.eval_loss, trainer, data)
    if not ok then return orders, "step", training.n_head, "eval_loss: " .. tostring(message) end
    env.ue, orders.evaluated = torch.tensor(message, { dtype = "float64" }), order
  end
  return orders
end

return training
