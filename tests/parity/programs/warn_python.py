"""Warnings raised by Python code of torch and of the program, under every filter action."""

import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn


class Old(nn.Module):
    def forward(self, x):
        warnings.warn("old layer", DeprecationWarning, stacklevel=int(x.sum()))
        return x


def helper(level):
    warnings.warn(f"helper {level}", UserWarning, stacklevel=level)


def mismatched():
    return F.mse_loss(torch.zeros(3, 1), torch.zeros(3))


def soft():
    return F.softmax(torch.zeros(3, 2)), F.log_softmax(torch.zeros(3, 2))


old = Old()
for _ in range(2):
    mismatched()
    nn.MSELoss()(torch.zeros(2, 1), torch.zeros(2))
    F.l1_loss(torch.zeros(3, 1), torch.zeros(3))
    F.smooth_l1_loss(torch.zeros(3, 1), torch.zeros(3))
    soft()
    F.kl_div(torch.zeros(2, 2), torch.zeros(2, 2))
    F.mse_loss(torch.zeros(1), torch.zeros(1), size_average=False)
    F.interpolate(torch.zeros(1, 1, 4), scale_factor=1.5, recompute_scale_factor=None)
    F.sigmoid(torch.zeros(1))
    for level in (1, 2, 3, 50):
        helper(level)
mismatched()

for action in ("always", "once", "module", "default", "ignore"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter(action)
        for _ in range(3):
            mismatched(); mismatched()
            for level in range(1, 7):
                old(torch.tensor(float(level)))
        for w in caught:
            print(action, w.category.__name__, str(w.message)[:60], w.filename.rpartition("/")[2], w.lineno, w.line)

warnings.filterwarnings("error", message="Using a target size", module="__main__")
try:
    mismatched()
except UserWarning as error:
    print("caught", error)
warnings.filterwarnings("ignore", module="torch.overrides")
try:
    mismatched()
except UserWarning as error:
    print("caught", error)
print(warnings.filters[:3], len(warnings.filters), type(warnings.filters).__name__)
warnings.simplefilter("error")
if "raise" in sys.argv:
    soft()
print(sorted(str(key) for key in __warningregistry__ if key != "version"))
