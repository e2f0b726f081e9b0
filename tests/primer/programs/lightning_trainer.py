"""A Lightning Trainer: fit with validation, a scheduler and gradient clipping."""

import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(7, verbose=False)
torch.set_num_threads(1)


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)}


x = torch.randn(400, 8)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
model = Net()
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(
        model,
        DataLoader(TensorDataset(x[:320], y[:320]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(x[320:], y[320:]), batch_size=80),
    )
print(trainer.global_step, digest(model))
