"""Stable-Baselines3 DQN on CartPole-v1."""

import torch
from _digest import digest
from stable_baselines3 import DQN

torch.set_num_threads(1)
model = DQN("MlpPolicy", "CartPole-v1", seed=3, device="cpu", learning_starts=200, target_update_interval=250, train_freq=4)
model.learn(1500)
print(model.num_timesteps, digest(model.policy))
