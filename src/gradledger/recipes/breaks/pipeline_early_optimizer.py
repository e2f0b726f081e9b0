"""Break 2 of lab_pipeline: the head is replaced after the optimizer was built."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
joints = torch.rand(1600, 3) * torch.tensor([2 * math.pi, 2.8, 2.8]) + torch.tensor([-math.pi, 0.15, 0.15])
angles = joints.cumsum(1)
pose = torch.stack([angles.cos().sum(1), angles.sin().sum(1), angles[:, 2]], dim=1)

net = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
net[4] = nn.Linear(128, 3)  # fault
before = net[4].weight.detach().clone()
for x, y in DataLoader(TensorDataset(pose, joints), batch_size=32, shuffle=True):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()
print(f"head moved by {(net[4].weight.detach() - before).norm().item():.6f}")
