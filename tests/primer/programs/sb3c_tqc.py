"""sb3-contrib TQC on Pendulum-v1: truncated quantile critics, an entropy coefficient that is learned."""

import torch
from _digest import digest
from sb3_contrib import TQC

torch.set_num_threads(1)
model = TQC(
    "MlpPolicy", "Pendulum-v1", seed=4, device="cpu", learning_starts=64, batch_size=32, policy_kwargs={"net_arch": [32, 32]}
)  # fmt: skip
model.learn(110)
print(model.num_timesteps, digest(model.policy))
