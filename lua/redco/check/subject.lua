--- The subject of checks: the training of a script. Its parts are made when a check first asks for
--- them.
local attempt = require "redco.check.attempt"
local model_loss = require "redco.check.model_loss"
local native = require "redco.native"
local outputs = require "redco.check.outputs"
local redco = require "redco"
local rows = require "redco.check.rows"
local template = require "redco.check.template"
local torch = require "redco.torch"
local tree = require "redco.tree"

-- After this time, or this many bytes, no further batch is made.
local collate_seconds, collate_bytes = 10, 2 ^ 28

local function is_floating(x) return torch.is_tensor(x) and x.dtype:find "^b?float" ~= nil end

-- Each function returns the part of its name, or nil and the reason why there is none.
local parts = {}

-- Returns examples as {count, at}.
local function examples_of(value)
  local first = torch.is_tensor(value) and 0 or 1
  local count = torch.is_tensor(value) and value:size(0) or #value
  return { count = count, at = function(i) return value[i - 1 + first] end }
end

function parts.examples(s)
  local given = s.arguments.train_examples or s.arguments.examples
  if type(given) == "function" then
    local ok, value = attempt(given, 0)
    if not ok then
      s.examples_error = tostring(value)
      return nil, "train_examples raises an error"
    end
    given = value
  end
  return examples_of(given)
end

-- The sampler that writes the examples.
function parts.sampler(s)
  for _, sampler in ipairs(s.made.samplers) do
    if sampler.collate_fn == s.given.collate_fn then return sampler end
  end
  return nil, "no sampler writes the examples"
end

function parts.evaluation(s)
  if s.arguments.eval_examples == nil then return nil, "no eval_examples" end
  return examples_of(s.arguments.eval_examples)
end

-- The numbers of the examples to look at: all, or an even sample, in the order of training.
function parts.chosen(s)
  local count, numbers = s.examples.count, {}
  local n = math.min(count, s.n_rows)
  for i = 1, n do numbers[i] = math.floor((i - 0.5) * count / n) + 1 end
  if s.arguments.shuffle == false or n == 0 then return numbers end
  local order, shuffled = torch.randperm(n, { generator = torch.Generator(0) }):tolist(), {}
  for i = 1, n do shuffled[i] = numbers[order[i] + 1] end
  return shuffled
end

function parts.batch_size(s)
  return s.arguments.per_device_batch_size or math.max(1, s.examples.count)
end

-- Calls collate_fn for examples of these numbers, with the same draws each time.
local function collate(s, numbers)
  local list = {}
  for i, number in ipairs(numbers) do list[i] = s.examples.at(number) end
  local batch = redco.with_rng(redco.Rng(numbers[1] or 0), s.given.collate_fn, list)
  if type(batch) ~= "table" then
    error(("collate_fn returned %s, expected a table of tensors"):format(native.describe(batch)), 0)
  end
  return batch
end

