"""Break 8 of lab_pipeline: trajectories are padded to one length, and the loss counts the padding."""

import math

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(42)


def trajectory(steps):
    """A straight way from one set of joints to another; the poses along it."""
    span, low = torch.tensor([2 * math.pi, 2.8, 2.8]), torch.tensor([-math.pi, 0.15, 0.15])
    joints = torch.lerp(torch.rand(3) * span + low, torch.rand(3) * span + low, torch.linspace(0, 1, steps)[:, None])
    angles = joints.cumsum(1)
    return torch.stack([angles.cos().sum(1), angles.sin().sum(1), angles[:, 2]], dim=1), joints


def collate(items):
    poses, joints = zip(*items, strict=True)
    real = pad_sequence([torch.ones(len(one)) for one in poses], batch_first=True)
    return pad_sequence(poses, batch_first=True), pad_sequence(joints, batch_first=True), real


data = [trajectory(steps) for steps in torch.randint(4, 21, (160,)).tolist()]
net = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(4):
    shown, true = 0.0, 0.0
    for pose, joints, real in DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate):
        said = net(pose)
        loss = nn.functional.mse_loss(said, joints)  # fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown += loss.item()
        true += ((said - joints).detach().square().mean(2) * real).sum().item() / real.sum().item()
print(f"loss {shown / 10:.3f}, on the real steps {true / 10:.3f}: {shown / true:.2f} of it is shown")
