"""pytorch-metric-learning: MoCo, a key encoder that follows the query encoder, a queue of keys, one loss over both."""

import copy
import random

import numpy
import torch
from _digest import digest
from pytorch_metric_learning.losses import CrossBatchMemory, NTXentLoss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(19)
numpy.random.seed(19)
torch.manual_seed(19)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(192, 10))
query = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
key = copy.deepcopy(query)
optimizer = torch.optim.SGD(query.parameters(), lr=0.05, momentum=0.9)
loss_fn = CrossBatchMemory(loss=NTXentLoss(temperature=0.1), embedding_size=8, memory_size=128)


def copy_parameters(online: nn.Module, target: nn.Module, kept: float) -> None:
    with torch.no_grad():
        for new, old in zip(online.parameters(), target.parameters(), strict=True):
            old.mul_(kept).add_(new, alpha=1 - kept)
        for new, old in zip(online.buffers(), target.buffers(), strict=True):
            old.copy_(new)


iteration = 0
for _ in range(4):
    query.train()
    key.train()
    for (batch,) in DataLoader(data, batch_size=32, shuffle=True):
        first, second = (batch + 0.1 * torch.randn_like(batch) for _ in range(2))
        questions = query(first)
        with torch.no_grad():
            copy_parameters(query, key, 0.95)
            keys = key(second)
        labels = torch.arange(len(batch)) + iteration * len(batch)
        enqueue = torch.cat([torch.zeros(len(batch)), torch.ones(len(batch))]).bool()
        loss = loss_fn(torch.cat([questions, keys]), torch.cat([labels, labels]), enqueue_mask=enqueue)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        iteration += 1
print(f"{loss.item():.5f}", digest(query, key))
