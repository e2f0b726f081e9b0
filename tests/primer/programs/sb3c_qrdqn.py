"""sb3-contrib QR-DQN on CartPole-v1: quantile regression against a target network."""

import torch
from _digest import digest
from sb3_contrib import QRDQN

torch.set_num_threads(1)
model = QRDQN(
    "MlpPolicy", "CartPole-v1", seed=4, device="cpu", learning_starts=60, target_update_interval=60, train_freq=4,
    policy_kwargs={"n_quantiles": 20, "net_arch": [32]},
)  # fmt: skip
model.learn(300)
print(model.num_timesteps, digest(model.policy))
