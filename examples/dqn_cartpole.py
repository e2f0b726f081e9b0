"""DQN on CartPole-v1: replay, a target network, several updates after each burst of play.

Two faults are planted in this program. It runs to its end and raises nothing; `gradledger audit` names both.
"""

import random
from collections import deque
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    seed: int = 1
    total_env_steps: int = 2000
    warmup: int = 200
    play_steps: int = 4
    updates_per_burst: int = 4
    batch_size: int = 64
    gamma: float = 0.95
    lr: float = 2e-3
    sync_every: int = 20
    epsilon_end: float = 0.05
    epsilon_decay_steps: int = 1000


class QNetwork(nn.Module):
    def __init__(self, obs_dim, n_actions, hidden=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(obs_dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_actions),
        )

    def forward(self, obs):
        return self.net(obs)


class Replay:
    def __init__(self, capacity):
        self.rows = deque(maxlen=capacity)

    def add(self, obs, action, reward, next_obs, terminated):
        self.rows.append((obs, action, reward, next_obs, terminated))

    def sample(self, n):
        obs, action, reward, next_obs, terminated = zip(*random.sample(self.rows, n), strict=True)
        return (
            torch.from_numpy(np.stack(obs)),
            torch.tensor(action),
            torch.tensor(reward, dtype=torch.float32),
            torch.from_numpy(np.stack(next_obs)),
            torch.tensor(terminated, dtype=torch.float32),
        )


class Agent:
    def __init__(self, obs_dim, n_actions, cfg):
        self.cfg = cfg
        self.n_actions = n_actions
        self.online = QNetwork(obs_dim, n_actions)
        self.target = QNetwork(obs_dim, n_actions).requires_grad_(False)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=cfg.lr)
        self.updates = 0

    @torch.no_grad()
    def act(self, obs, epsilon):
        if random.random() < epsilon:
            return random.randrange(self.n_actions)
        return int(self.online(torch.from_numpy(obs).unsqueeze(0)).argmax(dim=1))

    def loss(self, obs, action, reward, next_obs, terminated):
        q = self.online(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            bootstrap = self.target(next_obs).max(dim=1).values
            td_target = reward + self.cfg.gamma * (1.0 - terminated) * bootstrap
        return F.smooth_l1_loss(q, td_target)

    def sync_target(self):
        for shadow, param in zip(self.target.parameters(), self.online.parameters(), strict=True):
            shadow.data = param.data

    def learn(self, replay):
        losses = []
        self.optimizer.zero_grad()
        for _ in range(self.cfg.updates_per_burst):
            loss = self.loss(*replay.sample(self.cfg.batch_size))
            loss.backward()
            nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
            self.optimizer.step()
            self.updates += 1
            if self.updates % self.cfg.sync_every == 0:
                self.sync_target()
            losses.append(loss.item())
        return sum(losses) / len(losses)


def main():
    cfg = Config()
    random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    env = gym.make("CartPole-v1")
    agent = Agent(env.observation_space.shape[0], int(env.action_space.n), cfg)
    replay = Replay(10_000)
    returns, losses, episode_return = deque(maxlen=20), deque(maxlen=100), 0.0

    obs, _ = env.reset(seed=cfg.seed)
    for t in range(1, cfg.total_env_steps + 1):
        epsilon = max(cfg.epsilon_end, 1.0 - t / cfg.epsilon_decay_steps)
        action = agent.act(obs, epsilon)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs, action, reward, next_obs, terminated)
        episode_return += reward
        obs = next_obs
        if terminated or truncated:
            returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()
        if t > cfg.warmup and t % cfg.play_steps == 0:
            losses.append(agent.learn(replay))
        if t % 500 == 0:
            print(f"env step {t:5d}  return {np.mean(returns):6.1f}  loss {np.mean(losses):.4f}  epsilon {epsilon:.2f}")


if __name__ == "__main__":
    main()
