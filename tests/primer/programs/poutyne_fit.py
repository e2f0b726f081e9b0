"""poutyne: Model.fit with validation, a scheduler callback and the best weights restored from a checkpoint."""

import random
import tempfile

import numpy as np
import torch
from _digest import digest
from poutyne import Model, ModelCheckpoint, StepLR
from torch import nn

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
x = np.random.randn(240, 6).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
network = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
model = Model(network, "adam", "cross_entropy", batch_metrics=["accuracy"])
with tempfile.TemporaryDirectory() as folder:
    checkpoint = ModelCheckpoint(f"{folder}/best.pt", monitor="val_loss", save_best_only=True, restore_best=True)
    history = model.fit(
        x[:192], y[:192], validation_data=(x[192:], y[192:]), epochs=5, batch_size=32, verbose=False,
        callbacks=[StepLR(step_size=2), checkpoint],
    )  # fmt: skip
print(f"{history[-1]['val_loss']:.5f}", digest(network))
