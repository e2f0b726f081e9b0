"""Random states, determinism switches, default dtype and device: what the program set is what it gets."""

import random

import numpy as np
import torch
from digest import digest, show
from torch import nn

torch.use_deterministic_algorithms(True, warn_only=False)
random.seed(5)
np.random.seed(5)
print(torch.manual_seed(5).initial_seed(), torch.initial_seed())
generator = torch.Generator().manual_seed(9)


def run(label):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(3):
        x = torch.randn(6, 4, generator=generator, dtype=torch.get_default_dtype())
        x = x + float(np.random.rand()) + random.random()
        optimizer.zero_grad()
        loss = model(x).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
    print(label, loss.item(), loss.dtype, loss.device)
    show(model=model, optimizer=optimizer, generator=generator.get_state())


run("plain")
torch.set_default_dtype(torch.float64)
run("double")
torch.set_default_dtype(torch.float32)
with torch.random.fork_rng():
    torch.manual_seed(77)
    print(digest(torch.rand(3)))
torch.set_default_device("cpu")
run("default device")
print(torch.empty(2).device, torch.get_default_device())
torch.set_default_device("meta")
ghost = nn.Linear(3, 3)
print(ghost.weight.device, ghost(torch.zeros(2, 3)).shape, torch.zeros(2).device)
torch.set_default_device(None)
with torch.device("meta"):
    print(nn.Linear(2, 2).weight)
with torch.device("cpu"):
    print(torch.ones(1) + 1)
index, source = torch.tensor([0, 1, 1]), torch.ones(3, requires_grad=True)
total = torch.zeros(2).index_add(0, index, source)
total.sum().backward()
print(total, source.grad, torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled())
with torch.autograd.set_grad_enabled(False), torch.inference_mode():
    print(torch.is_inference_mode_enabled(), torch.ones(1).is_inference())
torch.set_printoptions(precision=3)
print(torch.rand(2), torch.seed() > 0)
torch.manual_seed(0)
show(end=torch.rand(3))
