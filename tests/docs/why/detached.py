"""Symptom: the loss stays flat; an encoder, its features, and a head."""

import torch
from measured import intended, ratio_and_cosine
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.head = nn.Linear(4, 1)

    def features(self, x):
        return self.encoder(x).detach()

    def forward(self, x):
        return self.head(self.features(x))


model = Model()
parameters = list(model.parameters())
optimizer = torch.optim.Adam(parameters, lr=1e-3)
measured = []
for _ in range(40):
    x = torch.randn(64, 16)
    loss = nn.functional.mse_loss(model(x), (x[:, :1] * x[:, 1:2]).sin())
    optimizer.zero_grad()
    wanted = intended(loss, parameters)
    loss.backward()
    measured.append(ratio_and_cosine(parameters, wanted))
    optimizer.step()
