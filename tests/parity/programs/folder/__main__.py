"""Run as ``python folder``."""

import sys

import torch
from part import loss

print(__name__, __package__ == "", __spec__.name, __file__.rpartition("/")[2], sys.argv[1:], sys.path[0].rpartition("/")[2])
w = torch.ones(3, requires_grad=True)
loss(w).backward()
print(w.grad)
loss(torch.ones(0))
