"""Lengths of data sets are asked for only where the question has no effects."""

from __future__ import annotations

import torch
from harness import watching
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from gradledger.core.events import LoaderMade
from gradledger.ledger._plain_length import asks_plainly


class Reads(Dataset):
    def __init__(self) -> None:
        self.rows, self.window = torch.zeros(10, 2), 3

    def __len__(self) -> int:
        left = len(self.rows) - self.window
        return max(left, 0)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Loads(Reads):
    """Loads its next file when it is asked how long it is, and has none."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = 0

    def load(self) -> None:
        self.loads += 1

    def __len__(self) -> int:
        self.load()
        return len(self.rows)


class Counts(Reads):
    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return len(self.rows)


class Computes(Loads):
    @property
    def length(self) -> int:
        self.load()
        return len(self.rows)

    def __len__(self) -> int:
        return self.length


def test_only_questions_without_effects_are_plain() -> None:
    tensors = TensorDataset(torch.zeros(5, 1))
    for plain in ([1, 2], torch.zeros(3), tensors, Subset(Loads(), [0, 1]), ConcatDataset([tensors, tensors]), Reads()):
        assert asks_plainly(plain)
    for other in (Loads(), Counts(), Computes()):
        assert not asks_plainly(other)


def test_a_data_set_that_loads_when_asked_is_not_asked() -> None:
    with watching() as w:
        data = Loads()
        for _ in DataLoader(data, batch_size=5):
            pass
        known = Reads()
        for _ in DataLoader(known, batch_size=5):
            pass
    asked = Loads()
    for _ in DataLoader(asked, batch_size=5):
        pass
    assert data.loads == asked.loads
    assert [e.length for e in w.all(LoaderMade)] == [0, 2]
