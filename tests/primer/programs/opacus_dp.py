"""opacus: DP-SGD with per-sample gradients, Poisson sampling and virtual steps (BatchMemoryManager)."""

import random
import warnings

import numpy
import torch
import torch.nn.functional as F
from _digest import digest
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
x = torch.randn(160, 8)
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=32)
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for _ in range(3):
    model.train()
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=16, optimizer=optimizer) as parts:
        for inputs, targets in parts:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
print(f"{engine.get_epsilon(1e-3):.4f}", digest(model._module))
