"""Symptom: fast in the first epoch; after it the training loss drops at once, and validation no longer improves."""

import torch
from measured import intended, ratio_and_cosine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = 3 * torch.randn(320, 16) + 1
y = (x[:, 0] > x[:, 1]).long()
train = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True)
val = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=64)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2))
parameters = list(model.parameters())
optimizer = torch.optim.Adam(parameters, lr=1e-2)
measured, mode, losses = [], [], []


def validate():
    model.eval()
    with torch.no_grad():
        return sum((model(inputs).argmax(1) == labels).sum().item() for inputs, labels in val) / 64


model.train()
for _ in range(3):
    total = 0.0
    for inputs, labels in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        wanted = intended(loss, parameters)
        loss.backward()
        measured.append(ratio_and_cosine(parameters, wanted))
        optimizer.step()
        mode.append(model.training)
        total += loss.item()
    losses.append(total / len(train))
    validate()
