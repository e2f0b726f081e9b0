"""Symptom: a constant multiple.  The loss is scaled by hand for small gradients, and nothing divides by the scale."""

import torch
from measured import intended, ratio_and_cosine
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=1e-5)
SCALE = 1024.0
measured = []
for _ in range(40):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x[:, :3].sum(1, keepdim=True))
    wanted = intended(loss, parameters)
    (SCALE * loss).backward()
    measured.append(ratio_and_cosine(parameters, wanted))
    optimizer.step()
