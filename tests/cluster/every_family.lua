-- Every family of models, and heads of some, with two model shards and ZeRO 3, on two copies of
-- the model, two context shards, two expert shards or two stages, in turn: one step of training has
-- the loss, the gradients and the new parameters of one process. It trains adapters of a new model,
-- adapters of one whose weights stay in mapped files (low_memory), and all parameters of the
-- latter. Without REDCO_TEST_FULL=1 a third of the families gets one of these three; which, depends
-- on REDCO_TEST_SEED. A second argument is the only family.
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"

local torch = redco.torch
local folder = assert(arg[1], "expected a folder to write to") .. "/every_family"

local deployers = {}
for i, option in ipairs { "copies", "n_context_shards", "n_expert_shards", "n_pipeline_stages" } do
  local name = option:gsub("^n_", ""):gsub("_", " ")
  local options = { seed = 1, n_model_shards = 2, zero = 3, zero_min_size = 16, verbose = false }
  if option ~= "copies" then options[option] = 2 end
  deployers[i] = { name = name, made = redco.Deployer(options) }
end
local deployer

-- The layers of the attention and of the first feed-forward layer, whatever they are called.
local targets = {}
for part in ([[q_proj k_proj v_proj query key value query_key_value c_attn qkv_proj q k v q_lin
    q_b_proj kv_b_proj v_lin Wqkv query_proj value_proj fc1 fc_in wi wi_0 up_proj
    dense_h_to_4h pwconv1 qkv proj_in in_proj in_proj_qkvz kv_proj layer_1]]):gmatch "%S+" do
  targets[part] = true
end

-- The parameters with the matrices of all experts.
local stacks = { "experts.gate_up_proj", "experts.down_proj", "input_linear.weight",
  "output_linear.weight" }

