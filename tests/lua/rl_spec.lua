-- redco.rl: transitions of gymnasium, resets and limits, advantages, the losses and updates of PPO
-- and DDPG against PyTorch, and bad input.
local cases = require "algorithm_cases"
local redco = require "redco"
local testing = require "testing"

local optim, rl, torch, tree = redco.optim, redco.rl, redco.torch, redco.tree
local test, expect_equal = testing.test, testing.expect_equal
local expect_close, expect_error = testing.expect_close, testing.expect_error

-- Compares lists.
local function expect_list(actual, expected)
  local function text(list)
    local parts = {}
    for i, value in ipairs(list) do parts[i] = tostring(value) end
    return table.concat(parts, " ")
  end
  expect_equal(text(actual), text(expected))
end

-- ---- environments ----

-- The states that are written into an environment by the tests.
local function tensor_of(rows) return torch.tensor(rows, { dtype = "float64" }) end

-- Steps through all episodes of one environment at once, and compares each step.
local function compare_episodes(name, episodes)
  local starts, longest = {}, 0
  for i, episode in ipairs(episodes) do
    starts[i], longest = episode.start_state, math.max(longest, #episode.steps)
  end
  local env = rl.environment(name, { n_envs = #episodes })
  expect_equal(env.max_episode_steps, episodes[1].max_episode_steps)
  env.states:copy_(tensor_of(starts))
  local n_compared = 0
  for t = 1, longest do
    local actions = {}
    for i, episode in ipairs(episodes) do
      local step = episode.steps[t]
      actions[i] = env.n_actions and (step and step.action or 0) or { step and step.action or 0 }
    end
    local observations, rewards, terminated, truncated, final = env:step(
      torch.tensor(actions, { dtype = env.n_actions and "int64" or "float64" }))
    expect_equal(observations.dtype .. rewards.dtype .. terminated.dtype, "float32float32bool")
    for i, episode in ipairs(episodes) do
      local step = episode.steps[t]
      if step then
        expect_close(final[i - 1], step.observation, 1e-5, 1e-6)
        expect_close(rewards[i - 1], torch.tensor(step.reward), 1e-5, 1e-6)
        expect_equal(terminated[i - 1]:item(), step.terminated)
        expect_equal(truncated[i - 1]:item(), step.truncated)
        n_compared = n_compared + 1
      end
    end
  end
  return n_compared
end

-- The mean return of 20 episodes of a policy of observations.
local function mean_return(name, policy)
  local env = rl.environment(name, { n_envs = 20, seed = 5, autoreset = "next_step" })
  while env.n_episodes < 20 do env:step(policy(env.observations)) end
  return env:mean_return(1000)
end

local simple_policies = {
  ["CartPole-v1"] = function(o) return (o:select(1, 2) + 0.3 * o:select(1, 3)):gt(0):long() end,
  ["MountainCar-v0"] = function(o) return 2 * o:select(1, 1):ge(0):long() end,
}

local folders = { (os.getenv "REDCO_SOURCE" or "../..") .. "/tests/cases/environments" }
for folder in (os.getenv "REDCO_CASES" or ""):gmatch "[^:]+" do
  local file = io.open(folder .. "/environments/environments.json")
  if file then
    file:close()
    folders[#folders + 1] = folder .. "/environments"
  end
end
for _, folder in ipairs(folders) do
  local all, by_name = redco.data.json(folder .. "/environments.json"), {}
  for _, episode in ipairs(all.episodes) do
    by_name[episode.env] = by_name[episode.env] or {}
    table.insert(by_name[episode.env], episode)
  end
  for name, episodes in pairs(by_name) do
    test(("the transitions of %s: %s"):format(name, folder), function()
      local n_steps = 0
      for _, episode in ipairs(episodes) do n_steps = n_steps + #episode.steps end
      expect_equal(compare_episodes(name, episodes), n_steps)
    end)
  end
  test("returns of simple policies: " .. folder, function()
    for name, policy in pairs(simple_policies) do
      local expected = all.returns_of_simple_policies[name].mean
      local found = mean_return(name, policy)
      assert(math.abs(found - expected) < 6, ("%s: %g, expected %g"):format(name, found, expected))
    end
  end)
end

-- Counts up to 3 or to what the action says.
local function counter(max_episode_steps)
  return {
    name = "counter", observation_size = 1, n_actions = 10, max_episode_steps = max_episode_steps,
    start = function(uniform) return uniform(1) end,
    step = function(states, actions)
      local sum = states + actions:unsqueeze(1)
      return sum, actions, sum:squeeze(1):ge(9)
    end,
  }
end

test("same_step: an ended copy starts anew at once", function()
  local env = rl.environment(counter(3), { n_envs = 3, seed = 1 })
  expect_equal(env.action_low, nil)
  local start = env.observations
  local observations, rewards, terminated, truncated, final = env:step(torch.tensor { 9, 1, 2 })
  expect_list(terminated:tolist(), { true, false, false })
  expect_list(truncated:tolist(), { false, false, false })
  expect_list(rewards:tolist(), { 9, 1, 2 })
  expect_close(final:squeeze(1) - start:squeeze(1), torch.tensor { 9, 1, 2 }:float())
  assert(observations[0][0]:item() < 1 and observations[0][0]:item() ~= start[0][0]:item())
  expect_close(observations:narrow(0, 1, 2), final:narrow(0, 1, 2))
  expect_equal(env:mean_return(5), 9)
  env:step(torch.tensor { 1, 1, 1 })
  local _, _, by_rules, by_time = env:step(torch.tensor { 1, 1, 8 })
  expect_list(by_rules:tolist(), { false, false, true })
  expect_list(by_time:tolist(), { false, true, false })  -- an end by the rules is no truncation
  expect_equal(env.n_episodes, 3)
  expect_equal(env:mean_return(2), 7)
end)

test("next_step: the call after the last step resets, and ignores the action", function()
  local env = rl.environment(counter(2), { n_envs = 2, autoreset = "next_step" })
  local last, _, terminated = env:step(torch.tensor { 9, 1 })
  expect_list(terminated:tolist(), { true, false })
  assert(last[0][0]:item() >= 9)
  local first, rewards, ended, truncated, final = env:step(torch.tensor { 5, 1 })
  assert(first[0][0]:item() < 1 and first:equal(final))
  expect_list(rewards:tolist(), { 0, 1 })
  expect_list(ended:tolist(), { false, false })
  expect_list(truncated:tolist(), { false, true })
  local _, later, _, by_time = env:step(torch.tensor { 2, 2 })
  expect_list(later:tolist(), { 2, 0 })
  expect_list(by_time:tolist(), { false, false })
  expect_equal(env:mean_return(2), 5.5)
  for _ = 1, 1500 do env:step(torch.tensor { 9, 9 }) end
  expect_equal(env.n_episodes, 1502)
  expect_equal(env:mean_return(1000), 9)
  expect_equal(#env.finished, 1000)
end)

test("the starts depend on the seed, and a saved state continues", function()
  local function new(seed, state)
    return rl.environment("CartPole-v1", { n_envs = 8, seed = seed, state = state })
  end
  local function play(env)
    local sums = {}
    for i = 1, 60 do
      sums[i] = env:step(torch.full({ 8 }, i % 2, { dtype = "int64" })):sum():item()
    end
    return sums
  end
  expect_list(play(new(1)), play(new(1)))
  assert(play(new(1))[1] ~= play(new(2))[1])
  local env = new(3)
  play(env)
  assert(env.n_episodes > 0)
  local state = env:state_dict()
  local path = testing.folder() .. "/state.safetensors"
  torch.save(state, path)
  local again = new(0, torch.load(path))
  expect_list(play(again), play(env))
  expect_equal(again.n_episodes, env.n_episodes)
  expect_equal(again:mean_return(5), env:mean_return(5))
  local first = env:reset()
  assert(first:abs():max():item() <= 0.05)
  expect_equal(env.steps:sum():item(), 0)
end)

test("wrong arguments of environments", function()
  expect_error(function() rl.environment "CartPole-v9" end, "CartPole-v9", "CartPole-v1")
  expect_error(function() rl.environment(3) end, "name or a table", "number")
  expect_error(function() rl.environment { n_actions = 2 } end, "expected a", "got nil")
  expect_error(function()
    local facts = counter(3)
    facts.n_actions = nil
    rl.environment(facts)
  end, "n_actions", "action_low")
  expect_error(function()
    local facts = counter(3)
    facts.start = function() return torch.zeros { 4 } end
    rl.environment(facts)
  end, "start", "float64 [1, size]")
  for _, n in ipairs { 0, 1.5, "2" } do
    expect_error(function() rl.environment("CartPole-v1", { n_envs = n }) end, "n_envs",
      "at least 1")
  end
  expect_error(function() rl.environment("CartPole-v1", { autoreset = "never" }) end, "same_step")
  local state = rl.environment("CartPole-v1", { n_envs = 2 }):state_dict()
  expect_error(function() rl.environment("CartPole-v1", { n_envs = 3, state = state }) end,
    "3 copies of CartPole-v1")
  expect_error(function() rl.environment("Pendulum-v1", { n_envs = 2, state = state }) end,
    "states")
  local env = rl.environment("CartPole-v1", { n_envs = 2 })
  expect_error(function() return env.stats end, "has no 'stats'")
  expect_error(function() env:step(torch.tensor { 0, 2 }) end, "from 0 to 1, got 2")
  expect_error(function() env:step(torch.tensor { -1, 0 }) end, "got -1")
  expect_error(function() env:step(torch.tensor { 0 }) end, "int64 [2]", "int64 [1]")
  expect_error(function() env:step(torch.tensor { 0.5, 0.5 }) end, "int64 [2]", "float32 [2]")
  expect_error(function() env:step(1) end, "int64 [2]", "got number")
  local pendulum = rl.environment("Pendulum-v1", { n_envs = 2 })
  expect_error(function() pendulum:step(torch.zeros { 2 }) end, "[2, 1]")
  expect_equal(env:mean_return(1), 0)
  expect_error(function() env:mean_return(0) end, "n: ", "an integer from 1 to 1000")
end)

test("an environment that diverges raises an error and keeps its states", function()
  local env = rl.environment("Pendulum-v1", { n_envs = 3 })
  env:step(torch.zeros { 3, 1 })
  local before = env.states:clone()
  expect_error(function() env:step(torch.tensor { { 0 }, { 0 / 0 }, { 0 } }:float()) end,
    "Pendulum-v1", "copy 1 got the action [nan]", "step 2", "policy's parameters")
  expect_equal(env.states:equal(before), true)
  env.states[2][1] = 1 / 0
  expect_error(function() env:step(torch.zeros { 3, 1 }) end, "copy 2 diverged", "inf]")
  local facts = counter(3)
  facts.step = function(states, actions) return states, actions / 0, actions:lt(0) end
  local rewards = rl.environment(facts, { n_envs = 2 })
  expect_error(function() rewards:step(torch.tensor { 1, 1 }) end, "copy 0 diverged",
    "reward became [inf]")
end)

test("results and fields of another shape are refused", function()
  local zeros = torch.zeros { 2 }
  for name, wrong in pairs {
    states = function(states) return states:t(), zeros, zeros:bool() end,
    rewards = function(states) return states, zeros:unsqueeze(1), zeros:bool() end,
    terminated = function(states) return states, zeros, true end,
  } do
    local facts = counter(3)
    local env = rl.environment(facts, { n_envs = 2 })
    facts.step = wrong
    expect_error(function() env:step(torch.tensor { 1, 1 }) end,
      ("counter: step: %s: expected a tensor"):format(name))
  end
  for name, shape in pairs { states = { 2, 3 }, steps = { 1 }, returns = { 1 }, ended = { 1 } } do
    local env = rl.environment("CartPole-v1", { n_envs = 2 })
    env[name] = torch.zeros(shape, { dtype = env[name].dtype })
    expect_error(function() env:step(torch.tensor { 1, 1 }) end, "expected ")
  end
end)

-- ---- advantages ----

test("gae: where episodes end, and its limits", function()
  local generator = torch.Generator(2)
  local function draw(...)
    return torch.randn({ ... }, { generator = generator, dtype = "float64" })
  end
  local rewards, values, next_values = draw(6, 3), draw(6, 3), draw(6, 3)
  local terminated = torch.rand({ 6, 3 }, { generator = generator }):lt(0.25)
  local truncated = torch.rand({ 6, 3 }, { generator = generator }):lt(0.25)
    :logical_and(terminated:logical_not())
  local advantages, returns = rl.gae { rewards = rewards, values = values, gamma = 0.9,
    next_values = next_values, terminated = terminated, truncated = truncated, lambda = 0.7 }
  for env = 0, 2 do
    local after = 0
    for t = 5, 0, -1 do
      local function at(x) return x[t][env]:item() end
      local is_over = at(terminated) or at(truncated)
      local delta = at(rewards) - at(values)
        + (at(terminated) and 0 or 0.9 * at(next_values))
      after = delta + (is_over and 0 or 0.9 * 0.7 * after)
      expect_close(advantages[t][env], tensor_of(after), 1e-12, 1e-12)
    end
  end
  expect_close(returns, advantages + values)
  local one = rl.gae { rewards = rewards, values = values, next_values = next_values,
    terminated = torch.zeros_like(rewards), lambda = 0, gamma = 0.5 }
  expect_close(one, rewards + 0.5 * next_values - values)
end)

test("wrong arguments of gae and of the losses", function()
  local t = torch.zeros { 3 }
  expect_error(function() rl.gae { rewards = t, values = t, next_values = t } end, "terminated",
    "got nil")
  expect_error(function()
    rl.gae { rewards = t, values = t, next_values = torch.zeros { 2 }, terminated = t }
  end, "next_values", "[2] beside [3]")
  for _, name in ipairs { "gamma", "lambda" } do
    expect_error(function()
      rl.gae { rewards = t, values = t, next_values = t, terminated = t, [name] = 1.5 }
    end, name, "from 0 to 1")
  end
  expect_error(function()
    rl.policy_loss { log_probs = t, old_log_probs = t, advantages = torch.zeros { 3, 1 } }
  end, "advantages", "[3]", "[3, 1]")
  expect_error(function()
    rl.policy_loss { log_probs = t, old_log_probs = t, advantages = t, clip = 0 }
  end, "clip", "above 0")
  expect_error(function() rl.value_loss { values = t, returns = t, clip = 1 } end, "old_values")
end)

-- ---- updates ----

local function norm_of(gradients)
  local squares = 0
  for _, gradient in ipairs(tree.leaves(gradients)) do
    squares = squares + gradient:square():sum():item()
  end
  return math.sqrt(squares)
end

for _, folder in ipairs(cases.folders "ppo") do
  local info, arrays = cases.read(folder)
  for kind, run in pairs(info.runs) do
    local data, h = arrays(kind .. "."), run.hyperparameters
    local ppo = cases.ppo(kind, h)
    local function after(rows, last)
      return torch.cat { rows:narrow(0, 1, rows:size(0) - 1), last }
    end
    local advantages, returns = rl.gae {
      rewards = data.rewards, values = data.values, gamma = h.gamma, lambda = h.gae_lambda,
      next_values = after(data.values, data.next_value:unsqueeze(0)),
      terminated = after(data.dones, data.next_done:unsqueeze(0)),
    }
    local batch = tree.map(function(t) return t:flatten(0, 1) end, {
      observations = data.observations, actions = data.actions, log_probs = data.log_probs,
      values = data.values, advantages = advantages, returns = returns })

    test(("PPO, %s: the advantages and every update: %s"):format(kind, folder), function()
      cases.expect_near(advantages, data.advantages, "advantages")
      cases.expect_near(returns, data.returns, "returns")
      local params = tree.map(function(t) return t:clone() end, data.params)
      local optimizer = optim.chain { optim.clip_by_global_norm(h.max_grad_norm),
        optim.adam { learning_rate = h.optimizer.lr, eps = h.optimizer.eps } }
      local state, n_updates = optimizer:init(params), 0
      for _, order in ipairs(run.permutations) do
        for first = 1, #order, h.minibatch_size do
          local chosen = torch.tensor { unpack(order, first, first + h.minibatch_size - 1) }
          local rows, found = tree.map(function(t) return t:index_select(0, chosen) end, batch), nil
          local gradients = redco.grad(function(p)
            found = ppo.losses(p, rows)
            return found.loss
          end)(params)
          found.grad_norm = norm_of(gradients)
          optimizer:step(gradients, state, params)
          n_updates = n_updates + 1
          found.old_approx_kl = run.minibatches[n_updates].old_approx_kl  -- another estimate
          cases.expect_figures(found, run.minibatches[n_updates], "update " .. n_updates)
        end
      end
      expect_equal(n_updates, #run.minibatches)
      cases.expect_trees(params, data.params_after, "parameter")
    end)

    test(("PPO, %s: the two losses of Redco: %s"):format(kind, folder), function()
      local actor_loss, of_actor = redco.value_and_grad(function(part)
        return (rl.policy_loss { advantages = batch.advantages, old_log_probs = batch.log_probs,
          log_probs = ppo.policy(part, batch.observations):log_prob(batch.actions) })
      end)({ actor = data.params.actor, log_std = data.params.log_std })
      local critic_loss, of_critic = redco.value_and_grad(function(critic)
        return 2 * rl.value_loss { returns = batch.returns,
          values = ppo.value({ critic = critic }, batch.observations) }
      end)(data.params.critic)
      cases.expect_near(actor_loss, run.redco.actor_loss, "the actor's loss")
      cases.expect_near(critic_loss, run.redco.critic_loss, "the critic's loss")
      cases.expect_near(norm_of(of_actor), run.redco.actor_grad_norm, "the actor's gradient")
      cases.expect_near(norm_of(of_critic), run.redco.critic_grad_norm, "the critic's gradient")
    end)
  end
end

local function none(branch) return tree.map(function() return false end, branch) end

for _, folder in ipairs(cases.folders "ddpg") do
  local info, arrays = cases.read(folder)
  for kind, run in pairs(info.runs) do
    test(("DDPG, %s: every update: %s"):format(kind, folder), function()
      local h = run.hyperparameters
      local function copy(t) return t:clone() end
      local params, target = tree.map(copy, arrays "params."), tree.map(copy, arrays "target.")
      local function adam() return optim.adam { learning_rate = h.optimizer.lr } end
      local optimizer = kind == "redco" and adam()
        or optim.multi { { "actor.*", adam() }, { "critic.*", adam() } }
      local state = optimizer:init(params)
      for i, expected in ipairs(run.updates) do
        local batch, found = arrays(("batch%d."):format(i - 1)), nil
        local function critic_loss(p)
          local loss
          loss, found = cases.ddpg.critic_loss(p, target, batch, h.gamma)
          return loss
        end
        local function actor_loss(p)
          found.actor_loss = cases.ddpg.actor_loss(p, batch)
          return found.actor_loss
        end
        local is_moving = kind == "redco" or (i - 1) % h.policy_frequency == 0
        if kind == "redco" then
          local gradients = redco.grad(function(p)
            return h.critic_loss_weight * critic_loss(p) + actor_loss(p)
          end)(params)
          optimizer:step(gradients, state, params)
        else
          optimizer:step({ actor = none(params.actor),
            critic = redco.grad(critic_loss)(params).critic }, state, params)
          if is_moving then
            optimizer:step({ actor = redco.grad(actor_loss)(params).actor,
              critic = none(params.critic) }, state, params)
          end
        end
        if is_moving then
          tree.map(function(t, param) t:lerp_(param, h.tau) end, target, params)
        end
        cases.expect_figures(found, expected, "update " .. i)
      end
      cases.expect_trees(params, arrays(kind .. ".params_after."), "parameter")
      for name, expected in pairs(run.target_norms_after) do
        local branch = target
        for key in name:gmatch "[^.]+" do branch = branch[tonumber(key) and key + 1 or key] end
        cases.expect_near(branch:norm(), expected, "target " .. name)
      end
    end)
  end
end

testing.finish()
