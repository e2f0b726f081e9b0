"""Stable-Baselines3 PPO on CartPole-v1."""

import torch
from _digest import digest
from stable_baselines3 import PPO

torch.set_num_threads(1)
model = PPO("MlpPolicy", "CartPole-v1", seed=3, device="cpu", n_steps=256, batch_size=64, n_epochs=4)
model.learn(1024)
print(model.num_timesteps, digest(model.policy))
