"""Break 7 of lab_pipeline: the data set draws its noise from a generator of its own, and each worker gets a copy."""

import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(42)
joints = torch.rand(640, 3) * torch.tensor([2 * math.pi, 2.8, 2.8]) + torch.tensor([-math.pi, 0.15, 0.15])
angles = joints.cumsum(1)
pose = torch.stack([angles.cos().sum(1), angles.sin().sum(1), angles[:, 2]], dim=1)


class Noisy(Dataset):
    def __init__(self, pose, joints):
        self.pose, self.joints = pose, joints
        self.rng = np.random.default_rng(7)

    def __len__(self):
        return len(self.pose)

    def __getitem__(self, at):
        noise = torch.from_numpy(0.05 * self.rng.standard_normal(3)).float()
        return self.pose[at] + noise, self.joints[at], noise


net = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
workers = {"num_workers": 2, "multiprocessing_context": "fork"}
loader = DataLoader(Noisy(pose, joints), batch_size=64, shuffle=True, **workers)  # fault
drawn = []
for epoch in range(2):
    for x, y, noise in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        drawn.append(noise)
drawn = torch.cat(drawn)
print(f"{len(drawn)} samples in two epochs, {len(drawn.unique(dim=0))} different draws of noise")
