-- Processes that hold copies of a weight keep them equal to the bit, however many lengths of texts
-- they have seen, and although their parts of other weights have other sizes.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local n_processes = redco.Deployer({ seed = 1, verbose = false }).mesh.dp
local generator = torch.Generator(1)

local function random(...) return torch.randn({ ... }, { generator = generator }) * 0.05 end

local n_steps, width, inner = 60, 300, 341  -- the inner width is not even

for n_model_shards = 1, n_processes do
  if n_processes % n_model_shards == 0 then
    testing.test(("with %d model shards"):format(n_model_shards), function()
      local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards,
        verbose = false }
      local params = { first = random(170, width), second = random(width, 170),
        up = random(inner, width), down = random(width, inner), scale = torch.ones { width } }
      local trainer = redco.Trainer {
        deployer = deployer, params = params, collate_fn = redco.data.default_collate,
        optimizer = redco.optim.adamw { learning_rate = 1e-2 },
        params_sharding_rules = { { "first", "replicate" }, { "second", "replicate" },
          { "scale", "replicate" }, { "up", 0 }, { "down", 1 } },
        loss_fn = function(_, _, p, batch)
          local x = torch.rms_norm(batch.x, { width }, p.scale, 1e-5)
          local h = torch.linear(torch.linear(x, p.first):tanh(), p.second)
          -- Attention: products of texts with themselves.
          h = h + torch.bmm(torch.bmm(h, x:transpose(1, 2)):softmax(-1), x)
          h = h + torch.linear(torch.linear(h, p.up):relu(), p.down)
          return (h - batch.x):pow(2):mean()
        end,
      }
      for step = 1, n_steps do
        local length = 150 + (step * 37) % 131
        local examples = {}
        for i = 1, deployer.mesh.dp do
          examples[i] = { x = torch.randn({ length, width }, { generator = generator }) }
        end
        trainer:train { examples = examples, per_device_batch_size = 1 }
      end
      for _, name in ipairs { "first", "second", "scale" } do
        local own = trainer.params[name]:detach():to_local()
        local all = deployer:alone(function() return { own = own } end)
        for i = 2, #all do testing.expect_equal(torch.equal(all[1].own, all[i].own), true) end
      end
    end)
  end
end

testing.finish()
