"""Symptom: gradients grow; a step with labels, and between two of them seven without labels, each a function."""

import torch
from measured import intended, ratio_and_cosine
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.02)
measured = []


def with_labels(x):
    optimizer.zero_grad()
    loss = (model(x) - x[:, :1]).pow(2).mean()
    wanted = intended(loss, parameters)
    loss.backward()
    measured.append(ratio_and_cosine(parameters, wanted))
    optimizer.step()


def without_labels(x):
    noisy = x + 0.05 * torch.randn_like(x)
    loss = (model(noisy) - model(x)).pow(2).mean()
    wanted = intended(loss, parameters)
    loss.backward()
    measured.append(ratio_and_cosine(parameters, wanted))
    optimizer.step()


for step in range(40):
    batch = torch.randn(32, 8)
    with_labels(batch) if step % 8 == 0 else without_labels(batch)
