"""zuko: a neural spline flow fitted by maximum likelihood, then a reverse KL fit of a second flow."""

import random

import numpy
import torch
import zuko
from _digest import digest
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
x = torch.randn(256, 2)
x[:, 1] += x[:, 0] ** 2
flow = zuko.flows.NSF(features=2, transforms=2, hidden_features=(16, 16), bins=4)
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
for _ in range(2):
    for (batch,) in DataLoader(TensorDataset(x), batch_size=64, shuffle=True):
        loss = -flow().log_prob(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
free = zuko.flows.MAF(features=2, transforms=2, hidden_features=(16,))
optimizer = torch.optim.Adam(free.parameters(), lr=1e-3)
target = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
for _ in range(8):
    samples, log_prob = free().rsample_and_log_prob((32,))
    loss = (log_prob - target.log_prob(samples)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}", digest(flow, free))
