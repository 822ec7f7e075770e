--- Checks of parameters, loss and learning rate.
local function names_text(names)
  table.sort(names)
  local shown = table.concat(names, ", ", 1, math.min(4, #names))
  return #names > 4 and shown .. ", ..." or shown
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list) do set[name] = true end
  return set
end

-- Some models have a part that their own loss does not use.
local function is_unreached(s, name)
  local model = s.model
  local is_own = model and model.params[name] and model.loss_fn == s.given.loss_fn
  return s.gradients[name] == nil and not is_own
    and not name:find "experts"  -- no token may have chosen it
end

local function nothing_trained(s)
  if next(s.gradients) then return nil end
  return #s.trained + 1, nil, #s.trained == 0 and "the optimizer trains no parameter"
    or "the loss depends on no parameter that the optimizer trains"
end

local function are_unused(s)
  if not next(s.gradients) then return nil end
  local found = {}
  for _, name in ipairs(s.trained) do
    if is_unreached(s, name) then found[#found + 1] = name end
  end
  return #found, #s.trained, names_text(found)
end

-- Counts the model's new parameters that are trained, or that are not.
local function count_new(s, is_trained)
  local trained, found = set_of(s.trained), {}
  for _, name in ipairs(s.model.new_parameters or {}) do
    if (trained[name] == true) == is_trained then found[#found + 1] = name end
  end
  return #found, nil, names_text(found)
end

local function fails(s)
  local message = s.step.failure
  if not message then return nil end
  return 1, nil, message
end

local function is_not_finite(s)
  if s.loss == s.loss and math.abs(s.loss) < math.huge then return nil end
  return 1, nil, tostring(s.loss)
end

local function is_worse_than_chance(s)
  local model = s.model
  local size = model.is_decoder and s.made.folders[model] and model.config.vocab_size
  if not size or s.step.seen.name ~= "loss" or s.loss <= 1.5 * math.log(size) then return nil end
  return 1, nil, ("the loss is %.2f, that of guessing %.2f"):format(s.loss, math.log(size))
end

local function rate_is_zero(s)
  for _, each in ipairs(s.rates) do
    if each[2] ~= 0 then return nil end
  end
  return #s.rates > 0 and 1 or nil
end

-- Finds schedules that end early: at least the last tenth of the steps has at most a thousandth of
-- the highest rate.
local function rate_ends_early(s)
  local highest, last = 0, 0
  for i, each in ipairs(s.rates) do
    highest = math.max(highest, each[2])
    if each[2] > 1e-3 * highest then last = i end
  end
  if highest == 0 or last > 0.9 * #s.rates or #s.rates < 10 then return nil end
  return 1, nil, ("it is 0 from step %d of %d on"):format(s.rates[last + 1][1],
    s.rates[#s.rates][1] + 1)
end

return {
  { name = "nothing_trained", level = "error", title = "no parameter is trained",
    advice = "look for detach(), no_grad, item() and frozen parameters", needs = { "gradients" },
    find = nothing_trained },
  { name = "unused_parameters", level = "warning",
    title = "trained parameters that the loss does not use",
    advice = "freeze them with redco.optim.freeze, or use them: they stay as they are",
    needs = { "gradients" }, find = are_unused },
  { name = "new_parameters", level = "warning",
    title = "parameters that the model's folder lacks: they are random, and are trained",
    advice = "a new head is meant to be trained; of other layers choose another task",
    needs = { "model" }, find = function(s) return count_new(s, true) end },
  { name = "new_and_frozen", level = "error",
    title = "parameters that the model's folder lacks and that are not trained: they stay random",
    advice = "train them: modules_to_save of redco.lora.add", needs = { "model" },
    find = function(s) return count_new(s, false) end },
  { name = "zero_learning_rate", level = "error", title = "the learning rate is always 0",
    advice = "give the optimizer a learning_rate", needs = { "rates" }, find = rate_is_zero },
  { name = "short_schedule", level = "warning",
    title = "the learning rate ends before the training",
    advice = "train_size, n_epochs and batch sizes of get_lr_schedule_fn are those of fit",
    needs = { "rates" }, find = rate_ends_early },
  { name = "loss_not_finite", level = "error", title = "the first loss is not finite",
    advice = "look for log(0), a division by 0, or a batch without labels", needs = { "loss" },
    find = is_not_finite, is_consequence = true },
  { name = "loss_above_chance", level = "warning", title = "the first loss is worse than guessing",
    advice = "do the tokenizer and the prompt fit the model?", needs = { "loss", "model" },
    find = is_worse_than_chance, is_consequence = true },
  { name = "loss_fails", level = "error", title = "loss_fn raises an error",
    advice = "the error says where", needs = { "step" }, find = fails, is_consequence = true },
}
