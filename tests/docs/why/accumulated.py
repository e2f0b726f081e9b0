"""Symptom: a batch of 128 is too large, so four of 32 are accumulated; it diverges where 128 did not."""

import torch
from measured import intended, ratio_and_cosine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x[:, :3].sum(1, keepdim=True) + 0.1 * torch.randn(256, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.02)
ACCUMULATE = 4
measured = []


def train_epoch():
    optimizer.zero_grad()
    wanted = [torch.zeros_like(p) for p in parameters]
    for i, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets)
        for total, part in zip(wanted, intended(loss, parameters), strict=True):
            total += part / ACCUMULATE
        loss.backward()
        if (i + 1) % ACCUMULATE == 0:
            measured.append(ratio_and_cosine(parameters, wanted))
            optimizer.step()
            optimizer.zero_grad()
            wanted = [torch.zeros_like(p) for p in parameters]


for _ in range(4):
    train_epoch()
