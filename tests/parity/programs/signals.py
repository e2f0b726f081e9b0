"""Signals in the middle of training: Ctrl-C, a handler of the program, a plain kill."""

import atexit
import signal
import sys

import torch
from digest import show
from torch import nn

how = sys.argv[1]
model = nn.Linear(2, 1)
nn.init.ones_(model.weight)
nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stop = False
atexit.register(lambda: print("at exit", flush=True))


def handler(number, frame):
    global stop
    stop = True
    print("handled", number, frame.f_code.co_name, flush=True)


if how == "handler":
    signal.signal(signal.SIGTERM, handler)


def send(grad):
    if step == 2:
        signal.raise_signal(signal.SIGTERM if how in ("handler", "terminated") else signal.SIGINT)
    return grad


model.weight.register_hook(send)


def loop():
    global step
    for step in range(4):
        optimizer.zero_grad()
        model(torch.ones(3, 2)).pow(2).mean().backward()
        optimizer.step()
        print(step, model.weight.tolist(), flush=True)
        if stop:
            break


if how == "caught":
    try:
        loop()
    except KeyboardInterrupt:
        print("interrupted, saving")
else:
    try:
        loop()
    finally:
        print("cleaning up", flush=True)
show(model=model)
