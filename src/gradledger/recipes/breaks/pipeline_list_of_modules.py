"""Break 5 of lab_pipeline: the hidden layers are kept in a Python list, which registers nothing."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
joints = torch.rand(960, 3) * torch.tensor([2 * math.pi, 2.8, 2.8]) + torch.tensor([-math.pi, 0.15, 0.15])
angles = joints.cumsum(1)
pose = torch.stack([angles.cos().sum(1), angles.sin().sum(1), angles[:, 2]], dim=1)


class IKNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(3, 128), nn.Linear(128, 128)]  # fault
        self.head = nn.Linear(128, 3)

    def forward(self, x):
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.head(x)


net = IKNet()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
before = [layer.weight.detach().clone() for layer in net.hidden]
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(pose, joints), batch_size=64, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
moved = sum((layer.weight.detach() - old).norm().item() for layer, old in zip(net.hidden, before, strict=True))
print(f"parameters that the optimizer has: {len(list(net.parameters()))}; hidden layers moved by {moved:.6f}")
