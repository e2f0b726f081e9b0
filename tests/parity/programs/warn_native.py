"""Warnings issued from C++, which name the running Python frame."""

import sys
import traceback
import warnings

import torch
from torch import nn


def resized():
    out = torch.zeros(2)
    torch.add(torch.ones(3), torch.ones(3), out=out)


def non_leaf():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.sum().backward()
    return y.grad


def mode_matters():
    torch.range(0, 3)
    return torch.ones(3).T


class Layer(nn.Module):
    def forward(self, x):
        out = torch.zeros(1)
        torch.mul(x, 2, out=out)
        return non_leaf()


layer = Layer()
for _ in range(3):
    resized()
    non_leaf()
    mode_matters()
    layer(torch.ones(4))
resized(), resized()

for action in ("always", "once", "module", "default", "ignore"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter(action)
        for _ in range(2):
            resized(); resized()
            layer(torch.ones(4))
            mode_matters()
        for w in caught:
            print(action, w.category.__name__, str(w.message)[:50], w.filename.rpartition("/")[2], w.lineno, w.line)

with warnings.catch_warnings():
    warnings.filterwarnings("error", message="An output with one or more", module="__main__")
    try:
        resized()
    except UserWarning:
        traceback.print_exc(file=sys.stdout)
    warnings.filterwarnings("ignore", module="gradledger.*")
    warnings.filterwarnings("ignore", category=DeprecationWarning, lineno=12)
    try:
        layer(torch.ones(4))
    except UserWarning:
        traceback.print_exc(file=sys.stdout)

shown = []
warnings.showwarning = lambda *args: shown.append(args)
warnings.simplefilter("always")
resized()
print([(str(m)[:20], c.__name__, f.rpartition("/")[2], line) for m, c, f, line, *_ in shown])
del warnings.showwarning
print(sorted(str(key)[:60] for key in __warningregistry__ if key != "version"))
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
scheduler.step()
optimizer.step()
scheduler.step(3)
nn.utils.clip_grad_norm_([], 1.0)
