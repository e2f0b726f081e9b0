"""Classes of __main__ in pickles, copies of modules and optimizers, checkpoints on disk."""

import copy
import io
import pickle
import sys
import tempfile
from dataclasses import dataclass

import torch
from digest import show
from torch import nn


@dataclass
class Config:
    width: int = 4


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.a, self.b = nn.Linear(3, config.width), nn.Linear(config.width, 1)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) * self.scale


def step(net, optimizer, x):
    optimizer.zero_grad(set_to_none=False)
    net(x).pow(2).mean().backward()
    optimizer.step()


torch.manual_seed(3)
net = Net(Config())
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
x = torch.randn(5, 3)
step(net, optimizer, x)

blob = pickle.dumps((Config(7), net))
print(len(blob), pickle.loads(blob)[0], sys.modules["__main__"].Net is Net)
clone, clone_optimizer = pickle.loads(pickle.dumps((net, optimizer)))
print("same object graph:", clone_optimizer.param_groups[0]["params"][0] is clone.a.weight)
step(clone, clone_optimizer, x)
deep, deep_optimizer = copy.deepcopy((net, optimizer))
step(deep, deep_optimizer, x)
target = copy.deepcopy(net).requires_grad_(False)
shallow = copy.copy(net)
print(vars(net).keys(), vars(net.a).keys(), vars(optimizer).keys() == vars(torch.optim.Adam(net.parameters())).keys())

with tempfile.TemporaryDirectory() as folder:
    path = folder + "/last.pt"
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, path)
    torch.save(net, folder + "/whole.pt")
    state = torch.load(path, weights_only=True)
    whole = torch.load(folder + "/whole.pt", weights_only=False)
buffer = io.BytesIO()
torch.save(net.state_dict(), buffer)
print("bytes of a checkpoint:", len(buffer.getvalue()))
other = Net(Config())
print(other.load_state_dict({"a.weight": state["net"]["a.weight"], "odd": torch.zeros(1)}, strict=False))
print(other.load_state_dict(state["net"]))
other_optimizer = torch.optim.Adam(other.parameters(), lr=0.5)
other_optimizer.load_state_dict(state["optimizer"])
step(other, other_optimizer, x)
try:
    other.load_state_dict({"a.weight": torch.zeros(9)})
except RuntimeError as error:
    print(error)
print(net, optimizer, sep="\n")
show(net=net, clone=clone, deep=deep, target=target, whole=whole, other=other, shallow=shallow, o=other_optimizer)
