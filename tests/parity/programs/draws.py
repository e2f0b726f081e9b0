"""Workers that draw from generators of all kinds, seeded and not; one that fails at its first item."""

import random
import sys
import traceback

import numpy as np
import torch
from digest import digest, show
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Drawn(Dataset):
    def __init__(self, fail=False):
        self.fail = fail
        self.mine, self.other = np.random.default_rng(3), random.Random(4)
        self.torch = torch.Generator().manual_seed(5) if sys.argv[1] == "fork" else None  # it cannot be sent
        self.old = np.random.RandomState(6)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if self.fail:
            raise KeyError(f"item {i}: {len(traceback.extract_stack())} frames")
        info = get_worker_info()
        noise = self.mine.random() + self.other.random() + self.old.rand() + torch.rand(2, generator=self.torch).sum()
        seeds = info.seed % 1000 if info is not None else 0
        return torch.full((3,), float(i)) + torch.rand(3) + noise, np.random.rand() + random.random(), seeds


def seed_alike(worker):
    np.random.seed(7)


def main():
    for module in (torch, np.random, random):
        (module.manual_seed if module is torch else module.seed)(1)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": sys.argv[1]}
    if sys.argv[1] == "fork":
        options["num_workers"] = 3
    for init in (None, seed_alike) if sys.argv[1] == "fork" else (seed_alike,):
        loader = DataLoader(Drawn(), shuffle=True, worker_init_fn=init, **options)
        for epoch in range(3 if init is None else 1):
            for x, a, seeds in loader:
                optimizer.zero_grad()
                loss = model(x.float()).mean()
                loss.backward()
                optimizer.step()
                print(epoch, loss.item(), digest((x, a)), seeds.tolist())
    if sys.argv[1] == "fork":
        try:
            list(DataLoader(Drawn(fail=True), **options))
        except KeyError as error:
            print(error)
    show(model=model)


if __name__ == "__main__":
    main()
