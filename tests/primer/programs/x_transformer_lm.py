"""x-transformers: the autoregressive wrapper on byte sequences, the loop of the library's enwik8 example."""

import random

import numpy
import torch
from _digest import digest
from torch.utils.data import DataLoader, Dataset
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
text = torch.randint(0, 20, (2000,)).repeat(2)


class Pieces(Dataset):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        start = int(torch.randint(0, len(text) - 33, (1,)))
        return text[start : start + 33].long()


def cycle(loader: DataLoader):
    while True:
        yield from loader


model = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=20, max_seq_len=32, attn_layers=Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True)
    )
)
train = cycle(DataLoader(Pieces(), batch_size=4))
held_out = cycle(DataLoader(Pieces(), batch_size=4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(8):
    model.train()
    for _ in range(4):
        loss = model(next(train))
        (loss / 4).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    if i % 4 == 0:
        model.eval()
        with torch.no_grad():
            model(next(held_out))
model.eval()
sample = model.generate(text[:8][None], 8)
print(tuple(sample.shape), digest(model))
