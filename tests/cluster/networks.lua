-- Several networks in one script, on every layout: what plain tensors give by hand is what Trainers
-- must give. Two networks in one train_step_fn, a teacher that averages its student, and two
-- Trainers, of which one uses the parameters of the other.
local redco = require "redco"
local testing = require "testing"

local nn, optim, torch, tree = redco.nn, redco.optim, redco.torch, redco.tree
local test = testing.test
local is_full = os.getenv "REDCO_TEST_FULL" ~= nil

local generator = torch.Generator(3)
local function mlp(sizes)
  return tree.map(function(leaf) return leaf:double() end, nn.MLP(sizes, { generator = generator }))
end
local initial = { actor = mlp { 6, 12, 4 }, critic = mlp { 4, 10, 1 } }
local examples = {}
for i = 1, 11 do
  examples[i] = torch.randn({ 6 }, { generator = generator, dtype = "float64" })
end
local function collate(batch) return { x = torch.stack(batch) } end
local batch = collate(examples)

local function act(p, x) return nn.mlp(p, x, { activation = torch.tanh }) end
local function critic_loss(p, rows)
  return (act(p.critic, act(p.actor, rows.x):detach()) - rows.x:sum(1, true)):square():mean()
end
local function actor_loss(p, rows) return act(p.critic, act(p.actor, rows.x)):mean() end
local function adamw() return optim.adamw { learning_rate = 0.02 } end
local function sgd() return optim.sgd { learning_rate = 0.1, momentum = 0.9 } end

local function copy(params) return tree.map(function(leaf) return leaf:clone() end, params) end
local function expect_trees(actual, wanted)
  for i, leaf in ipairs(tree.leaves(wanted)) do
    testing.expect_close(tree.leaves(actual)[i]:detach():full(), leaf, 1e-9, 1e-9)
  end
end

-- By hand: two updates of the critic, one of the actor.
local expected = {}
do
  local params, optimizers = copy(initial), { actor = adamw(), critic = sgd() }
  local states = { actor = optimizers.actor:init(params.actor),
    critic = optimizers.critic:init(params.critic) }
  local function step(name, loss)
    local grads = redco.grad(loss)(params, batch)
    optimizers[name]:step(grads[name], states[name], params[name])
  end
  for _ = 1, 2 do
    step("critic", critic_loss)
    step("critic", critic_loss)
    step("actor", actor_loss)
  end
  expected.steps = params
end

local function student_loss(p, teacher, x)
  return (act(p, x) - act(teacher, x * 0.5)):square():mean() + act(p, x):mean()
end
local function averaging() return optim.chain { sgd(), optim.ema { decay = 0.7 } } end
do
  local params, optimizer = copy(initial.actor), averaging()
  local state = optimizer:init(params)
  for _ = 1, 3 do
    local teacher = optimizer:averages(state, params)
    local grads = redco.grad(function(p) return student_loss(p, teacher, batch.x) end)(params)
    optimizer:step(grads, state, params)
  end
  expected.student, expected.teacher = params, optimizer:averages(state, params)
end

for _, n_model_shards in ipairs { 1, 2 } do
  for _, zero in ipairs { 0, 1, 2, 3 } do
    local deployer = redco.Deployer { seed = 1, n_model_shards = n_model_shards, zero = zero,
      zero_min_size = 8, verbose = false }
    local dp = deployer.mesh.dp
    local layout = (" on %dx%d, zero %d"):format(dp, n_model_shards, zero)
    local per_device = math.ceil(#examples / dp)
    local function new_trainer(options)
      options.deployer, options.collate_fn, options.compute_dtype = deployer, collate, "float64"
      return redco.Trainer(options)
    end
    local function step(trainer)
      return trainer:train_step { examples = examples, per_device_batch_size = per_device }
    end
    if is_full or (dp > 1 and zero % 2 == 1) or (dp == 1 and zero == 0) then
      test("an actor and a critic in one step" .. layout, function()
        local trainer = new_trainer {
          params = initial,
          optimizer = optim.multi { { "actor.*", adamw() }, { "critic.*", sgd() } },
          loss_fn = function(_, _, p, rows) return actor_loss(p, rows) end,
          train_step_fn = function(_, _, rows, defaults)
            local loss, grads
            for _ = 1, 2 do
              loss, grads = defaults.value_and_grad(function(p) return critic_loss(p, rows) end)
              defaults.apply_gradients { critic = grads.critic }
            end
            _, grads = defaults.value_and_grad(function(p) return actor_loss(p, rows) end)
            defaults.apply_gradients { actor = grads.actor }
            return { loss = loss }
          end,
        }
        for _ = 1, 2 do step(trainer) end
        testing.expect_equal(trainer.step, 2)
        expect_trees(trainer.params, expected.steps)
      end)

      test("a teacher that averages its student" .. layout, function()
        local optimizer = averaging()
        local trainer = new_trainer {
          params = initial.actor, optimizer = optimizer,
          loss_fn = function(_, state, p, rows)
            return student_loss(p, optimizer:averages(state, state.params), rows.x)
          end,
        }
        for _ = 1, 3 do step(trainer) end
        expect_trees(trainer.params, expected.student)
        expect_trees(optimizer:averages(trainer.state, trainer.params), expected.teacher)
      end)

      test("two Trainers that take turns" .. layout, function()
        local actor, critic
        critic = new_trainer { params = initial.critic, optimizer = sgd(),
          loss_fn = function(_, _, p, rows)
            return critic_loss({ critic = p, actor = actor.params }, rows)
          end }
        actor = new_trainer { params = initial.actor, optimizer = adamw(),
          loss_fn = function(_, _, p, rows)
            return actor_loss({ actor = p, critic = critic.params }, rows)
          end }
        actor:setup_running_step { examples = examples, per_device_batch_size = per_device }
        for _ = 1, 2 do
          step(critic)
          step(critic)
          step(actor)
        end
        expect_trees({ actor = actor.params, critic = critic.params }, expected.steps)
        -- The layout of one is decided while the other's parameters, which have values, are used.
        for params, n in pairs { [actor.params] = 70, [critic.params] = 31 } do
          local n_local = 0
          for _, leaf in ipairs(tree.leaves(params)) do
            n_local = n_local + leaf:to_local():numel()
          end
          if dp == 1 then testing.expect_equal(n_local, n) end
        end
      end)
    end
  end
end

testing.finish()
