"""torch.compile: the graphs that a backend is given, graph breaks, recompiles, numbers and weights."""

import sys
import warnings

import torch
import torch.nn.functional as F
from digest import show
from torch import nn

backend_name = sys.argv[1]


def graphs(gm, inputs):
    print("graph:", [node.op + " " + str(node.target).split(" at 0x")[0] for node in gm.graph.nodes])
    return gm.forward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 8), nn.Linear(8, 1), nn.LayerNorm(8)

    def forward(self, x):
        x = torch.relu(self.norm(self.a(x)))
        return self.b(x)


def loss_of(model, x, y):
    return F.mse_loss(model(x), y) + 0.01 * sum(p.pow(2).sum() for p in model.parameters())


torch.manual_seed(0)
model = Net()
backend = graphs if backend_name == "graphs" else backend_name
compiled = torch.compile(model, backend=backend)
step_loss = torch.compile(loss_of, backend=backend)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    x = torch.randn(6 if step < 3 else 5, 4)
    y = torch.randn(x.shape[0], 1)
    optimizer.zero_grad()
    loss = F.mse_loss(compiled(x), y) if step % 2 else step_loss(model, x, y)
    loss.backward()
    optimizer.step()
    print(step, loss.item())


@torch.compile(backend=backend)
def breaks(x):
    y = x * 2
    print("side effect", y.shape)
    return F.mse_loss(y, torch.zeros(3, 1))


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(breaks(torch.ones(3)))
    print([(str(w.message)[:40], w.lineno) for w in caught if "target size" in str(w.message)])
full = torch.compile(lambda x: torch.sin(x) + F.softmax(x, dim=0), backend=backend, fullgraph=True)
print(full(torch.arange(3.0)))


@torch.compile(backend=backend)
def bad(x):
    return F.mse_loss(x, torch.zeros(7, 7))


try:
    bad(torch.zeros(2, 5))
except Exception as error:
    print(type(error).__name__)
with torch.no_grad():
    print(compiled(torch.ones(1, 4)))
print(torch._dynamo.utils.counters["stats"], dict(torch._dynamo.utils.counters["frames"]))
show(model=model, optimizer=optimizer)
