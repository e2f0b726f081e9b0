"""Libraries that look at the stack: inspect.stack, logging's caller, warnings of the caller, class names from frames."""

import inspect
import logging
import sys
import traceback
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn

logging.basicConfig(format="%(filename)s:%(lineno)d %(funcName)s %(message)s", stream=sys.stdout)


class Peek(nn.Module):
    def forward(self, x):
        print([(f.function, f.lineno, (f.code_context or [""])[0].strip()) for f in inspect.stack()])
        print(sys._getframe().f_code.co_name, inspect.currentframe().f_code.co_name)
        logging.warning("peek")
        logging.warning("caller", stacklevel=1)
        print([(f.name, f.lineno) for f in traceback.extract_stack()])
        print([(f.name, f.lineno) for f in traceback.extract_stack(limit=2)])
        print([line for _, line in traceback.walk_stack(sys._getframe())])
        return F.relu(x)


Point = namedtuple("Point", "x y")
print(Point.__module__, Peek.__module__, Peek.__qualname__, inspect.getsource(Peek).count("\n"))
outer = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Peek()))
outer(torch.ones(1, 2)).sum().backward()
print(inspect.signature(torch.autograd.backward), inspect.signature(nn.Module.zero_grad), torch.autograd.backward.__name__)
print(inspect.signature(torch.optim.SGD.step), inspect.signature(torch.optim.Optimizer.zero_grad), inspect.getdoc(torch.save)[:30])
try:
    F.mse_loss(torch.zeros(2, 3), torch.zeros(4, 5))
except RuntimeError:
    print([(f.function, f.lineno) for f in inspect.trace()])
    print([(f.function, f.lineno) for f in inspect.getinnerframes(sys.exc_info()[2])])
