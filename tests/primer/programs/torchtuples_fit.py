"""torchtuples: Model.fit with validation, a learning-rate finder before it (which restores the weights), early stopping."""

import random

import numpy as np
import torch
import torchtuples as tt
from _digest import digest

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
x = np.random.randn(256, 5).astype("float32")
y = (x[:, :1] * x[:, 1:2]).astype("float32")
net = tt.practical.MLPVanilla(5, [16, 16], 1, batch_norm=True, dropout=0.1)
model = tt.Model(net, torch.nn.MSELoss(), tt.optim.Adam)
finder = model.lr_finder(x[:192], y[:192], batch_size=64)
model.optimizer.set_lr(0.01)
model.fit(
    x[:192], y[:192], batch_size=64, epochs=5, verbose=False, val_data=(x[192:], y[192:]),
    callbacks=[tt.callbacks.EarlyStopping(patience=3)],
)  # fmt: skip
print(digest(model.net))
