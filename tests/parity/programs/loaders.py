"""DataLoaders: in this process, in forked and in spawned workers; randomness in workers; an error in one."""

import random
import sys

import numpy as np
import torch
from digest import digest, show
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler, random_split


class Noisy(Dataset):
    def __init__(self, fail_at=-1):
        self.fail_at = fail_at

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == self.fail_at:
            nn.functional.mse_loss(torch.zeros(3, 4), torch.zeros(5, 6))
        return torch.full((3,), float(i)) + torch.rand(3), random.random(), np.random.rand()


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from range(0 if info is None else info.id, 6, 1 if info is None else info.num_workers)


def seed_worker(worker):
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(worker)


def main():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train, held_out = random_split(Noisy(), [10, 2])
    for workers, context in ((0, None), (2, "fork")) if sys.argv[1] == "fork" else ((1, "spawn"),):
        options = {"num_workers": workers, "multiprocessing_context": context, "worker_init_fn": seed_worker}
        options["persistent_workers"] = workers == 1
        loader = DataLoader(train, batch_size=4, shuffle=True, drop_last=True, **options)
        for _ in range(2):
            for x, a, b in loader:
                optimizer.zero_grad()
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
                print(workers, loss.item(), digest((x, a, b)))
        if context == "spawn":
            continue
        print(len(loader), len(held_out), list(DataLoader(Stream(), **options)))
        try:
            list(DataLoader(Noisy(fail_at=5), batch_size=2, **options))
        except RuntimeError as error:
            print(error)
    sampler = WeightedRandomSampler([1, 2, 3], 5, generator=torch.Generator().manual_seed(2))
    print(list(sampler), [x.sum().item() for x, *_ in DataLoader(Noisy(), sampler=list(sampler), batch_size=None)])
    show(model=model)


if __name__ == "__main__":
    main()
