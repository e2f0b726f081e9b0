"""pyro SVI: a variational autoencoder with modules registered by pyro.module, then an AutoNormal regression guide."""

import random

import numpy
import pyro
import pyro.distributions as dist
import torch
from _digest import digest
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from pyro.optim import Adam, ClippedAdam
from torch import nn

random.seed(1)
numpy.random.seed(1)
pyro.set_rng_seed(1)
torch.set_num_threads(1)


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 24), nn.Softplus(), nn.Linear(24, 6))
        self.decoder = nn.Sequential(nn.Linear(3, 24), nn.Softplus(), nn.Linear(24, 12))

    def model(self, x: torch.Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(x.new_zeros(len(x), 3), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z), validate_args=False).to_event(1), obs=x)

    def guide(self, x: torch.Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", len(x)):
            loc, log_scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


vae = Vae()
data = (torch.rand(96, 12) > 0.5).float()
svi = SVI(vae.model, vae.guide, Adam({"lr": 1e-3}), loss=Trace_ELBO())
for _ in range(3):
    for batch in torch.randperm(96).split(32):
        svi.step(data[batch])


class Regression(PyroModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 10.0).expand([1]).to_event(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("rows", len(x)):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


pyro.clear_param_store()
x = torch.randn(64, 3)
regression = Regression()
guide = AutoNormal(regression)
svi = SVI(regression, guide, ClippedAdam({"lr": 0.03, "lrd": 0.999}), loss=Trace_ELBO())
for _ in range(12):
    loss = svi.step(x, x[:, 0] - 2 * x[:, 1])
print(f"{loss:.4f}", digest(vae, guide))
