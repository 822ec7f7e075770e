"""Writes tests/cases/environments/environments.json: make_environment_cases.py SOURCE TARGET

SOURCE is a file of episodes of gymnasium's environments, of which the first steps are kept. Added
are single steps from states all over the range, at walls, limits of speed and goals, by gymnasium
(1.4.0).
"""
import json
import sys

import gymnasium as gym
import numpy as np

KEPT_STEPS, N_SINGLE = 20, 24
pi = np.pi
# The range of each number of the state.
RANGES = {
    'CartPole-v1': [(-2.4, 2.4), (-3, 3), (-0.21, 0.21), (-3, 3)],
    'Acrobot-v1': [(-pi, pi), (-pi, pi), (-4 * pi, 4 * pi), (-9 * pi, 9 * pi)],
    'MountainCar-v0': [(-1.2, 0.6), (-0.07, 0.07)],
    'MountainCarContinuous-v0': [(-1.2, 0.6), (-0.07, 0.07)],
    'Pendulum-v1': [(-4 * pi, 4 * pi), (-8, 8)],
}


def rounded(values):
    return [float(f'{x:.9g}') for x in values]


def single_step(env, state, action):
    env.reset(seed=0)
    env.unwrapped.state = np.array(state)
    observation, reward, terminated, truncated, _ = env.step(action)
    return dict(action=action if isinstance(action, int) else rounded(action)[0],
                observation=rounded(observation), reward=float(f'{reward:.9g}'),
                terminated=bool(terminated), truncated=bool(truncated))


def main(source, target):
    cases = json.load(open(source))
    episodes = [dict(e, steps=[dict(s, observation=rounded(s['observation']))
                               for s in e['steps'][:KEPT_STEPS]]) for e in cases['episodes']]
    rng = np.random.default_rng(1)
    for name, ranges in RANGES.items():
        env = gym.make(name)
        for _ in range(N_SINGLE):
            low, high = np.array(ranges).T
            # A third of the numbers is at the end of its range.
            state = rng.uniform(low, high)
            at_end = rng.random(len(low)) < 1 / 3
            state = rounded(np.where(at_end, np.where(rng.random(len(low)) < 0.5, low, high), state))
            is_discrete = hasattr(env.action_space, 'n')
            action = int(rng.integers(env.action_space.n)) if is_discrete \
                else rng.uniform(-2.5, 2.5, 1).astype(np.float32)
            episodes.append(dict(env=name, start_state=state, steps=[single_step(env, state, action)],
                                 max_episode_steps=env.spec.max_episode_steps))
    del cases['note']
    cases['episodes'] = episodes
    json.dump(cases, open(target, 'w'), separators=(',', ':'))


main(*sys.argv[1:])
