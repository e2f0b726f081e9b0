"""botorch: a GP fitted by scipy's L-BFGS-B, then an acquisition function maximised over its inputs, three rounds."""

import random
import warnings

import numpy
import torch
from _digest import digest
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

warnings.filterwarnings("ignore")
random.seed(3)
numpy.random.seed(3)
torch.manual_seed(3)
torch.set_num_threads(1)
bounds = torch.stack([torch.zeros(2), torch.ones(2)]).double()
x = torch.rand(8, 2, dtype=torch.double)


def objective(x: torch.Tensor) -> torch.Tensor:
    return -((x - 0.3) ** 2).sum(-1, keepdim=True)


y = objective(x)
for _ in range(2):
    gp = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    candidate, value = optimize_acqf(
        LogExpectedImprovement(gp, best_f=y.max()), bounds=bounds, q=1, num_restarts=2, raw_samples=8
    )
    x, y = torch.cat([x, candidate]), torch.cat([y, objective(candidate)])
print(f"{float(y.max()):.6f}", digest(gp))
