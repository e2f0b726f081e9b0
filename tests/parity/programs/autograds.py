"""Custom functions, double backward, retained graphs, tensor hooks, checkpoints, anomaly mode."""

import sys
import traceback
import warnings

import torch
import torch.nn.functional as F
from digest import digest, show
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        print("forward", sys._getframe(1).f_code.co_name)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


torch.manual_seed(4)
x = torch.randn(3, requires_grad=True)
seen = []
x.register_hook(lambda g: seen.append(digest(g)))
y = Cube.apply(x)
y.retain_grad()
(g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
(g.pow(2).sum() + y.sum()).backward(retain_graph=True)
y.sum().backward()
print(seen, x.grad, y.grad, y.grad_fn.name(), y.grad_fn.next_functions[0][0].name())
x.register_post_accumulate_grad_hook(lambda p: print("accumulated", digest(p.grad)))
(x * 2).sum().backward(inputs=[x])
torch.autograd.backward([x.sum(), (x * x).sum()], [torch.ones(()), torch.full((), 2.0)])
print(torch.autograd.gradcheck(lambda t: t.sin(), torch.randn(2, dtype=torch.double, requires_grad=True)))

blocks = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.ReLU()) for _ in range(4)])
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
data = torch.randn(6, 4)
for how in ("plain", "reentrant", "non-reentrant", "sequential"):
    optimizer.zero_grad()
    z = data.clone().requires_grad_()
    if how == "sequential":
        z = checkpoint_sequential(blocks, 2, z, use_reentrant=False)
    else:
        for block in blocks:
            z = block(z) if how == "plain" else checkpoint(block, z, use_reentrant=how == "reentrant")
    z.pow(2).mean().backward()
    optimizer.step()
    print(how, digest(blocks))

with torch.autograd.graph.saved_tensors_hooks(lambda t: (print("pack", tuple(t.shape)), t)[1], lambda t: t):
    (torch.ones(2, requires_grad=True) * torch.ones(2)).exp().sum().backward()
with torch.autograd.graph.save_on_cpu():
    nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()


def broken(kind):
    a = torch.ones(3, requires_grad=True)
    b = a.exp()
    if kind == "in place":
        b.add_(1)
        b.sum().backward()
    elif kind == "twice":
        b.sum().backward()
        b.sum().backward()
    elif kind == "no graph":
        F.mse_loss(a.detach(), torch.zeros(3)).backward()
    elif kind == "not scalar":
        b.backward()
    elif kind == "leaf in place":
        a.mul_(2)
    elif kind == "unused":
        torch.autograd.grad(b.sum(), torch.ones(1, requires_grad=True))
    elif kind == "nan":
        with torch.autograd.detect_anomaly():
            F.mse_loss((a - 1).sqrt() * 0, a.detach()).backward()


for kind in ("in place", "twice", "no graph", "not scalar", "leaf in place", "unused", "nan"):
    try:
        broken(kind)
        print(kind, "passed")
    except RuntimeError:
        traceback.print_exc()
warnings.simplefilter("ignore")
show(x=x, blocks=blocks, optimizer=optimizer)
