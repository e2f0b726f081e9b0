"""The program's own modes and tensor subclasses: every call reaches them once and in order."""

import torch
import torch.nn.functional as F
from digest import show
from torch import nn
from torch.overrides import TorchFunctionMode, _len_torch_function_stack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class Names(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Double(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.relu else out


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


class Unit(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out


class Refusing:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented if func is torch.sub else ("handled", func.__name__)


torch.manual_seed(14)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
x = torch.randn(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Names() as names:
    F.mse_loss(model(x), torch.zeros(5, 1)).backward()
print(names.names)
with Double(), Names() as outer:
    a = torch.relu(torch.ones(2))
with Names() as inner, Double():
    b = torch.relu(torch.ones(2))
print(a, outer.names, b, inner.names)
with Ops() as ops:
    optimizer.zero_grad()
    F.mse_loss(model(x), torch.zeros(5, 1)).backward()
    optimizer.step()
print(ops.ops)
with FlopCounterMode(display=False) as flops:
    model(x).sum().backward()
print(flops.get_total_flops())
u = torch.ones(3).as_subclass(Unit)
print(type(u + 1), type(u.sum()), type(torch.stack([u, u])), (u * 2).tolist(), torch.mean(Refusing()), torch.add(Refusing(), 1))
for function in (torch.sub, torch.empty_like):
    try:
        print(function(Refusing(), 1))
    except TypeError as error:
        print(str(error).split(" at 0x")[0])
with torch._C.DisableTorchFunctionSubclass():
    print(type(u + 1))
try:
    with Names() as failing:
        F.mse_loss(torch.zeros(2, 3), torch.zeros(4, 5))
except RuntimeError as error:
    print(error, failing.names)
print(nn.Parameter(torch.ones(1)) + 1, isinstance(nn.Parameter(u), Unit), torch.overrides.is_tensor_like(Refusing()))
show(model=model, optimizer=optimizer, a=a, b=b)
