-- mujoco_steps.lua HALF_CHEETAH OUT: steps of this environment, an example, for mujoco_peer.py.
-- MUJOCO_LIBRARY and MUJOCO_MODEL name files of MuJoCo and gymnasium.
local redco = require "redco"
local rl, torch = redco.rl, redco.torch
local example, out = unpack(arg)
local library, model = os.getenv "MUJOCO_LIBRARY", os.getenv "MUJOCO_MODEL"

local env = rl.environment(dofile(example), { n_envs = 3, seed = 1 })
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
