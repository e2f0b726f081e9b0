"""higher: MAML, an inner loop of differentiable SGD steps on a functional copy, the outer loss summed over the tasks."""

import random

import higher
import numpy
import torch
from _digest import digest
from torch import nn

random.seed(16)
numpy.random.seed(16)
torch.manual_seed(16)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(1, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
meta = torch.optim.Adam(net.parameters(), lr=1e-3)


def task() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    height, phase = 1 + 4 * torch.rand(1), torch.pi * torch.rand(1)
    x = 10 * torch.rand(20, 1) - 5
    y = height * torch.sin(x + phase)
    return x[:10], y[:10], x[10:], y[10:]


for _ in range(12):
    net.train()
    inner = torch.optim.SGD(net.parameters(), lr=0.01)
    meta.zero_grad()
    for _ in range(4):
        support_x, support_y, query_x, query_y = task()
        with higher.innerloop_ctx(net, inner, copy_initial_weights=False) as (fast, differentiable):
            for _ in range(3):
                differentiable.step(nn.functional.mse_loss(fast(support_x), support_y))
            nn.functional.mse_loss(fast(query_x), query_y).backward()
    meta.step()
print(digest(net))
