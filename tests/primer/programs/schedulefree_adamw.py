"""schedulefree AdamW: the optimizer's own train and eval modes, evaluation and checkpoint between."""

import io
import random

import numpy
import schedulefree
import torch
import torch.nn.functional as F
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
x = torch.randn(256, 6)
y = x[:, :1] * x[:, 1:2]
model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 1))
optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=5e-3, warmup_steps=4)
train = DataLoader(TensorDataset(x[:192], y[:192]), batch_size=32, shuffle=True)
for _ in range(4):
    model.train()
    optimizer.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    with torch.no_grad():  # statistics of the averaged weights, as the library's README asks for
        optimizer.eval()
        for inputs, _ in train:
            model(inputs)
    model.eval()
    with torch.no_grad():
        F.mse_loss(model(x[192:]), y[192:])
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
print(f"{loss.item():.5f}", digest(model))
