"""Random numbers by address instead of by history: the same (rng_seed, epoch, index) gives the same numbers anywhere.

Philox is a counter-based generator (Salmon and others, 2011): its key is the seed, its counter the address, and no
state has to be carried from one sample to the next.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The third word of the counter keeps the streams apart: 2**64 draws of each before two could meet.
_ORDER, _SAMPLE = 1, 2


def bits(rng_seed: int, epoch: int, index: int) -> np.random.Philox:
    """The bit generator of one sample in one epoch."""
    return np.random.Philox(key=_key(rng_seed, epoch), counter=_counter(_SAMPLE, index))


def generator(rng_seed: int, epoch: int, index: int) -> np.random.Generator:
    """A numpy generator for one sample in one epoch."""
    return np.random.Generator(bits(rng_seed, epoch, index))


def words(rng_seed: int, addresses: list[tuple[int, int]]) -> list[list[int]]:
    """Four words of 64 bits for each (epoch, index): those that `bits(rng_seed, epoch, index).random_raw(4)` gives.

    One generator is moved from address to address, which costs a tenth of making one for each.
    """
    made: dict[int, tuple[np.random.Philox, Any]] = {}
    found: list[list[int]] = []
    for epoch, index in addresses:
        if epoch not in made:
            one = bits(rng_seed, epoch, 0)
            made[epoch] = (one, dict(one.state))
        source, state = made[epoch]
        state["state"]["counter"] = _counter(_SAMPLE, index)
        source.state = state
        found.append(source.random_raw(4).tolist())
    return found


def permutation(count: int, rng_seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of an epoch, (count,).

    The ranks of raw 64-bit words, so that the order rests on Philox alone and on no method of numpy's Generator, whose
    streams may change between versions.
    """
    words = np.random.Philox(key=_key(rng_seed, epoch), counter=_counter(_ORDER, 0)).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def _key(rng_seed: int, epoch: int) -> NDArray[np.uint64]:
    digest = hashlib.sha256(f"gradledger {rng_seed} {epoch}".encode()).digest()
    return np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)


def _counter(stream: int, index: int) -> NDArray[np.uint64]:
    return np.array([0, index, stream, 0], dtype=np.uint64)


def digest(values: NDArray[np.int64]) -> str:
    """SHA-256 of whole numbers in order."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<i8").tobytes()).hexdigest()
