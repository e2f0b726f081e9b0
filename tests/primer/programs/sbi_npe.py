"""sbi: neural posterior estimation with a flow, in two rounds with truncated proposals, then ratio estimation."""

import os
import random
import tempfile

import numpy
import torch
from _digest import digest
from sbi.inference import NPE, NRE
from sbi.utils import BoxUniform, RestrictedPrior, get_density_thresholder

random.seed(14)
numpy.random.seed(14)
torch.manual_seed(14)
torch.set_num_threads(1)
prior = BoxUniform(-2 * torch.ones(2), 2 * torch.ones(2))


def simulate(theta: torch.Tensor) -> torch.Tensor:
    return torch.stack([theta[:, 0] + theta[:, 1], theta[:, 0] * theta[:, 1]], 1) + 0.1 * torch.randn(len(theta), 2)


seen = torch.zeros(1, 2)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)  # for its logs
    flow = NPE(prior, density_estimator="maf", show_progress_bars=False)
    proposal = prior
    for _ in range(2):
        theta = proposal.sample((120,))
        flow.append_simulations(theta, simulate(theta))
        estimator = flow.train(training_batch_size=40, max_num_epochs=4, force_first_round_loss=True)
        posterior = flow.build_posterior(estimator).set_default_x(seen)
        proposal = RestrictedPrior(prior, get_density_thresholder(posterior, 1e-2, 500), sample_with="rejection")
    ratio = NRE(prior, classifier="mlp", show_progress_bars=False)
    theta = prior.sample((160,))
    classifier = ratio.append_simulations(theta, simulate(theta)).train(training_batch_size=40, max_num_epochs=4)
print(digest(estimator, classifier))
