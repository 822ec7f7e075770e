--- Environments of reinforcement learning: many copies of one, stepped together as tensors.
local arguments = require "redco.arguments"
local check_choice = require "redco.check_choice"
local check_integer = require "redco.check_integer"
local classic_control = require "redco.rl.classic_control"
local fail = require "redco.fail"
local names_of = require "redco.names_of"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local methods = registry.define("Environment", [[
Environment {n_envs, observation_size, n_actions, action_low: list of numbers, action_high: list of numbers, max_episode_steps, n_episodes, observations: Tensor, states: Tensor}
Copies of an environment that are stepped together. Its tensors are on the CPU.
  observation_size: the numbers of an observation
  n_actions: the number of discrete actions; nil if actions are continuous
  action_low, action_high: the bounds of each number of a continuous action; nil if actions are
    discrete
  max_episode_steps: the steps after which an episode is truncated
  n_episodes: the number of episodes that ended, in all copies
  observations: the newest observations, float32 [n_envs, observation_size]
  states: the states of all copies, float64 [n_envs, size]; a script may write to it]], {})

local meta = { __name = "Environment" }
local data_ptr = torch.Tensor.data_ptr

function meta.__index(self, key)
  if methods[key] then return methods[key] end
  local facts = rawget(self, "facts")
  if facts[key] ~= nil then return facts[key] end
  if key == "n_actions" or key == "action_low" or key == "action_high" then return nil end
  fail("an Environment has no '%s'", key)
end

function meta.__tostring(self)
  return ("Environment(%s, %.0f %s)"):format(self.name, self.n_envs,
    self.n_envs == 1 and "copy" or "copies")
end

local function numbers_of(t)
  return "[" .. table.concat(torch.is_tensor(t) and t:view { -1 }:tolist() or { t }, ", ") .. "]"
end

local function shown(value)
  return torch.is_tensor(value) and value.dtype .. " [" .. table.concat(value.shape, ", ") .. "]"
    or type(value)
end

-- `value` as a contiguous tensor of this dtype, [n] or, with `size`, [n, size].
local function checked(self, what, value, dtype, n, size)
  if not torch.is_tensor(value) or value:dim() ~= (size and 2 or 1) or value:size(0) ~= n
    or size and value:size(1) ~= size then
    fail("%s: %s: expected a tensor %s [%.0f%s], got %s", self.name, what, dtype, n,
      size and (", %.0f"):format(size) or "", shown(value))
  end
  return value.dtype == dtype and value:is_contiguous() and value or value:to(dtype):contiguous()
end

-- The address of the elements of a field, for writing. A script may have put another tensor there.
local function elements_of(self, name, dtype, n, size)
  local tensor = rawget(self, name)
  if not rawequal(checked(self, name, tensor, dtype, n, size), tensor) then
    fail("%s: %s: expected a contiguous tensor %s", self.name, name, dtype)
  end
  return data_ptr(tensor)
end

-- New states of all copies, which depend on the seed, the number of the step and the copy's place.
local function starts(self)
  local generator = native.Rng(self.seed):fold_in(self.n_steps)
  return self.facts.start(function(n)
    return torch.rand({ self.n_envs, n }, { generator = generator, dtype = "float64" })
  end)
end

-- Sets the observations from the states, and returns them.
local function observe(self)
  local facts = self.facts
  self.observations = (facts.observe and facts.observe(self.states) or self.states):float()
  return self.observations
end

