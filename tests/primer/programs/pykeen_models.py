"""pykeen: TransE with a margin loss and negative sampling, then ComplEx under the LCWA with early stopping."""

import random

import numpy
import torch
from _digest import digest
from pykeen.pipeline import pipeline
from pykeen.triples import TriplesFactory

random.seed(15)
numpy.random.seed(15)
torch.manual_seed(15)
torch.set_num_threads(1)
triples = numpy.array([[f"e{i % 20}", f"r{(i * 7) % 3}", f"e{(i * i + i % 3) % 20}"] for i in range(240)])
training, validation, testing = TriplesFactory.from_labeled_triples(triples).split([0.8, 0.1, 0.1], random_state=1)
common = dict(training=training, validation=validation, testing=testing, device="cpu", random_seed=1, use_tqdm=False)
common |= dict(evaluation_kwargs=dict(use_tqdm=False))
margin = pipeline(
    model="TransE",
    model_kwargs=dict(embedding_dim=12),
    loss="marginranking",
    training_loop="sLCWA",
    negative_sampler="bernoulli",
    training_kwargs=dict(num_epochs=4, batch_size=32, use_tqdm=False),
    **common,
)
complete = pipeline(
    model="ComplEx",
    model_kwargs=dict(embedding_dim=8),
    loss="bcewithlogits",
    training_loop="LCWA",
    lr_scheduler="ExponentialLR",
    lr_scheduler_kwargs=dict(gamma=0.95),
    stopper="early",
    stopper_kwargs=dict(frequency=1, patience=2, relative_delta=0.01, evaluation_batch_size=16),
    training_kwargs=dict(num_epochs=4, batch_size=32, label_smoothing=0.1, use_tqdm=False),
    **common,
)
print(f"{margin.losses[-1]:.5f} {complete.losses[-1]:.5f}", digest(margin.model, complete.model))
