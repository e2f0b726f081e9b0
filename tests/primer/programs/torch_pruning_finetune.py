"""torch-pruning: train, prune whole channels by importance in three rounds, fine-tune with a new optimizer after each."""

import random

import numpy
import torch
import torch_pruning
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(17)
numpy.random.seed(17)
torch.manual_seed(17)
torch.set_num_threads(1)
x = torch.randn(120, 1, 8, 8)
y = (x.mean((1, 2, 3)) > 0).long() + (x[:, 0, :4].mean((1, 2)) > 0).long()
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16),
    nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 3),
)  # fmt: skip
loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
example = torch.randn(1, 1, 8, 8)
pruner = torch_pruning.pruner.MagnitudePruner(
    model,
    example,
    importance=torch_pruning.importance.MagnitudeImportance(p=2),
    iterative_steps=3,
    pruning_ratio=0.5,
    ignored_layers=[model[-1]],
)


def tune(epochs: int, lr: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()


tune(2, 0.05)
for _ in range(3):
    pruner.step()
    tune(1, 0.02)
operations, parameters = torch_pruning.utils.count_ops_and_params(model, example)
print(int(parameters), digest(model))