-- Makes batches as in training. collate_error is the reason if there are no further ones.
function parts.batches(s)
  if not s.examples then return nil, s:why "examples" end
  local batches, started, bytes = {}, os.clock(), 0
  for first = 1, #s.chosen, s.batch_size do
    if os.clock() - started > collate_seconds or bytes > collate_bytes then break end
    local numbers = {}
    for i = first, math.min(first + s.batch_size - 1, #s.chosen) do
      numbers[#numbers + 1] = s.chosen[i]
    end
    local ok, batch = attempt(collate, s, numbers)
    if not ok then
      s.collate_error = tostring(batch)
      break
    end
    batches[#batches + 1] = { batch = batch, examples = numbers }
    for _, leaf in ipairs(tree.leaves(batch)) do
      if torch.is_tensor(leaf) then
        bytes = bytes + leaf:nbytes() * (is_floating(leaf) and 1 or 8)  -- tokens become lists
      end
    end
  end
  if #batches == 0 then return nil, "there are no batches" end
  return batches
end

-- The tensors of the batches by path: a list of {value, examples} for each.
function parts.tensors(s)
  if not s.batches then return nil, "there are no batches" end
  local found = {}
  for _, each in ipairs(s.batches) do
    local paths, leaves = tree.paths(each.batch), tree.leaves(each.batch)
    for i, path in ipairs(paths) do
      if torch.is_tensor(leaves[i]) then
        found[path] = found[path] or {}
        table.insert(found[path], { value = leaves[i], examples = each.examples })
      end
    end
  end
  return found
end

-- The model of the loss: that of model.loss_fn, else the one whose parameters are trained.
function parts.model(s)
  local params = {}
  for _, leaf in ipairs(tree.leaves(s.given.params)) do params[leaf] = true end
  local best
  for _, model in ipairs(s.made.models) do
    if model.loss_fn == s.given.loss_fn then return model end
    for _, leaf in pairs(model.params) do
      if params[leaf] then best = best or model end
    end
  end
  if best or #s.made.models == 1 then return best or s.made.models[1] end
  return nil, "the loss is of no model of redco.models"
end

-- The first tokenizer with the model's vocabulary size, else the first one.
function parts.tokenizer(s)
  local list, size = s.made.tokenizers, s.model and s.model.config.vocab_size
  for _, tokenizer in ipairs(list) do
    if #tokenizer == size then return tokenizer end
  end
  if not list[1] then return nil, "there is no tokenizer" end
  return list[1]
end

function parts.params(s) return s.trainer.params end

function parts.trained(s) return native.trained_names(s.given.optimizer, s.params) end

-- The highest learning rate in each of at most 200 steps, from the first to the last: a list of
-- {step, rate}.
function parts.rates(s)
  local optimizer = s.given.optimizer
  if not s.arguments.n_epochs then return nil, "there is no Trainer:fit" end
  if not s.examples then return nil, s:why "examples" end
  local global = s.arguments.global_batch_size
    or s.batch_size * (s.given.accumulate_grad_batches or 1)
  local n_steps = math.ceil(s.examples.count / global) * s.arguments.n_epochs
  local most = s.arguments.max_steps
  if most and most > 0 then n_steps = math.min(n_steps, most) end
  local rates, opt_state = {}, s.trainer.state.opt_state
  for i = 1, math.min(n_steps, 200) do
    local step = n_steps <= 200 and i - 1 or math.floor((i - 1) * (n_steps - 1) / 199)
    local rate = native.highest_rate(optimizer, step, opt_state)
    if not rate then return nil, "the optimizer has no learning rate" end
    rates[i] = { step, rate }
  end
  return rates
end

-- Computes one loss and its gradients for a few examples: {loss, gradients}, or {failure}; with the
-- labels of the batch, and `seen`, the inputs of the model's loss.
function parts.step(s)
  if not s.batches then return nil, "there are no batches" end
  if s.given.train_step_fn then return nil, "train_step_fn replaces the step" end
  local numbers, is_trained, inputs = {}, {}, {}
  for i = 1, math.min(4, s.batch_size, #s.chosen) do numbers[i] = s.chosen[i] end
  for _, name in ipairs(s.trained) do is_trained[name] = true end
  local device
  local function single(x)
    if not torch.is_tensor(x) then return x end
    device = device or x.device
    return (is_floating(x) and x:detach():float() or x):to(device)
  end
  local params = tree.map(single, s.params)
  local names = {}
  local paths = tree.paths(params)
  for i, leaf in ipairs(tree.leaves(params)) do
    local name = paths[i]
    if is_trained[name] then
      names[#names + 1], inputs[#inputs + 1] = name, leaf:requires_grad_(true)
    end
  end
  local seen, unwatch = model_loss.watch(s.model)
  local notice = native.notice
  native.notice = function() end  -- a check reports it
  local step = { gradients = {}, seen = seen }
  local ok, failure = attempt(function()
    local batch = tree.map(single, collate(s, numbers))
    step.labels = torch.is_tensor(batch.labels) and batch.labels:clone() or nil
    local loss = s.given.loss_fn(redco.Rng(0), s.trainer.state, params, batch, true)
    step.loss = loss:item()
    if not loss.requires_grad then return end
    local gradients = torch.autograd.grad(loss, inputs, { allow_unused = true })
    for i, name in ipairs(names) do step.gradients[name] = gradients[i] or nil end
  end)
  native.notice = notice
  unwatch()
  if not ok then step.failure = tostring(failure) end
  return step
end

function parts.loss(s)
  if not s.step then return nil, s:why "step" end
  if s.step.failure then return nil, "loss_fn raises an error" end
  return s.step.loss
end

function parts.gradients(s)
  if not s.loss then return nil, s:why "loss" end
  return s.step.gradients
end

parts.rows = rows.of
parts.takes_labels = model_loss.takes_labels
parts.labelled = outputs.labelled
parts.output_ends = outputs.ends
parts.template = template.of

local Subject = {}

-- Computes a part once.
function Subject.__index(s, name)
  if name == "why" then
    return function(_, part) return s[part] == nil and s.reasons[part] or nil end
  end
  if not parts[name] or s.reasons[name] then return nil end
  local value, reason = parts[name](s)
  if value == nil then
    s.reasons[name] = reason or "it is not there"
  else
    rawset(s, name, value)
  end
  return value
end

local subject = {}

--- Returns what is checked of a training: `given` are the arguments of redco.Trainer, `arguments`
--- those of Trainer:fit, `made` is what the script made, n_rows the most examples to look at.
--- s:why(part) is the reason for which a part is missing, or nil.
function subject.new(trainer, given, arguments, made, n_rows)
  return setmetatable({ trainer = trainer, given = given, arguments = arguments, made = made,
    n_rows = n_rows, reasons = {} }, Subject)
end

return subject
