"""skorch: a classifier and a regressor fitted with their default validation split."""

import random

import numpy as np
import torch
from _digest import digest
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

torch.manual_seed(11)
np.random.seed(11)
random.seed(11)
torch.set_num_threads(1)
generator = np.random.default_rng(11)
x = generator.standard_normal((400, 6)).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2)), criterion=nn.CrossEntropyLoss, max_epochs=4, lr=0.1,
    iterator_train__shuffle=True, verbose=0,
)  # fmt: skip
net.fit(x, y)
target = (x[:, :1] * x[:, 1:2]).astype(np.float32)
regressor = NeuralNetRegressor(
    nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1)), optimizer=torch.optim.Adam, max_epochs=4, lr=0.01, verbose=0
)
regressor.fit(x, target)
print(digest(net.module_, regressor.module_))
