"""Nothing is kept alive and nothing is written on the program's objects: tensors, graphs and modules die when they did."""

import gc
import sys
import weakref

import torch
import torch.nn.functional as F
from digest import show
from torch import nn

gc.disable()
torch.manual_seed(16)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
alive = lambda *refs: [r() is not None for r in refs]


class Mark:
    pass


class Big(nn.Module):
    def forward(self, x):
        return x * 2


for step in range(3):
    optimizer.zero_grad()
    x = torch.randn(6, 4)
    h = model[0](x)
    loss = F.mse_loss(model[2](torch.relu(h)), torch.zeros(6, 1))
    refs = [weakref.ref(t) for t in (x, h, loss)]
    mark = loss.grad_fn.metadata["mark"] = Mark()
    refs.append(weakref.ref(mark))
    loss.backward()
    optimizer.step()
    print(step, alive(*refs))
    del x, h, loss, mark
    print(step, alive(*refs))

big = Big()
y = big(torch.ones(3, requires_grad=True))
refs = weakref.ref(big), weakref.ref(y)
print(sys.getrefcount(big), sys.getrefcount(y), sorted(vars(big)), sorted(vars(y)), y._version)
del big, y
print(alive(*refs))
grad = model[0].weight.grad
print(sys.getrefcount(grad), sys.getrefcount(model[0].weight), model[0].weight._version, grad._version)
g = weakref.ref(grad)
del grad
optimizer.zero_grad()
print(alive(g), model[0].weight._backward_hooks, model[0].weight._post_accumulate_grad_hooks)
o = weakref.ref(optimizer)
del optimizer
print(alive(o))
parameter = model[0].weight
parameter.data = parameter.data.clone()
parameter.grad = torch.ones_like(parameter)
parameter.grad = None
with torch.no_grad():
    parameter.set_(torch.ones(8, 4))
print(parameter._version, parameter.is_leaf, vars(parameter), sorted(k for k in vars(model[0]) if not k.startswith("_")))
m = weakref.ref(model)
state = model.state_dict()
del model, parameter
print(alive(m), gc.collect() >= 0, alive(m))
show(state=state)
