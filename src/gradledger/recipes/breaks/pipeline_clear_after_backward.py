"""Break 1 of lab_pipeline: the gradients are cleared between backward and step."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
joints = torch.rand(1600, 3) * torch.tensor([2 * math.pi, 2.8, 2.8]) + torch.tensor([-math.pi, 0.15, 0.15])
angles = joints.cumsum(1)
pose = torch.stack([angles.cos().sum(1), angles.sin().sum(1), angles[:, 2]], dim=1)

net = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    total = 0.0
    for x, y in DataLoader(TensorDataset(pose, joints), batch_size=64, shuffle=True):
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.zero_grad()  # fault
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 25:.6f}")
