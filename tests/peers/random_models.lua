-- random_models.lua FOLDER...: what redco-lua computes of the cases that random_models/ writes.
local cases = require "model_cases"
local new_processor = require "redco.generation.processors"
local options_of = require "redco.generation.options"
local redco = require "redco"

local torch = redco.torch

local function with_prefix(tensors, prefix)
  local found = {}
  for name, tensor in pairs(tensors) do
    if name:sub(1, #prefix) == prefix then found[name:sub(#prefix + 1)] = tensor end
  end
  return found
end

local function called(model, batch, options)
  return cases.called(model, model.params, batch, options)
end

local function train(model, inputs, result, options)
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = model.params,
    optimizer = redco.optim.adamw { learning_rate = 0.02, betas = { 0.8, 0.9 }, eps = 1e-3,
      weight_decay = 0.1 },
    collate_fn = function() return inputs end,
    loss_fn = function(_, _, params, batch) return cases.loss(model, params, batch, options) end,
    train_step_fn = function(_, _, batch, defaults)
      local loss, gradients = defaults.value_and_grad(function(params)
        return (cases.loss(model, params, batch, options))
      end)
      if not result.loss then
        result.loss = loss:detach()
        for name, gradient in pairs(gradients) do
          result["grad." .. cases.file_name(model, name)] = gradient
        end
      end
      return { loss = loss, norm = defaults.apply_gradients(gradients) }
    end,
  }
  for _ = 1, 3 do trainer:train { examples = { 1 }, per_device_batch_size = 1 } end
  for name, tensor in pairs(trainer.params) do
    result["after." .. cases.file_name(model, name)] = tensor
  end
  return trainer.params
end

local function processed(model, inputs, i, case)
  local o = options_of.read(model, case.options)
  options_of.set_lengths(o, model, case.prompt_length)
  o.prompt_length, o.encoder_ids = case.prompt_length, inputs["prompt.input_ids"]
  return new_processor(o)(inputs["scores." .. i], inputs["ids." .. i])
end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local function run(folder)
  local case = redco.data.json(folder .. "/case.json")
  local inputs, result = torch.load(folder .. "/inputs.safetensors"), {}
  local model = redco.models.from_pretrained(folder)
  local batch = cases.random_inputs(inputs, model)
  local options = case.pooling and { pooling = case.pooling }
  torch.no_grad(function()
    result.logits = called(model, batch, options)
  end)
  local prompts = with_prefix(inputs, "prompt.")
  for i, generation in ipairs(case.generations) do
    if generation.kind == "tokens" then
      local ok, tokens = pcall(model.generate, model.params, prompts, generation.options)
      local is_refused = not ok and tostring(tokens):find "model.generate: "
      if not is_refused then result["tokens." .. i - 1] = ok and tokens or error(tokens, 0) end
    elseif generation.kind == "scores" then
      result["scores." .. i - 1] = processed(model, inputs, i - 1, generation)
    end
  end
  -- The same weights with other configurations: what is refused leaves the error.
  for i = 0, case.changes - 1 do
    local ok, message = pcall(function()
      local changed = redco.models.from_pretrained(("%s/changed-%d"):format(folder, i))
      local prefix = ("changed.%d."):format(i)
      torch.no_grad(function()
        local logits = called(changed, batch, options)
        local tokens = next(prompts) and changed.generate(changed.params, prompts,
          { max_new_tokens = 4 })
        result[prefix .. "logits"], result[prefix .. "tokens"] = logits, tokens or nil
      end)
    end)
    if not ok then write(("%s/changed-%d/error.txt"):format(folder, i), tostring(message)) end
  end
  local params = train(model, batch, result, options)
  local buffers = model.family.buffers or {}
  for name in pairs(params) do
    local is_buffer = buffers[name] or redco.nn.is_running_statistic(name)
      or name:find "correction_bias$" or name:find "expert_bias$" or name:find "act_fn%.beta$"
      or name:find "act_fn%.eps$" or name:find "layer_scalar$"
    if is_buffer then
      local stored = cases.file_name(model, name)
      result["grad." .. stored], result["after." .. stored] = nil, nil
    end
  end
  torch.save(result, folder .. "/result.safetensors")
  model.save_pretrained(folder .. "/saved", { params = params })
end

for _, folder in ipairs(arg) do
  local ok, message = xpcall(run, function(e) return debug.traceback(tostring(e), 2) end, folder)
  if not ok then write(folder .. "/error.txt", message) end
end
