"""Break 4 of lab_pipeline: what standardises the poses is a plain attribute, which no checkpoint holds."""

import io
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
        self.mean = torch.zeros(3)
        self.layers = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(self, x):
        return self.layers(x - self.mean)


net = IKNet()
net.mean = pose.mean(0)  # fault
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    for x, y in DataLoader(TensorDataset(pose, joints), batch_size=64, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

file = io.BytesIO()
torch.save(net.state_dict(), file)
file.seek(0)
again = IKNet()
print(again.load_state_dict(torch.load(file)))
with torch.no_grad():
    errors = [nn.functional.mse_loss(one(pose), joints).item() for one in (net, again)]
print(f"error {errors[0]:.4f} before the checkpoint, {errors[1]:.4f} after it")
