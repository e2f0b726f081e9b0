"""Under python -O: no asserts, no __debug__; and what the flag means for workers."""

import subprocess
import sys

import torch
from digest import show

assert "python" == "asserts are on", "asserts are on"
print(__debug__, sys.flags.optimize, __doc__)
w = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
(w * w).sum().backward()
optimizer.step()
print(subprocess.run([sys.executable, "-c", "print(__name__)"], capture_output=True, text=True).stdout)
show(w=w)
