"""sb3-contrib RecurrentPPO on CartPole-v1: an LSTM policy, padded sequences with a mask in the loss."""

import torch
from _digest import digest
from sb3_contrib import RecurrentPPO

torch.set_num_threads(1)
model = RecurrentPPO(
    "MlpLstmPolicy", "CartPole-v1", seed=4, device="cpu", n_steps=64, batch_size=32, n_epochs=3,
    policy_kwargs={"lstm_hidden_size": 16, "net_arch": [16]},
)  # fmt: skip
model.learn(128)
print(model.num_timesteps, digest(model.policy))
