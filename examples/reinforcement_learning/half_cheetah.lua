-- HalfCheetah-v5 of gymnasium, by MuJoCo: ddpg.lua --environment=half_cheetah.lua
local redco = require "redco"
local torch = redco.torch

return redco.rl.mujoco {
  name = "HalfCheetah-v5", frame_skip = 5,
  library = os.getenv "MUJOCO_LIBRARY" or "libmujoco.so",
  model = os.getenv "MUJOCO_MODEL" or "half_cheetah.xml",
  step = function(before, after, actions, seconds)
    local moved = after.positions:select(1, 0) - before.positions:select(1, 0)
    return moved / seconds - 0.1 * actions:square():sum(1)
  end,
  -- Without the position along the track.
  observe = function(state)
    local n = state.positions:size(1)
    return torch.cat({ state.positions:narrow(1, 1, n - 1), state.velocities }, 1)
  end,
}
