"""A two-layer MLP on random data: steps of well under a millisecond, the worst case for any watcher."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
rule = torch.randn(16, 4)
for _ in range(6000):
    x = torch.randn(32, 16)
    loss = F.mse_loss(model(x), x @ rule)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.6f}")
