"""redco.rl.mujoco makes the steps of gymnasium's HalfCheetah-v5.

mujoco_peer.py REDCO_LUA
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import gymnasium
import mujoco
import numpy as np
from safetensors.numpy import load_file

[library] = pathlib.Path(mujoco.__file__).parent.glob("libmujoco.so.*")
model = pathlib.Path(gymnasium.__file__).parent / "envs/mujoco/assets/half_cheetah.xml"
here = pathlib.Path(__file__).resolve().parent
example = here.parents[1] / "examples/reinforcement_learning/half_cheetah.lua"

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], here / "mujoco_steps.lua", example, f"{folder}/steps.safetensors"],
                   check=True, cwd=folder,
                   env={**os.environ, "MUJOCO_LIBRARY": str(library), "MUJOCO_MODEL": str(model)})
    steps = load_file(f"{folder}/steps.safetensors")
env = gymnasium.make("HalfCheetah-v5").unwrapped
n = env.model.nq
worst = 0.0
for i, state in enumerate(steps["states"]):
    env.reset()
    env.set_state(state[1:1 + n], state[1 + n:1 + 2 * n])
    for t in range(30):
        observation, reward, *_ = env.step(steps[f"actions.{t}"][i])
        off = np.abs(observation - steps[f"observations.{t}"][i]).max()
        worst = max(worst, off, abs(reward - steps[f"rewards.{t}"][i]))
# The solver starts from another guess in the first step.
assert worst < 1e-3, worst
print(f"90 steps are those of gymnasium, with differences up to {worst:.1g}")
