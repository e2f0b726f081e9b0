"""gpytorch exact GP regression, the loop of the library's first tutorial: Adam, then LBFGS with a closure."""

import math
import random

import gpytorch
import numpy
import torch
from _digest import digest

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
train_x = torch.linspace(0, 1, 40)
train_y = torch.sin(train_x * (2 * math.pi)) + torch.randn(40) * 0.2


class ExactGP(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = ExactGP(train_x, train_y, likelihood)
model.train()
likelihood.train()
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for _ in range(15):
    optimizer.zero_grad()
    loss = -mll(model(train_x), train_y)
    loss.backward()
    optimizer.step()
lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)


def closure() -> torch.Tensor:
    lbfgs.zero_grad()
    loss = -mll(model(train_x), train_y)
    loss.backward()
    return loss


for _ in range(2):
    lbfgs.step(closure)
model.eval()
likelihood.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    spread = likelihood(model(torch.linspace(0, 1, 11))).variance
print(f"{float(spread.mean()):.6f}", digest(model))
