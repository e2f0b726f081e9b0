"""MONAI: GanTrainer, a generator and a discriminator with optimizers of their own, the latents drawn anew in between."""

import torch
from _digest import digest
from monai.data import CacheDataset, DataLoader
from monai.engines import GanTrainer
from monai.networks import normal_init
from monai.networks.nets import Discriminator, Generator
from monai.transforms import RandFlip
from monai.utils import CommonKeys, set_determinism

set_determinism(12)
torch.set_num_threads(1)
images = [{CommonKeys.IMAGE: torch.sigmoid(torch.randn(1, 16, 16).cumsum(-1))} for _ in range(24)]
loader = DataLoader(CacheDataset(images, lambda d: {k: RandFlip(0.5)(v) for k, v in d.items()}, progress=False), 8, shuffle=True)
judge = Discriminator(in_shape=(1, 16, 16), channels=(4, 8, 1), strides=(2, 2, 1), num_res_units=1, kernel_size=3)
maker = torch.nn.Sequential(
    Generator(latent_shape=8, start_shape=(4, 8, 8), channels=(4, 1), strides=(2, 1)), torch.nn.Sigmoid()
)
judge.apply(normal_init)
maker.apply(normal_init)
criterion = torch.nn.BCELoss()


def judged(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(made), 1)
    return 0.5 * (criterion(judge(real), ones) + criterion(judge(made.detach()), zeros))


def fooled(made: torch.Tensor) -> torch.Tensor:
    return criterion(judge(made), torch.ones(len(made), 1))


trainer = GanTrainer(
    device=torch.device("cpu"),
    max_epochs=3,
    train_data_loader=loader,
    g_network=maker,
    g_optimizer=torch.optim.Adam(maker.parameters(), 2e-3),
    g_loss_function=fooled,
    d_network=judge,
    d_optimizer=torch.optim.Adam(judge.parameters(), 1e-3),
    d_loss_function=judged,
    d_prepare_batch=lambda batch, device, non_blocking, **_: batch[CommonKeys.IMAGE],
    d_train_steps=2,
    latent_shape=8,
)
trainer.run()
print(digest(maker, judge))
