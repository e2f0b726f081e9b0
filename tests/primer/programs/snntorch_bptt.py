"""snntorch: leaky spiking neurons with a surrogate gradient, backpropagation through time over a spike count loss."""

import random

import numpy
import snntorch as snn
import snntorch.functional as SF
import torch
from _digest import digest
from snntorch import spikegen, surrogate
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
x = torch.rand(128, 10)
y = (x[:, :5].sum(1) > x[:, 5:].sum(1)).long()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        gradient = surrogate.fast_sigmoid(slope=25)
        self.first = nn.Linear(10, 32)
        self.hidden = snn.Leaky(beta=0.9, spike_grad=gradient)
        self.second = nn.Linear(32, 2)
        self.out = snn.Leaky(beta=0.8, spike_grad=gradient, learn_beta=True)

    def forward(self, spikes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, out = self.hidden.init_leaky(), self.out.init_leaky()
        seen, potentials = [], []
        for now in spikes:
            spike, hidden = self.hidden(self.first(now), hidden)
            spike, out = self.out(self.second(spike), out)
            seen.append(spike)
            potentials.append(out)
        return torch.stack(seen), torch.stack(potentials)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.9, 0.999))
loss_fn = SF.ce_count_loss()
for _ in range(2):
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=True):
        net.train()
        spikes, _ = net(spikegen.rate(inputs, num_steps=8))
        loss = loss_fn(spikes, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        net.eval()
        SF.accuracy_rate(net(spikegen.rate(x[:32], num_steps=8))[0], y[:32])
print(f"{loss.item():.5f}", digest(net))
