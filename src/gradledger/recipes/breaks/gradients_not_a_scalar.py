"""Break 1 of lab_gradients: a loss of 48 elements."""

import torch
from torch import nn

torch.manual_seed(42)
policy = nn.Linear(6, 6)
observation, target = torch.randn(8, 6), torch.randn(8, 6)
loss = (policy(observation) - target).pow(2)
loss.backward()  # fault
