"""A Lightning module with manual optimization: a GAN with two optimizers, toggled in turn."""

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
L.seed_everything(8, verbose=False)
torch.set_num_threads(1)


class Gan(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))
        self.critic = nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        (real,) = batch
        generator_optimizer, critic_optimizer = self.optimizers()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        self.toggle_optimizer(generator_optimizer)
        loss = F.binary_cross_entropy_with_logits(self.critic(self.generator(torch.randn(len(real), 4))), ones)
        generator_optimizer.zero_grad()
        self.manual_backward(loss)
        generator_optimizer.step()
        self.untoggle_optimizer(generator_optimizer)

        self.toggle_optimizer(critic_optimizer)
        fake = self.generator(torch.randn(len(real), 4)).detach()
        loss = F.binary_cross_entropy_with_logits(self.critic(real), ones)
        loss = (loss + F.binary_cross_entropy_with_logits(self.critic(fake), zeros)) / 2
        critic_optimizer.zero_grad()
        self.manual_backward(loss)
        critic_optimizer.step()
        self.untoggle_optimizer(critic_optimizer)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(self.generator.parameters(), 1e-3, betas=(0.5, 0.999)),
            torch.optim.Adam(self.critic.parameters(), 1e-3, betas=(0.5, 0.999)),
        ]


data = TensorDataset(torch.randn(160, 2) * 0.3 + 1)
model = Gan()
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, batch_size=32, shuffle=True))
print(trainer.global_step, digest(model))
