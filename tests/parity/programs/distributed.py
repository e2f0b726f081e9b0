"""One process group of one rank: DDP, collective calls, join."""

import os
import tempfile

import torch
import torch.distributed as dist
from digest import show
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(20)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3), nn.Linear(3, 1))
    model[1] = nn.BatchNorm1d(3)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(3):
        with wrapped.no_sync() if step == 1 else torch.enable_grad():
            loss = wrapped(torch.randn(4, 3)).pow(2).mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())
    total = torch.ones(2)
    dist.all_reduce(total)
    print(total, dist.get_rank(), os.path.basename(__file__))
    dist.destroy_process_group()
show(model=model)
