"""Reads standard input, trains on it, leaves with a text."""

import atexit
import os
import sys

import torch
from digest import show

atexit.register(lambda: print("at exit", "__file__" in globals(), sys.argv[1:], flush=True))
values = torch.tensor([float(word) for line in sys.stdin for word in line.split()])
w = torch.zeros(1, requires_grad=True)
for _ in range(5):
    loss = ((values * w - 1) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    w.grad = None
show(w=w, values=values)
how = sys.argv[1]
if how == "text":
    sys.exit("stopped: " + how)
if how == "number":
    sys.exit(259)
if how == "hard":
    sys.stdout.flush()
    os._exit(7)
if how == "nested":
    try:
        sys.exit(4)
    finally:
        print("finally")
