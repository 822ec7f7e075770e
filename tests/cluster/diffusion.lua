-- The UNet of the reference cases, trained by processes that share the model, the batches, or both:
-- the losses, gradients and parameters are those of diffusers, and nothing is gathered for want of
-- a rule.
local cases = require "model_cases"
local diffusion = require "diffusion_cases"
local redco = require "redco"
local testing = require "testing"
local traffic = require "traffic"

local torch = redco.torch
local n_processes = redco.Deployer { seed = 1, verbose = false }.n_processes

local function rows_of(batch)
  local rows = {}
  for i = 0, batch.noise:size(0) - 1 do
    rows[i + 1] = redco.tree.map(function(tensor) return tensor[i] end, batch)
  end
  return rows
end

local function collate(rows)
  local batch = {}
  for key in pairs(rows[1]) do
    local tensors = {}
    for i, row in ipairs(rows) do tensors[i] = row[key] end
    batch[key] = torch.stack(tensors)
  end
  return batch
end

local function train(deployer, case)
  local pipeline = redco.diffusion.from_pretrained(case.dir)
  local losses = {}
  local trainer = redco.Trainer {
    deployer = deployer, params = pipeline.params, collate_fn = collate,
    optimizer = redco.optim.freeze(diffusion.optimizer(case), diffusion.is_frozen(pipeline)),
    loss_fn = function(_, _, params, batch) return diffusion.loss(pipeline, params, batch) end,
    train_step_fn = function(_, _, batch, defaults)
      local loss, gradients = defaults.value_and_grad(function(params)
        return diffusion.loss(pipeline, params, batch)
      end)
      if #losses == 0 then cases.expect_gradients(case, gradients[pipeline.kind.model]) end
      losses[#losses + 1] = loss:item()
      return { loss = loss, norm = defaults.apply_gradients(gradients) }
    end,
  }
  for step = 0, #case.expected.training.adamw.losses - 1 do
    local rows = rows_of(diffusion.batch(case, step))
    trainer:train {
      examples = rows, per_device_batch_size = math.ceil(#rows / deployer.mesh.dp),
    }
  end
  local trained = trainer.params[pipeline.kind.model]
  diffusion.expect_trained(case, losses, trained)
  return trained
end

-- The share of the parameters that this process holds.
local function share_of(params)
  local here, whole = 0, 0
  for _, tensor in pairs(params) do
    here, whole = here + tensor:to_local():numel(), whole + tensor:numel()
  end
  return here / whole
end

local function test(case, n_model_shards, zero)
  local deployer = redco.Deployer {
    seed = 1, n_model_shards = n_model_shards, zero = zero, zero_min_size = 64, verbose = false,
  }
  local mesh = deployer.mesh
  testing.test(("%s on %dx%d, zero = %d"):format(case.dir, mesh.dp, mesh.mp, zero), function()
    local trained = train(deployer, case)
    for operator, calls in pairs(traffic.gathered_without_rule()) do
      error(("%s was gathered %d times"):format(operator, calls))
    end
    if zero == 3 or n_model_shards == n_processes then
      -- Small layers, such as those of the time, stay whole.
      local share = share_of(trained)
      assert(share < 0.58, ("each process holds %.2f of the parameters"):format(share))
    end
  end)
end

-- SDXL differs in what it adds to the time.
local is_full = os.getenv "REDCO_TEST_FULL" ~= nil

diffusion.each(function(case)
  test(case, 2, 0)
  if case.name:find "xl" and not is_full then return end
  if n_processes == 2 then
    test(case, 1, 0)
    test(case, 1, 3)
  end
end)

testing.finish()
