"""botorch: the same GP fitted by its stochastic torch optimizer (fit_gpytorch_mll_torch)."""

import random
import warnings

import numpy
import torch
from _digest import digest
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_torch
from gpytorch.mlls import ExactMarginalLogLikelihood

warnings.filterwarnings("ignore")
random.seed(4)
numpy.random.seed(4)
torch.manual_seed(4)
torch.set_num_threads(1)
x = torch.rand(12, 2, dtype=torch.double)
y = torch.sin(5 * x[:, :1]) + x[:, 1:]
gp = SingleTaskGP(x, y)
mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
result = fit_gpytorch_mll_torch(mll, step_limit=15)
print(result.step, f"{result.fval:.6f}", digest(gp))