local function with_adapters(params)
  local found, stacked, generator = {}, {}, torch.Generator(7)
  for key, leaf in pairs(params) do
    local part = key:match "([^.]+)%.weight$"
    if targets[part] then found[part] = true end
    for _, ending in ipairs(stacks) do
      if key:sub(-#ending) == ending and leaf:dim() == 3 then stacked[ending] = true end
    end
  end
  local modules, parameters = {}, {}
  for part in pairs(found) do modules[#modules + 1] = part end
  for ending in pairs(stacked) do parameters[#parameters + 1] = ending end
  table.sort(parameters)
  local result = redco.lora.add(params, { target_modules = modules, r = 4, lora_alpha = 8,
    target_parameters = parameters[1] and parameters or nil, generator = generator })
  torch.no_grad(function()
    for key, leaf in pairs(result) do
      if key:find "lora_B" then
        redco.nn.init.normal_(leaf, { std = 0.3, generator = generator })
      end
    end
  end)
  return result
end

local function whole(params)
  local result = {}
  for key, leaf in pairs(params) do
    result[key] = torch.is_tensor(leaf) and (leaf:is_sharded() and leaf:full() or leaf:clone())
      or leaf
  end
  return result
end

-- Of features the mean of their cubes, for each result: that of the squares is constant behind a
-- norm.
local function loss_of(model, params, inputs)
  if model.output and not model.family.loss then
    local options = model.family.new_forward and { pooling = "mean" } or nil
    local sum = 0
    for _, result in ipairs { model.output(params, inputs, options) } do
      sum = sum + result:pow(3):mean()
    end
    return sum
  end
  return (model.loss(params, inputs))
end

-- The loss and the gradients with plain tensors.
local function expected_step(model, params, inputs, is_trained)
  local plain = whole(params)
  local trained = {}
  for key, leaf in pairs(plain) do
    if is_trained(key, leaf) then trained[key] = leaf end
  end
  local loss, gradients = redco.value_and_grad(function(given)
    return loss_of(model, tiny.merged(plain, given), inputs)
  end)(trained)
  return loss:item(), gradients
end

local function stacked(examples)
  local batch = {}
  for key in pairs(examples[1]) do
    local tensors = {}
    for i, example in ipairs(examples) do tensors[i] = example[key] end
    batch[key] = torch.stack(tensors)
  end
  return batch
end

-- Float32 rounds gradients of some layers, such as Mamba's convolution, by 2e-4 of the largest.
local function expect_gradient(found, expected)
  local largest = expected:abs():max():item()
  testing.expect_close(found, expected, 2e-3, math.max(2e-5, 5e-5 * largest))
end

-- Trains one step. is_trained(key, leaf) names the parameters that the optimizer changes.
local function check(model, inputs, params, optimizer, is_trained)
  local loss, gradients = expected_step(model, params, inputs, is_trained)
  local rows = {}
  for i = 0, 3 do
    rows[i + 1] = redco.tree.map(function(tensor) return tensor[i] end, inputs)
  end
  local n_compared = 0
  local trainer = redco.Trainer {
    deployer = deployer, params = params, optimizer = optimizer, collate_fn = stacked,
    loss_fn = function(_, _, given, batch) return loss_of(model, given, batch) end,
    train_step_fn = function(_, _, batch, defaults)
      local here, found = defaults.value_and_grad(function(given)
        return loss_of(model, given, batch)
      end)
      testing.expect_close(here:full(), torch.tensor(loss), 1e-4, 1e-5)
      for key, gradient in pairs(found) do
        if torch.is_tensor(gradient) and gradients[key] then
          expect_gradient(gradient:full(), gradients[key])
          n_compared = n_compared + 1
        end
      end
      return { loss = here, norm = defaults.apply_gradients(found) }
    end,
  }
  local before = whole(params)
  local mesh = deployer.mesh
  trainer:train { examples = rows, per_device_batch_size = #rows / mesh.dp / mesh.ep }
  for key, leaf in pairs(trainer.params) do
    if gradients[key] and torch.is_tensor(leaf) then
      -- The step, with the tolerance of the gradient.
      expect_gradient((before[key] - leaf:full()) / 0.5, gradients[key])
    elseif torch.is_tensor(leaf) then
      testing.expect_close(leaf:full(), before[key], 2e-3, 2e-5)
    end
  end
  assert(n_compared > 1, "nothing was trained")
end

local sgd = redco.optim.sgd { learning_rate = 0.5 }

local function check_adapters(model, inputs)
  local params = with_adapters(model.params)
  check(model, inputs, params, redco.lora.freeze_base(sgd, params), function(key, leaf)
    return torch.is_tensor(leaf) and not redco.lora.is_frozen(key, params[key])
  end)
end

local function check_all(model, inputs)
  local buffers = model.family.buffers or {}
  check(model, inputs, model.params, sgd, function(key, leaf)
    return torch.is_tensor(leaf) and leaf:is_floating_point() and not buffers[key]
      and not redco.nn.is_running_statistic(key)
  end)
end

-- The families that an error of redco.models lists.
local function known_families()
  local _, message = pcall(redco.models.from_config, { model_type = "none" })
  return assert(tostring(message):match "families are ([^\n]+)")
end

testing.test("every family has a row", function()
  for name in known_families():gmatch "[^, ]+" do
    assert(tiny.has(name), name .. " is missing in tiny_models.lua")
  end
end)

local seed = tonumber(os.getenv "REDCO_TEST_SEED") or 1

-- Whether check k of name i runs: nine seeds in a row have them all.
local function is_chosen(i, k)
  if testing.is_full or arg[2] then return true end
  return (i + seed) % 3 == 0 and math.floor((i + seed) / 3) % 3 == k % 3
end

-- A ResNet has convolutions, which have no adapters.
for i, name in ipairs(arg[2] and { arg[2] } or tiny.names()) do
  local dir = folder .. "/" .. name
  local function test(k, what, body)
    if not is_chosen(i, k) or name == "resnet" and what:find "^adapters" then return end
    for n, each in ipairs(deployers) do
      if testing.is_full or arg[2] or (i + k + seed) % #deployers == n - 1 then
        deployer = each.made
        testing.test(("%s: %s, on two %s"):format(name, what, each.name), body)
      end
    end
  end
  local function opened(options)
    tiny.new(name).save_pretrained(dir)
    return redco.models.from_pretrained(dir, options)
  end
  test(1, "adapters", function()
    local model = tiny.new(name)
    check_adapters(model, tiny.inputs(name, model))
  end)
  test(2, "adapters beside mapped files", function()
    local model = opened { low_memory = true }
    check_adapters(model, tiny.inputs(name, model))
  end)
  test(3, "all parameters, from mapped files", function()
    local model = opened { low_memory = true }
    check_all(model, tiny.inputs(name, model))
  end)
end

testing.finish()
