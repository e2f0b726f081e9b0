"""Break 9 of lab_pipeline, which is none: 10,000 pairs in batches of 64 leave a last one of 16."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
joints = torch.rand(10_000, 3) * torch.tensor([2 * math.pi, 2.8, 2.8]) + torch.tensor([-math.pi, 0.15, 0.15])
angles = joints.cumsum(1)
pose = torch.stack([angles.cos().sum(1), angles.sin().sum(1), angles[:, 2]], dim=1)

net = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
sizes = []
for x, y in DataLoader(TensorDataset(pose, joints), batch_size=64, shuffle=True):  # no fault
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()
    sizes.append(len(x))
weight = len(pose) / (sizes[-1] * len(sizes))
print(f"{len(sizes)} steps, the last on {sizes[-1]}: each of these weighs {weight:.2f} times the average pair")
