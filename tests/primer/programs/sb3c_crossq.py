"""sb3-contrib CrossQ on Pendulum-v1: no target network, batch renormalisation, one joint forward of both batches."""

import torch
from _digest import digest
from sb3_contrib import CrossQ

torch.set_num_threads(1)
model = CrossQ(
    "MlpPolicy", "Pendulum-v1", seed=4, device="cpu", learning_starts=64, batch_size=32,
    policy_kwargs={"net_arch": {"pi": [32], "qf": [64]}},
)  # fmt: skip
model.learn(110)
print(model.num_timesteps, digest(model.policy))
