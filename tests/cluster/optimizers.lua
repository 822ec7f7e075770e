-- Every optimizer on every layout: what plain tensors give in the same process, by hand, is what a
-- Trainer must give with each level of zero. Norms and matrices are those of the whole parameters.
local optimizer_cases = require "optimizer_cases"
local redco = require "redco"
local testing = require "testing"

local nn, optim, torch, tree = redco.nn, redco.optim, redco.torch, redco.tree
local test, expect_equal = testing.test, testing.expect_equal
local program_folder = arg[1]
local is_full = os.getenv "REDCO_TEST_FULL" ~= nil

local n_steps = 3
local generator = torch.Generator(3)
local initial = tree.map(function(leaf) return leaf:double() end,
  nn.MLP({ 6, 40, 33, 5 }, { generator = generator }))
local examples = {}
for i = 1, 11 do
  examples[i] = torch.randn({ 7 }, { generator = generator, dtype = "float64" })
end

local function collate(batch)
  local rows = torch.stack(batch)
  return { x = rows:narrow(1, 0, 6), y = rows:narrow(1, 6, 1) }
end

local function loss_of(params, batch)
  return (nn.mlp(params, batch.x, { activation = torch.tanh }) - batch.y):pow(2):mean()
end

local makers = {
  chained = function()
    return optim.chain { optim.clip_by_value(0.05), optim.clip_by_global_norm(0.1),
      optim.add_decayed_weights { weight_decay = 0.1, mask = "weight" },
      optim.multi { { "1.*", "frozen" }, { "2.*", optim.sgd { learning_rate = 0.3 } },
        { "*", optim.adamw { learning_rate = 0.02 } } },
      optim.lookahead { every = 2 }, optim.ema { decay = 0.8 } }
  end,
}
for name, make in pairs(optimizer_cases) do makers[name] = make end

-- All processes need one order.
local names = {}
for name in pairs(makers) do names[#names + 1] = name end
table.sort(names)

-- The parameters and averages after steps by hand on plain tensors.
local batch = collate(examples)
local expected = {}
for _, name in ipairs(names) do
  local optimizer = makers[name]()
  local params = tree.map(function(leaf) return leaf:clone() end, initial)
  local state = optimizer:init(params)
  for _ = 1, n_steps do
    optimizer:step(redco.grad(loss_of)(params, batch), state, params)
  end
  expected[name] = { params = params,
    averages = name == "chained" and optimizer:averages(state, params) or nil }
end

local function expect_trees(actual, wanted, tolerance)
  for i, leaf in ipairs(tree.leaves(wanted)) do
    testing.expect_close(tree.leaves(actual)[i]:detach():full(), leaf, tolerance, tolerance)
  end
end

for _, n_model_shards in ipairs { 1, 2 } do
  for _, zero in ipairs { 0, 1, 2, 3 } do
    local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, zero = zero,
      zero_min_size = 8, verbose = false }
    local layout = ("%dx%d, zero %d"):format(deployer.mesh.dp, n_model_shards, zero)
    local per_device = math.ceil(#examples / deployer.mesh.dp)
    local function new_trainer(make, ckpt)
      return redco.Trainer {
        deployer = deployer, params = ckpt and ckpt.params or initial, optimizer = make(),
        opt_state = ckpt and ckpt.opt_state, step = ckpt and 2 or 0, collate_fn = collate,
        compute_dtype = "float64",
        loss_fn = function(_, _, params, rows) return loss_of(params, rows) end,
      }
    end
    -- Without model shards two processes show what four would.
    local is_run = is_full or zero ~= 2 and (deployer.mesh.dp > 1 or zero == 0)
      and (n_model_shards == 2 or deployer.n_processes == 2)
    for _, name in ipairs(is_run and names or {}) do
      local make = makers[name]
      test(("%s on %s"):format(name, layout), function()
        local trainer = new_trainer(make)
        for _ = 1, n_steps do
          trainer:train_step { examples = examples, per_device_batch_size = per_device }
        end
        expect_trees(trainer.params, expected[name].params, name == "muon" and 1e-3 or 1e-9)
        if not expected[name].averages then return end
        local averages = make():averages(trainer.state, trainer.params)
        expect_trees(averages, expected[name].averages, 1e-9)
        -- A teacher: the averages are parameters like others.
        local predictor = trainer:get_default_predictor {
          pred_fn = function(_, p, rows)
            return nn.mlp(p, rows.x, { activation = torch.tanh })
          end,
        }
        local preds = predictor:predict { examples = examples, params = averages,
          per_device_batch_size = per_device }
        testing.expect_close(torch.stack(preds), nn.mlp(expected[name].averages, batch.x,
          { activation = torch.tanh }), 1e-9, 1e-9)
      end)
    end

    if zero % 2 == 1 and is_run then
      test("a checkpoint of every kind of state, on " .. layout, function()
        local function make()
          return optim.chain { optim.multi {
            { "2.weight", optim.adamw8bit { learning_rate = 0.1, min_8bit_size = 256 } },
            { "weight", optim.muon { learning_rate = optim.on_plateau { value = 0.1,
              patience = 0 } } },
            { "1.*", optim.adafactor { learning_rate = 0.1 } },
            { "*", optim.lamb { learning_rate = 0.1 } } }, optim.ema { decay = 0.5 },
            optim.lookahead { every = 3 } }
        end
        local function steps(trainer, n)
          for _ = 1, n do
            trainer:train_step { examples = examples, per_device_batch_size = per_device }
          end
          return trainer
        end
        local folder = program_folder .. "/" .. layout:gsub("[ ,]", "_")
        local trainer = steps(new_trainer(make), 2)
        deployer:save_ckpt { ckpt_dir = folder, params = trainer.params,
          opt_state = trainer.state.opt_state }
        steps(trainer, 2)
        local resumed = steps(new_trainer(make, deployer:load_ckpt { ckpt_dir = folder }), 2)
        expect_equal(resumed.step, trainer.step)
        for _, part in ipairs { "params", "opt_state" } do
          local leaves = tree.leaves(resumed.state[part])
          for i, leaf in ipairs(tree.leaves(trainer.state[part])) do
            if torch.is_tensor(leaf) then
              assert(torch.equal(leaves[i]:detach():full(), leaf:detach():full()))
            else
              expect_equal(leaves[i], leaf)
            end
          end
        end
      end)
    end
  end
end

testing.finish()
