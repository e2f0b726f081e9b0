"""Threads that train, fail, exit, and outlive the main thread."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from digest import digest, show
from torch import nn

models = [nn.Linear(3, 2) for _ in range(3)]
for i, model in enumerate(models):
    nn.init.constant_(model.weight, 0.1 * i)
    nn.init.zeros_(model.bias)


def train(i):
    optimizer = torch.optim.Adam(models[i].parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(i)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(models[i](torch.randn(4, 3, generator=generator)), torch.tensor([0, 1, 0, 1])).backward()
        optimizer.step()
    return digest(models[i])


with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(train, range(2))))


def fail():
    F.mse_loss(torch.zeros(2, 3), torch.zeros(4, 5))


def leave():
    sys.exit("a thread may not end the program")


for target in (fail, leave):
    thread = threading.Thread(target=target, name=target.__name__)
    thread.start()
    thread.join()
threading.excepthook = lambda args: print("hook", args.exc_type.__name__, args.thread.name)
thread = threading.Thread(target=fail, name="with hook")
thread.start()
thread.join()
threading.excepthook = threading.__excepthook__


def late():
    threading.main_thread().join()
    time.sleep(0.2)
    print("late", train(2), threading.current_thread().name)
    show(models=[m.state_dict() for m in models])


threading.Thread(target=late, name="late").start()
print("main thread done", threading.main_thread().is_alive())
