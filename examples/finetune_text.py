"""Fine-tune a small pretrained text encoder on sentiment: head first, then its top layer, gradients accumulated."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PAD, MASK = 0, 1
SUBJECTS = ["the film", "this album", "her novel", "the show", "that play", "his speech"]
GOOD = ["a delight", "warm and clever", "worth every minute", "a small triumph", "bright and moving"]
BAD = ["a chore", "cold and clumsy", "a waste of time", "a dull failure", "loud and empty"]
LINKS = ["was", "felt", "turned out to be", "seemed"]
WORDS = sorted({w for part in (SUBJECTS, GOOD, BAD, LINKS) for phrase in part for w in phrase.split()} | {"not", "but"})
VOCAB = {word: i + 2 for i, word in enumerate(WORDS)}
MAX_LEN, BATCH, ACCUMULATE = 16, 8, 4
PRETRAIN_EPOCHS, HEAD_EPOCHS, TOP_EPOCHS = 4, 2, 4


def sentence(rng):
    """One review and its label: the second clause decides."""
    label = rng.randrange(2)
    first, second = (rng.choice(BAD), rng.choice(GOOD)) if label else (rng.choice(GOOD), rng.choice(BAD))
    text = f"{rng.choice(SUBJECTS)} {rng.choice(LINKS)} {second}"
    if rng.random() < 0.5:
        text = f"{rng.choice(SUBJECTS)} {rng.choice(LINKS)} not {first} but {second}"
    ids = [VOCAB[word] for word in text.split()][:MAX_LEN]
    return ids + [PAD] * (MAX_LEN - len(ids)), label


def dataset(n, seed):
    rng = random.Random(seed)
    tokens, labels = zip(*(sentence(rng) for _ in range(n)), strict=True)
    return TensorDataset(torch.tensor(tokens), torch.tensor(labels))


class Encoder(nn.Module):
    def __init__(self, dim=48, heads=4, layers=2):
        super().__init__()
        self.embed = nn.Embedding(len(VOCAB) + 2, dim, padding_idx=PAD)
        nn.init.normal_(self.embed.weight, std=0.2)
        self.position = nn.Parameter(0.02 * torch.randn(MAX_LEN, dim))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.1, batch_first=True) for _ in range(layers)
        )

    def forward(self, tokens):
        padding = tokens == PAD
        hidden = self.embed(tokens) + self.position
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=padding)
        return hidden, padding


class Classifier(nn.Module):
    def __init__(self, encoder, n_classes=2):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.embed.embedding_dim, n_classes)

    def forward(self, tokens):
        hidden, padding = self.encoder(tokens)
        keep = (~padding).unsqueeze(-1)
        return self.head((hidden * keep).sum(dim=1) / keep.sum(dim=1))


def pretrain(encoder, data):
    """Masked-word prediction; the output layer is tied to the embedding."""
    encoder.train()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-3)
    for epoch in range(PRETRAIN_EPOCHS):
        total, steps = 0.0, 0
        for tokens, _ in DataLoader(data, batch_size=4 * BATCH, shuffle=True):
            hide = (torch.rand(tokens.shape) < 0.2) & (tokens != PAD)
            hidden, _ = encoder(tokens.masked_fill(hide, MASK))
            loss = F.cross_entropy(hidden[hide] @ encoder.embed.weight.T, tokens[hide])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        print(f"pretrain {epoch}  masked-word loss {total / steps:.3f}")


def train_epoch(model, loader, optimizer, scheduler=None):
    model.train()
    total = 0.0
    optimizer.zero_grad()
    for i, (tokens, labels) in enumerate(loader, start=1):
        loss = F.cross_entropy(model(tokens), labels)
        (loss / ACCUMULATE).backward()
        total += loss.item()
        if i % ACCUMULATE == 0:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    return total / len(loader)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = sum((model(tokens).argmax(dim=1) == labels).sum().item() for tokens, labels in loader)
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(5)
    encoder = Encoder()
    pretrain(encoder, dataset(768, seed=1))

    train_loader = DataLoader(dataset(256, seed=2), batch_size=BATCH, shuffle=True, drop_last=True)
    val_loader = DataLoader(dataset(128, seed=3), batch_size=64)
    model = Classifier(encoder)
    model.encoder.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
    for epoch in range(HEAD_EPOCHS):
        loss = train_epoch(model, train_loader, optimizer)
        print(f"head {epoch}  loss {loss:.3f}  accuracy {accuracy(model, val_loader):.3f}")

    top = model.encoder.layers[-1].requires_grad_(True)
    optimizer.add_param_group({"params": top.parameters(), "lr": 2e-3})
    steps, warmup = TOP_EPOCHS * len(train_loader) // ACCUMULATE, 4
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: (s + 1) / warmup if s < warmup else 0.5 + 0.5 * math.cos(math.pi * (s - warmup) / (steps - warmup)),
    )
    for epoch in range(TOP_EPOCHS):
        loss = train_epoch(model, train_loader, optimizer, scheduler)
        print(f"top {epoch}  loss {loss:.3f}  accuracy {accuracy(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
