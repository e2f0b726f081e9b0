"""Run as ``-m pack.train``: relative imports, its place on the path, spawned workers that find it again, an error."""

import multiprocessing as mp
import os
import pickle
import sys

import torch

from . import net as nets


class Here:
    pass


def child(queue):
    queue.put((__name__, Here.__module__, sys.argv[1:]))


if __name__ == "__main__":
    print(__name__, __package__, __spec__.name, __file__.rpartition("/")[2], os.path.basename(sys.argv[0]), sys.argv[1:])
    print(sys.path[0] == os.getcwd(), type(pickle.loads(pickle.dumps(Here()))) is Here, __loader__.name)
    torch.manual_seed(0)
    model = nets.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    queue = mp.get_context("spawn").Queue()
    process = mp.get_context("spawn").Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=250), model.layer.weight.tolist())
    process.join()
    model(torch.ones(3, 5))
