"""An error deep inside a module, a loss and a mode-doubled function; nothing catches it."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.how = how

    def forward(self, x):
        x = self.inner(x)
        if self.how == "loss":
            return F.mse_loss(x, torch.zeros(3, 5))
        if self.how == "linear":
            return self.inner(torch.zeros(3, 5))
        if self.how == "pool":
            return F.max_pool2d(x, 9)
        if self.how == "operator":
            return 2 - x.reshape(7)
        return x.sum()


def train(how):
    model = nn.Sequential(Block(how))
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4))
    loss.backward()
    if how == "backward":
        loss.backward()
    if how == "closure":
        optimizer.step(lambda: F.cross_entropy(model[0].inner(torch.ones(2, 4)), torch.tensor([9, 9])))


print("started")
train(sys.argv[1])
