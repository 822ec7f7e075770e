--- Steps of environments that are written for one copy, on its numbers, as steps of all copies:
--- LuaJIT compiles the loop, which takes a fraction of the time of a tensor operator for each term.
local fail = require "redco.fail"
local torch = require "redco.torch"

local data_ptr = torch.Tensor.data_ptr
local rows = {}

local function check_size(what, tensor, n)
  if tensor:numel() ~= n then fail("%s: expected %.0f numbers, got %s", what, n, tensor:numel()) end
end

--- Returns `step(states, actions)` of all copies. `step_one(state, action)` gets a pointer to the
--- `size` numbers of one copy, and the number of its action. It writes the next state over the old,
--- and returns the reward and whether the episode ended.
function rows.step(size, step_one)
  return function(states, actions)
    states, actions = states:to("float64", { copy = true }):contiguous(),
      actions:to("float64"):contiguous()
    local n = states:size(0)
    check_size("states", states, n * size)
    check_size("actions", actions, n)
    local rewards = torch.empty({ n }, { dtype = "float64" })
    local terminated = torch.empty({ n }, { dtype = "bool" })
    local state, action = data_ptr(states), data_ptr(actions)
    local reward, ended = data_ptr(rewards), data_ptr(terminated)
    for i = 0, n - 1 do reward[i], ended[i] = step_one(state + i * size, action[i]) end
    return states, rewards, terminated
  end
end

--- Returns `observe(states)` of all copies. `observe_one(state, observation)` gets pointers to the
--- `state_size` numbers of one copy, and to the `size` numbers of its observation to write.
function rows.observe(state_size, size, observe_one)
  return function(states)
    states = states:to("float64"):contiguous()
    local n = states:size(0)
    check_size("states", states, n * state_size)
    local observations = torch.empty({ n, size }, { dtype = "float32" })
    local state, observation = data_ptr(states), data_ptr(observations)
    for i = 0, n - 1 do observe_one(state + i * state_size, observation + i * size) end
    return observations
  end
end

return rows
