"""torchdiffeq: a neural ODE fitted to a spiral by the adjoint method, after the library's ode_demo."""

import random

import numpy
import torch
from _digest import digest
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
times = torch.linspace(0.0, 5.0, 60)
start = torch.tensor([[2.0, 0.0]])
matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])


class Truth(nn.Module):
    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y**3) @ matrix


with torch.no_grad():
    truth = odeint(Truth(), start, times, method="rk4")


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
        for module in self.net.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, mean=0, std=0.1)
                nn.init.constant_(module.bias, val=0)

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y**3)


field = Field()
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
for step in range(5):
    optimizer.zero_grad()
    begin = torch.from_numpy(numpy.random.choice(50, 6, replace=False))
    y0, span = truth[begin], times[:6]
    target = torch.stack([truth[begin + i] for i in range(6)])
    loss = (odeint_adjoint(field, y0, span, method="rk4") - target).abs().mean()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        with torch.no_grad():
            odeint(field, start, times[:10], method="rk4")
print(f"{loss.item():.5f}", digest(field))
