"""torch.jit, torch.fx and torch.export see the same program."""

import warnings

import torch
import torch.nn.functional as F
from digest import show
from torch import fx, nn

warnings.filterwarnings("ignore", category=DeprecationWarning)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, y):
        h = torch.relu(self.layer(x))
        return F.mse_loss(h, y) + F.softmax(h, dim=-1).sum()


torch.manual_seed(18)
net = Net()
x, y = torch.randn(4, 3), torch.randn(4, 3)
scripted = torch.jit.script(net)
print(scripted.code)
loss = torch.jit.script(nn.MSELoss())
print(loss(torch.zeros(3, 1), torch.zeros(3, 1)))
traced = torch.jit.trace(net, (x, y))
print(traced.code)
graph = fx.symbolic_trace(net)
print(graph.code)


@torch.jit.script
def differentiate(x):
    y = (x * x).sum()
    return torch.autograd.grad([y], [x])


print(differentiate(torch.ones(2, requires_grad=True)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for module in (scripted, traced, graph, net):
    optimizer.zero_grad()
    module(x, y).backward()
    optimizer.step()
exported = torch.export.export(net, (x, y))
print([str(n.target) for n in exported.graph.nodes])
try:
    torch.jit.script(lambda x: x.undefined_thing())
except Exception as error:
    print(type(error).__name__)
show(net=net)
