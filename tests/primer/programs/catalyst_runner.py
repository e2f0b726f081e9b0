"""catalyst: SupervisedRunner.train with metrics, a scheduler, accumulation, early stopping and the best weights."""

import random
import tempfile

import numpy
import torch
from _digest import digest
from catalyst import dl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(22)
numpy.random.seed(22)
torch.manual_seed(22)
torch.set_num_threads(1)
x = torch.randn(240, 8)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
loaders = {
    "train": DataLoader(TensorDataset(x[:192], y[:192]), batch_size=24, shuffle=True),
    "valid": DataLoader(TensorDataset(x[192:], y[192:]), batch_size=48),
}


class Engine(dl.CPUEngine):
    """Of one process; the library asks accelerate for a kind of machine that accelerate no longer names."""

    def mean_reduce_ddp_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        return metrics


model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
runner = dl.SupervisedRunner(input_key="features", output_key="logits", target_key="targets", loss_key="loss")
with tempfile.TemporaryDirectory() as folder:
    runner.train(
        engine=Engine(),
        model=model,
        criterion=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.MultiStepLR(optimizer, [2]),
        loaders=loaders,
        num_epochs=4,
        seed=22,
        logdir=folder,
        load_best_on_end=True,
        valid_loader="valid",
        valid_metric="loss",
        minimize_valid_metric=True,
        callbacks=[
            dl.AccuracyCallback(input_key="logits", target_key="targets", topk=(1,)),
            dl.OptimizerCallback(metric_key="loss", accumulation_steps=2),
            dl.EarlyStoppingCallback(patience=3, loader_key="valid", metric_key="loss", minimize=True),
        ],
    )
print(digest(model))
