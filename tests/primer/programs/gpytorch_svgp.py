"""gpytorch stochastic variational GP: mini-batches, natural gradients with one optimizer, Adam with another."""

import random

import gpytorch
import numpy
import torch
from _digest import digest
from torch.utils.data import DataLoader, TensorDataset

random.seed(2)
numpy.random.seed(2)
torch.manual_seed(2)
torch.set_num_threads(1)
x = torch.rand(160, 2)
y = torch.sin(6 * x[:, 0]) * x[:, 1] + 0.1 * torch.randn(160)


class Svgp(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: torch.Tensor) -> None:
        distribution = gpytorch.variational.NaturalVariationalDistribution(inducing.size(0))
        strategy = gpytorch.variational.VariationalStrategy(self, inducing, distribution, learn_inducing_locations=True)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


model = Svgp(x[:16].clone())
likelihood = gpytorch.likelihoods.GaussianLikelihood()
natural = gpytorch.optim.NGD(model.variational_parameters(), num_data=160, lr=0.1)
adam = torch.optim.Adam([{"params": model.hyperparameters()}, {"params": likelihood.parameters()}], lr=0.01)
mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=160)
model.train()
likelihood.train()
for _ in range(3):
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        natural.zero_grad()
        adam.zero_grad()
        loss = -mll(model(inputs), targets)
        loss.backward()
        natural.step()
        adam.step()
print(f"{loss.item():.5f}", digest(model, likelihood))
