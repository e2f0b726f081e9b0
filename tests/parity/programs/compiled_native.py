"""torch.compile with its default backend: kernels built by the compiler of the machine, forward and backward."""

import torch
import torch.nn.functional as F
from digest import show
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(3):
    optimizer.zero_grad()
    loss = F.mse_loss(compiled(torch.randn(6, 4)).tanh(), torch.ones(6, 1))
    loss.backward()
    optimizer.step()
    print(step, loss.item())
show(model=model, optimizer=optimizer)
