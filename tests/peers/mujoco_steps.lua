-- mujoco_steps.lua LIBRARY MODEL OUT: steps of a robot, HalfCheetah's rewards, for mujoco_peer.py.
local redco = require "redco"
local rl, torch = redco.rl, redco.torch
local library, model, out = unpack(arg)

local env = rl.environment(rl.mujoco {
  library = library, model = model, frame_skip = 5, max_episode_steps = 40,
  step = function(before, after, actions, seconds)
    local moved = after.positions:select(1, 0) - before.positions:select(1, 0)
    return moved / seconds - 0.1 * actions:square():sum(1)
  end,
  observe = function(state)
    return torch.cat({ state.positions:narrow(1, 1, state.positions:size(1) - 1),
      state.velocities }, 1)
  end,
}, { n_envs = 3, seed = 1 })
local generator, kept = torch.Generator(2), {}
kept.states = env.states:clone()
for t = 0, 29 do
  local actions = torch.rand({ 3, #env.action_low }, { generator = generator }) * 2 - 1
  local observations, rewards = env:step(actions)
  kept["actions." .. t], kept["observations." .. t] = actions, observations
  kept["rewards." .. t] = rewards
end
torch.save(kept, out)

for text, options in pairs {
  ["cannot load MuJoCo"] = { library = "libnone.so", model = model, step = print },
  ["none.xml"] = { library = library, model = "none.xml", step = print },
  ["step: expected a function"] = { library = library, model = model },
} do
  local ok, message = pcall(rl.mujoco, options)
  assert(not ok and message:find(text, 1, true), message)
end
local ok, message = pcall(env.step, env, torch.full({ 3, #env.action_low }, 0 / 0))
assert(not ok and message:find("got the action", 1, true), message)
