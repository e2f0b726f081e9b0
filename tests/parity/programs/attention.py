"""Layers with fast paths of their own: TransformerEncoder, MultiheadAttention, LSTM and GRU with packing, embedding bags."""

import torch
import torch.nn.functional as F
from digest import show
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(6)
layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
encoder = nn.TransformerEncoder(layer, 2)
mha = nn.MultiheadAttention(8, 2, batch_first=True)
lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)
gru = nn.GRU(12, 5, batch_first=True)
bag = nn.EmbeddingBag(10, 8, mode="mean", sparse=True)
embed = nn.Embedding(10, 8, padding_idx=0, max_norm=1.0)
dense = [p for m in (encoder, mha, lstm, gru, embed) for p in m.parameters()]
optimizers = [torch.optim.AdamW(dense, lr=0.01), torch.optim.SparseAdam(bag.parameters())]
tokens = torch.randint(1, 10, (4, 7))
tokens[:, 5:] = 0
mask = tokens == 0
for _ in range(2):
    for optimizer in optimizers:
        optimizer.zero_grad()
    x = encoder(embed(tokens), src_key_padding_mask=mask)
    x, weights = mha(x, x, x, key_padding_mask=mask)
    packed = pack_padded_sequence(x, torch.tensor([7, 6, 5, 5]), batch_first=True)
    out, (h, c) = lstm(packed)
    out, _ = pad_packed_sequence(out, batch_first=True)
    out, state = gru(out)
    loss = out.pow(2).mean() + bag(tokens).pow(2).mean() + F.scaled_dot_product_attention(x, x, x, is_causal=True).mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    print(loss.item())
encoder.eval()
mha.eval()
with torch.no_grad():
    fast = encoder(embed(tokens), src_key_padding_mask=mask)
    causal = encoder(embed(tokens), mask=nn.Transformer.generate_square_subsequent_mask(7), is_causal=True)
    quick, _ = mha(fast, fast, fast, need_weights=False)
slow = encoder(embed(tokens))
print(fast.shape, slow.requires_grad, quick.sum().item())
conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(2))
image = torch.randn(2, 1, 8, 8)
F.cross_entropy(conv(image), torch.tensor([0, 1]), label_smoothing=0.1).backward()
parallel = nn.ModuleDict({"a": conv, "b": nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))})
parallel["b"](conv(image)).sum().backward()
print(conv)
show(encoder=encoder, mha=mha, lstm=lstm, gru=gru, bag=bag, embed=embed, fast=fast, causal=causal, conv=parallel)
