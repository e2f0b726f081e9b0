"""vector-quantize-pytorch: an autoencoder with an EMA codebook that revives dead codes, and one with a learned codebook."""

import random

import numpy
import torch
import torch.nn.functional as F
from _digest import digest
from torch import nn
from vector_quantize_pytorch import ResidualVQ, VectorQuantize

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)


class Autoencoder(nn.Module):
    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.quantizer = quantizer
        self.decoder = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, _, commitment = self.quantizer(self.encoder(x))
        return self.decoder(codes), commitment.sum()


data = torch.randn(40, 8)[torch.randint(0, 40, (256,))]
models = [
    Autoencoder(VectorQuantize(dim=8, codebook_size=24, kmeans_init=True, threshold_ema_dead_code=1)),
    Autoencoder(VectorQuantize(dim=8, codebook_size=24, ema_update=False, learnable_codebook=True)),
    Autoencoder(ResidualVQ(dim=8, codebook_size=12, num_quantizers=2)),
]
for model in models:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(2):
        for rows in torch.randperm(256).split(64):
            x = data[rows].unsqueeze(1)
            optimizer.zero_grad()
            out, commitment = model(x)
            loss = F.l1_loss(out, x) + commitment
            loss.backward()
            optimizer.step()
print(f"{loss.item():.5f}", digest(*models))
