"""Stable-Baselines3 A2C on CartPole-v1."""

import torch
from _digest import digest
from stable_baselines3 import A2C

torch.set_num_threads(1)
model = A2C("MlpPolicy", "CartPole-v1", seed=3, device="cpu", n_steps=16)
model.learn(1600)
print(model.num_timesteps, digest(model.policy))
