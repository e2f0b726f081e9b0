"""A Lightning Trainer with stochastic weight averaging, accumulation, early stopping and a restored best checkpoint."""

import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from _digest import digest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(9, verbose=False)
torch.set_num_threads(1)


class Regressor(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.SiLU(), nn.Linear(24, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = F.smooth_l1_loss(self.body(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        x, y = batch
        self.log("val_loss", F.smooth_l1_loss(self.body(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


x = torch.randn(320, 6)
y = x[:, :1] * x[:, 1:2]
model = Regressor()
with tempfile.TemporaryDirectory() as folder:
    best = ModelCheckpoint(folder, monitor="val_loss")
    trainer = L.Trainer(
        max_epochs=6, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=2, default_root_dir=folder,
        callbacks=[best, EarlyStopping("val_loss", patience=4), StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=3)],
    )  # fmt: skip
    trainer.fit(
        model,
        DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(x[256:], y[256:]), batch_size=64),
    )
    loaded = Regressor()
    loaded.load_state_dict(torch.load(best.best_model_path, weights_only=False)["state_dict"])
print(trainer.global_step, digest(model, loaded))