local function fits(self, actions)
  local discrete = self.n_actions
  return torch.is_tensor(actions) and actions.dtype ~= "bool"
    and actions:is_floating_point() == (discrete == nil)
    and actions:dim() == (discrete and 1 or 2) and actions:size(0) == self.n_envs
    and (discrete or actions:size(1) == #self.action_low)
end

local function check_actions(self, actions)
  local discrete = self.n_actions
  if not fits(self, actions) then
    local expected = discrete and ("int64 [%.0f]"):format(self.n_envs)
      or ("floating-point [%.0f, %d]"):format(self.n_envs, #self.action_low)
    fail("Environment:step: %s: expected the actions as a tensor %s, got %s", self.name, expected,
      shown(actions))
  end
  actions = actions:detach():full():cpu():double():contiguous()
  if discrete then
    local action = data_ptr(actions)
    for i = 0, actions:size(0) - 1 do
      if action[i] < 0 or action[i] >= discrete then
        fail("Environment:step: %s: expected actions from 0 to %d, got %d", self.name,
          discrete - 1, action[i])
      end
    end
  end
  return actions
end

local function is_finite(tensor)
  local value, sum = data_ptr(tensor), 0
  for i = 0, tensor:numel() - 1 do sum = sum + value[i] end
  return sum - sum == 0
end

-- Raises an error that names the first copy whose state, reward or action is not finite.
local function check_finite(self, states, rewards, actions)
  if is_finite(states) and is_finite(rewards) then return end
  for i = 0, self.n_envs - 1 do
    for _, row in ipairs {
      { "got the action", actions[i], "check the policy's parameters" },
      { "diverged: its state became", states[i], "check its equations and the actions" },
      { "diverged: its reward became", rewards[i], "check its equations and the actions" },
    } do
      if not row[2]:isfinite():all():item() then
        fail("Environment:step: %s: copy %d %s %s at step %d of its episode, after the state %s; "
          .. "%s", self.name, i, row[1], numbers_of(row[2]), self.steps[i]:item() + 1,
          numbers_of(self.states[i]), row[3])
      end
    end
  end
end

-- Starts new episodes of the copies of a mask.
local function restart(self, mask)
  local n, size = self.n_envs, self.states:size(1)
  mask = checked(self, "ended", mask, "bool", n)
  local first_states = checked(self, "start: states", starts(self), "float64", n, size)
  local is_chosen, first = data_ptr(mask), data_ptr(first_states)
  local states = elements_of(self, "states", "float64", n, size)
  local steps = elements_of(self, "steps", "int64", n)
  local returns = elements_of(self, "returns", "float64", n)
  for i = 0, n - 1 do
    if is_chosen[i] then
      for k = i * size, (i + 1) * size - 1 do states[k] = first[k] end
      steps[i], returns[i] = 0, 0
    end
  end
end

methods.reset = registry.define("Environment:reset", [[
reset(self) -> Tensor [n_envs, observation_size]
Starts new episodes in all copies and returns their observations.]], function(self)
  return torch.no_grad(function()
    restart(self, torch.ones({ self.n_envs }, { dtype = "bool" }))
    self.ended:zero_()
    return observe(self)
  end)
end)

-- Keeps the returns of the newest 1000 ended episodes, in a ring.
local n_kept = 1000

-- Counts a step of each copy, from results that `checked` returned. Returns where the time limit
-- ended an episode, and whether any ended.
local function count_steps(self, rewards, terminated)
  local n, limit = rewards:size(0), self.max_episode_steps
  local truncated = torch.empty({ n }, { dtype = "bool" })
  local reward, is_over, is_late = data_ptr(rewards), data_ptr(terminated), data_ptr(truncated)
  local steps = elements_of(self, "steps", "int64", n)
  local returns = elements_of(self, "returns", "float64", n)
  local ended = elements_of(self, "ended", "bool", n)
  local n_ended = 0
  for i = 0, n - 1 do
    steps[i], returns[i] = steps[i] + 1, returns[i] + reward[i]
    is_late[i] = steps[i] >= limit and not is_over[i]
    ended[i] = is_over[i] or is_late[i]
    if ended[i] then
      self.finished[(self.n_episodes + n_ended) % n_kept + 1] = returns[i]
      n_ended = n_ended + 1
    end
  end
  self.n_episodes = self.n_episodes + n_ended
  return truncated, n_ended > 0
end

methods.step = registry.define("Environment:step", [[
step(self, actions: Tensor) -> observations, rewards, terminated, truncated, final_observations
Makes a step in each copy. `actions` is int64 [n_envs] or floating-point [n_envs, action size].
`terminated` says where an episode ended by the rules, `truncated` where by the time limit.

A copy whose episode ends is reset. With autoreset = "same_step", `observations` has the first
observation of its new episode, and `final_observations` the last one of the old. With "next_step",
which is gymnasium's default, the next call resets it: that call ignores the action and returns
reward 0. An action, state or reward that is not finite raises an error.]], function(self, actions)
  return torch.no_grad(function()
    local taken = check_actions(self, actions)
    local states, rewards, terminated = self.facts.step(self.states, taken)
    local n = self.n_envs
    states = checked(self, "step: states", states, "float64", n, self.states:size(1))
    rewards = checked(self, "step: rewards", rewards, "float64", n)
    terminated = checked(self, "step: terminated", terminated, "bool", n)
    local resets = self.autoreset == "next_step" and self.ended:any():item() and self.ended:clone()
    if resets then
      -- A copy that is reset takes no step.
      states = torch.where(resets:unsqueeze(1), self.states, states)
      rewards = rewards:masked_fill(resets, 0)
      terminated = terminated:logical_and(resets:logical_not())
    end
    check_finite(self, states, rewards, taken)
    self.n_steps = self.n_steps + 1
    self.states:copy_(states)
    if resets then
      restart(self, resets)
      self.steps:masked_fill_(resets, -1)
    end
    local truncated, any_ended = count_steps(self, rewards, terminated)
    local observations = observe(self)
    local final = observations
    if any_ended and self.autoreset == "same_step" then
      restart(self, self.ended)
      observations = observe(self)
    end
    return observations, rewards:float(), terminated, truncated, final
  end)
end)

methods.mean_return = registry.define("Environment:mean_return", [[
mean_return(self, n) -> number
Returns the mean sum of rewards of the last n ended episodes, at most 1000, or of all if there are
fewer; 0 if there are none.]], function(self, n)
  check_integer("Environment:mean_return", "n", n, 1, n_kept)
  local count, sum = math.min(n, self.n_episodes), 0
  for i = self.n_episodes - count, self.n_episodes - 1 do
    sum = sum + self.finished[i % n_kept + 1]
  end
  return count > 0 and sum / count or 0
end)

local tensors = { "states", "steps", "returns", "ended" }

methods.state_dict = registry.define("Environment:state_dict", [[
state_dict(self) -> table
Returns a copy of the copies' states and of what decides the next resets, for a checkpoint's
custom_state or `torch.save`.]], function(self)
  local state = { n_steps = self.n_steps, seed = self.seed, n_episodes = self.n_episodes,
    finished = torch.tensor(self.finished, { dtype = "float64" }) }
  for _, name in ipairs(tensors) do state[name] = self[name]:clone() end
  return state
end)

local required = { start = "function", step = "function", observation_size = "number",
  max_episode_steps = "number" }

local function facts_of(kind)
  if type(kind) == "string" then
    return kind, classic_control[kind] or fail("rl.environment: there is no environment '%s'; "
      .. "expected one of %s, or a table", kind, table.concat(names_of(classic_control), ", "))
  end
  if type(kind) ~= "table" then
    fail("rl.environment: expected a name or a table, got %s", native.describe(kind))
  end
  for name, expected in pairs(required) do
    if type(kind[name]) ~= expected then
      fail("rl.environment: %s: expected a %s, got %s", name, expected, native.describe(kind[name]))
    end
  end
  local is_continuous = type(kind.action_low) == "table" and type(kind.action_high) == "table"
    and #kind.action_low == #kind.action_high and #kind.action_low > 0
  if is_continuous == (kind.n_actions ~= nil) then
    fail "rl.environment: expected either n_actions, or action_low and action_high of equal length"
  end
  return kind.name or "environment", kind
end

local options_of = arguments("rl.environment", { n_envs = 1, seed = 0, autoreset = "same_step" },
  { "state" })

return registry.define("redco.rl.environment", [[
environment(kind: string or table, {n_envs = 1, seed = 0, autoreset = "same_step", state: table = nil}) -> Environment
Returns n_envs copies of an environment in new episodes. Copies that start with the same seed get
the same starts, on any number of processes.

`kind` is a name: "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0" or
"Pendulum-v1", whose transitions are those of gymnasium 1.4. Or it is a table: observation_size;
max_episode_steps; n_actions, or action_low and action_high; start(uniform), which returns new
states of all copies, where uniform(n) draws numbers [n_envs, n] from 0 to 1; step(states, actions),
which returns the next states, rewards and terminated; observe(states), if observations are not the
states. All tensors have a row for each copy; those of numbers are float64.
  n_envs: the number of copies
  autoreset: the call of `Environment:step` that resets an ended copy: "same_step" or "next_step"
  state: what `Environment:state_dict` returned, to continue from there]], function(kind, options)
  local o = options_of(options)
  local name, facts = facts_of(kind)
  check_integer("rl.environment", "n_envs", o.n_envs, 1)
  check_integer("rl.environment", "seed", o.seed, 0)
  check_choice("rl.environment", "autoreset", o.autoreset, "same_step", "next_step")
  local self = setmetatable({ name = name, facts = facts, n_envs = o.n_envs, seed = o.seed,
    autoreset = o.autoreset, n_steps = 0, n_episodes = 0, finished = {} }, meta)
  self.states = torch.no_grad(starts, self)
  if not torch.is_tensor(self.states) or self.states:dim() ~= 2
    or self.states:size(0) ~= o.n_envs or self.states.dtype ~= "float64" then
    fail("rl.environment: %s: start: expected it to return float64 [%d, size]", name, o.n_envs)
  end
  self.steps = torch.zeros({ o.n_envs }, { dtype = "int64" })
  self.returns = torch.zeros({ o.n_envs }, { dtype = "float64" })
  self.ended = torch.zeros({ o.n_envs }, { dtype = "bool" })
  if o.state then
    for _, field in ipairs(tensors) do
      local given = o.state[field]
      if not torch.is_tensor(given) or table.concat(given.shape, ",")
        ~= table.concat(self[field].shape, ",") then
        fail("rl.environment: state: it is not of %d copies of %s: %s has another shape", o.n_envs,
          name, field)
      end
      self[field]:copy_(given)
    end
    for _, field in ipairs { "n_steps", "seed", "n_episodes" } do
      local given = o.state[field]
      self[field] = torch.is_tensor(given) and given:item() or given
    end
    self.finished = o.state.finished:tolist()
  end
  torch.no_grad(observe, self)
  return self
end)
