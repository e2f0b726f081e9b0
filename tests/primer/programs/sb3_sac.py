"""Stable-Baselines3 SAC on Pendulum-v1."""

import torch
from _digest import digest
from stable_baselines3 import SAC

torch.set_num_threads(1)
model = SAC("MlpPolicy", "Pendulum-v1", seed=3, device="cpu", learning_starts=64, batch_size=32)
model.learn(130)
print(model.num_timesteps, digest(model.policy))
