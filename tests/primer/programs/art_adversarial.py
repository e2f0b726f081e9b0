"""Adversarial Robustness Toolbox: a classifier trained on PGD examples, then on FGSM ones mixed with clean ones."""

import random

import numpy
import torch
from _digest import digest
from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescent
from art.defences.trainer import AdversarialTrainer, AdversarialTrainerMadryPGD
from art.estimators.classification import PyTorchClassifier
from torch import nn

random.seed(21)
numpy.random.seed(21)
torch.manual_seed(21)
torch.set_num_threads(1)
x = numpy.random.rand(96, 1, 6, 6).astype("float32")
y = numpy.eye(2, dtype="float32")[(x[:, 0, :3].mean((1, 2)) > x[:, 0, 3:].mean((1, 2))).astype(int)]


def classifier() -> PyTorchClassifier:
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2))
    return PyTorchClassifier(
        model=net,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.Adam(net.parameters(), 1e-2),
        input_shape=(1, 6, 6),
        nb_classes=2,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )


madry = classifier()
AdversarialTrainerMadryPGD(madry, nb_epochs=2, batch_size=24, eps=0.1, eps_step=0.05, max_iter=3).fit(x, y)
mixed = classifier()
attack = FastGradientMethod(mixed, eps=0.1)
AdversarialTrainer(mixed, attack, ratio=0.5).fit(x, y, batch_size=24, nb_epochs=3)
broken = ProjectedGradientDescent(mixed, eps=0.1, eps_step=0.05, max_iter=3, verbose=False).generate(x[:24])
print(f"{(mixed.predict(broken).argmax(1) == y[:24].argmax(1)).mean():.4f}", digest(madry.model, mixed.model))
