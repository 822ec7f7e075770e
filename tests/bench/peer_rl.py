"""The peer of rl_steps.lua: gymnasium with a PPO loop like CleanRL's ppo.py. peer_rl.py THREADS

Answers each line that it reads, "KIND N", with the seconds of N environment steps: KIND is `sync`
or `vector` for random actions in 64 copies of CartPole, by SyncVectorEnv or by gymnasium's own
vectorized CartPole, and `ppo` for training in 4 copies with rollouts of 128 steps.
"""
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical

torch.set_num_threads(int(sys.argv[1]))
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


def play(mode, n_steps):
    """Steps of random actions."""
    envs = gym.make_vec('CartPole-v1', num_envs=64,
                        vectorization_mode='sync' if mode == 'sync' else 'vector_entry_point')
    envs.reset(seed=1)
    actions = np.random.default_rng(1).integers(0, 2, (64, 64))
    begin = time.perf_counter()
    for t in range(n_steps // 64):
        envs.step(actions[t % 64])
    return time.perf_counter() - begin


def layer(n_in, n_out, gain=2 ** 0.5):
    made = nn.Linear(n_in, n_out)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def mlp(n_out, gain):
    return nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, n_out, gain))


class Learner:
    def __init__(self, n_envs=4, n_steps=128):
        self.envs = gym.make_vec('CartPole-v1', num_envs=n_envs, vectorization_mode='sync')
        self.actor, self.critic = mlp(2, 0.01), mlp(1, 1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.adam = torch.optim.Adam(self.parameters, lr=2.5e-4, eps=1e-5)
        self.obs = torch.Tensor(self.envs.reset(seed=1)[0])
        self.done = torch.zeros(n_envs)
        self.n_envs, self.n_steps = n_envs, n_steps

    def rollout(self):
        shape = (self.n_steps, self.n_envs)
        obs, actions = torch.zeros(*shape, 4), torch.zeros(shape)
        log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
        for t in range(self.n_steps):
            obs[t], dones[t] = self.obs, self.done
            with torch.no_grad():
                policy = Categorical(logits=self.actor(self.obs))
                action = policy.sample()
                values[t], log_probs[t] = self.critic(self.obs).flatten(), policy.log_prob(action)
            actions[t] = action
            found, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            rewards[t] = torch.tensor(reward)
            self.obs, self.done = torch.Tensor(found), torch.Tensor(terminated | truncated)
        with torch.no_grad():
            next_value, last, advantages = self.critic(self.obs).flatten(), 0, torch.zeros(shape)
            for t in reversed(range(self.n_steps)):
                is_last = t == self.n_steps - 1
                alive = 1 - (self.done if is_last else dones[t + 1])
                after = next_value if is_last else values[t + 1]
                last = rewards[t] + GAMMA * after * alive - values[t] + GAMMA * LAMBDA * alive * last
                advantages[t] = last
        return [x.reshape(-1, *x.shape[2:])
                for x in (obs, actions, log_probs, values, advantages, advantages + values)]

    def learn(self):
        obs, actions, log_probs, values, advantages, returns = self.rollout()
        size = len(obs) // 4
        for _ in range(4):
            order = torch.randperm(len(obs))
            for first in range(0, len(obs), size):
                rows = order[first:first + size]
                policy = Categorical(logits=self.actor(obs[rows]))
                ratio = (policy.log_prob(actions[rows]) - log_probs[rows]).exp()
                scaled = advantages[rows]
                scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-8)
                policy_loss = torch.max(-scaled * ratio,
                                        -scaled * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                new = self.critic(obs[rows]).flatten()
                near = values[rows] + (new - values[rows]).clamp(-CLIP, CLIP)
                value_loss = 0.5 * torch.max((new - returns[rows]) ** 2,
                                             (near - returns[rows]) ** 2).mean()
                loss = policy_loss - 0.01 * policy.entropy().mean() + 0.5 * value_loss
                self.adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, 0.5)
                self.adam.step()


learner = Learner()
for line in sys.stdin:
    kind, count = line.split()
    if kind != 'ppo':
        print(play(kind, int(count)), flush=True)
        continue
    start = time.perf_counter()
    for _ in range(int(count) // 512):
        learner.learn()
    print(time.perf_counter() - start, flush=True)
