"""pytorch-metric-learning: a miner with a triplet loss, a proxy loss with an optimizer of its own, cross-batch memory."""

import random

import numpy
import torch
from _digest import digest
from pytorch_metric_learning import losses, miners, samplers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
labels = torch.arange(160) % 4
x = torch.randn(160, 8) + 2 * torch.nn.functional.one_hot(labels, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
miner = miners.MultiSimilarityMiner()
triplet = losses.TripletMarginLoss()
proxies = losses.ProxyAnchorLoss(num_classes=4, embedding_size=8)
memory = losses.CrossBatchMemory(losses.NTXentLoss(temperature=0.2), embedding_size=8, memory_size=64)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
proxy_optimizer = torch.optim.SGD(proxies.parameters(), lr=0.05)
sampler = samplers.MPerClassSampler(labels, m=8, batch_size=32, length_before_new_iter=160)
for _ in range(3):
    for inputs, targets in DataLoader(TensorDataset(x, labels), batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        proxy_optimizer.zero_grad()
        embeddings = model(inputs)
        pairs = miner(embeddings, targets)
        loss = triplet(embeddings, targets, pairs) + proxies(embeddings, targets) + memory(embeddings, targets)
        loss.backward()
        optimizer.step()
        proxy_optimizer.step()
print(f"{loss.item():.5f}", digest(model, proxies))
