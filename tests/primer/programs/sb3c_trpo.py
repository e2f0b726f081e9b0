"""sb3-contrib TRPO on CartPole-v1: conjugate gradients, a line search over the weights, a critic with its own optimizer."""

import torch
from _digest import digest
from sb3_contrib import TRPO

torch.set_num_threads(1)
model = TRPO("MlpPolicy", "CartPole-v1", seed=4, device="cpu", n_steps=64, batch_size=32, n_critic_updates=3)
model.learn(192)
print(model.num_timesteps, digest(model.policy))
