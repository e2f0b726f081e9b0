"""Loading in an order that is a function of (rng_seed, epoch), through torch's own DataLoader, resumable at any batch.

Neither order nor augmentation depends on the number of workers, and a position saved in the middle of an epoch goes on
bit for bit, with any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from gradledger.data import philox
from gradledger.data.errors import LoaderError
from gradledger.data.sampled import Randomness, Sampled, Ticket

FORMAT = "gradledger-loader/1"


class Loader:
    """Batches, epoch after epoch.

    >>> loader = Loader(list(range(6)), batch_size=4, rng_seed=0)
    >>> [len(batch) for batch in loader], loader.epoch
    ([4, 2], 1)

    Iterating gives what is left of the current epoch and then turns to the next one; breaking off and iterating again
    goes on with the next batch. `state_dict()` counts batches that were handed out, not those that workers hold ready.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        rng_seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        indices: Sequence[int] | NDArray[np.int64] | None = None,
        randomness: Randomness = "global",
        shard: tuple[int, int] = (0, 1),
        num_workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        timeout: float = 0.0,
    ) -> None:
        """Make a loader; no worker starts before the first iteration.

        Args:
            dataset: anything with `len` and `dataset[index]`; for `randomness="generator"` with `draw(index, rng)`.
            batch_size: B. drop_last: leave out a last batch of fewer.
            rng_seed: of the order and of every sample, 0 or above.
            shuffle: False reads in the order of `indices`.
            indices: the samples to use, such as `manifest.indices("train")`; all when None.
            randomness: where the data set takes random numbers from, see `sampled.Sampled`.
            shard: (rank, world): this process gets every world-th sample of the common order; a rest that does not
                divide is left out of the epoch, another one each time when shuffled.
            collate: list of samples to batch; torch's default when None, `collate.pad` for variable lengths.
            num_workers, persistent_workers, pin_memory, prefetch_factor, multiprocessing_context, timeout: as in
                torch's DataLoader; none of them changes a batch.

        Raises:
            LoaderError: an iterable data set, whose order is its own affair, or sizes that give no batch.
        """
        if isinstance(dataset, IterableDataset):
            raise LoaderError(
                got=f"the iterable data set {type(dataset).__name__}",
                wanted="one with len and dataset[index]",
                where="Loader",
                next_step="its order is its own affair and cannot be exact here: index it, or use torch's DataLoader "
                "and say in the report that order and resume are not exact",
            )
        chosen = np.arange(len(dataset)) if indices is None else np.asarray(indices, dtype=np.int64)
        rank, world = shard
        problems = []
        if batch_size < 1 or rng_seed < 0 or num_workers < 0:
            problems.append(f"batch_size={batch_size}, rng_seed={rng_seed}, num_workers={num_workers}")
        if not 0 <= rank < world:
            problems.append(f"shard={shard}")
        if randomness not in ("none", "global", "generator"):
            problems.append(f"randomness={randomness!r}")
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(dataset)):
            problems.append(f"indices {chosen.min()} to {chosen.max()} of {len(dataset)} samples")
        if not problems and self._batches(len(chosen) // world, batch_size, drop_last) == 0:
            problems.append(f"{len(chosen)} samples for batches of {batch_size}: no batch at all")
        if problems:
            raise LoaderError(
                got="; ".join(problems),
                wanted="at least one batch, a seed of at least 0, rank below world, indices into the data set",
                where="Loader",
                next_step="correct the arguments",
            )
        self._indices, self._shuffle, self._shard = chosen, shuffle, shard
        self._batch_size, self._drop_last, self._rng_seed = batch_size, drop_last, rng_seed
        self._epoch, self._position, self._turn = 0, 0, 0
        self._plan = _Plan(batch_size)
        self._digest = philox.digest(chosen)
        workers: dict[str, Any] = {}
        if num_workers:
            workers = dict(persistent_workers=persistent_workers, prefetch_factor=prefetch_factor)
            workers |= dict(multiprocessing_context=multiprocessing_context)
        self._loader: DataLoader[Any] = DataLoader(
            Sampled(dataset, rng_seed, randomness),
            batch_sampler=self._plan,
            num_workers=num_workers,
            collate_fn=collate,
            pin_memory=pin_memory,
            timeout=timeout,
            # A generator of its own: seeding workers must not draw from the program's stream.
            generator=torch.Generator().manual_seed(rng_seed % 2**63),
            **workers,
        )

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._batches(len(self._indices) // self._shard[1], self._batch_size, self._drop_last)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._where()[0]

    @property
    def remaining(self) -> int:
        """Batches left in that epoch."""
        return len(self) - self._where()[1]

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The samples of an epoch in order, (n,), as indices into the data set."""
        rank, world = self._shard
        count = len(self._indices)
        ranks = philox.permutation(count, self._rng_seed, epoch) if self._shuffle else np.arange(count)
        return np.asarray(self._indices[ranks[: count - count % world][rank::world]])

    def __iter__(self) -> Iterator[Any]:
        """What is left of the current epoch."""
        self._epoch, self._position = self._where()
        self._turn += 1
        turn = self._turn
        begin = self._position * self._batch_size
        self._plan.turn_to(self._epoch, self.order(self._epoch)[begin:], len(self) - self._position)
        for batch in self._loader:
            if turn != self._turn:
                raise LoaderError(
                    got="two iterations at once, or a position that was set during one",
                    wanted="one iteration at a time",
                    where="Loader",
                    next_step="make a second loader; both give the same batches",
                )
            self._position += 1
            yield batch
        if turn == self._turn:
            self._epoch, self._position = self._where()

    def restart(self, epoch: int | None = None) -> None:
        """Go to the start of `epoch`, of the current one when None."""
        self._epoch, self._position = self._where()[0] if epoch is None else epoch, 0
        self._turn += 1

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON: the batch after the last one that was handed out, and what the order depends on."""
        epoch, batch = self._where()
        return {"format": FORMAT, "epoch": epoch, "batch": batch, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a saved position. The number of workers may be another one.

        Raises:
            LoaderError: the position is of a loader with another order: another seed, batch size, shard or samples.
        """
        wanted = {"format": FORMAT, **self._identity()}
        differ = sorted(name for name in wanted if state.get(name) != wanted[name])
        epoch, batch = state.get("epoch"), state.get("batch")
        fits = isinstance(epoch, int) and isinstance(batch, int) and epoch >= 0 and 0 <= batch < max(len(self), 1)
        if differ or not fits:
            got = ", ".join(f"{name}={state.get(name)!r} (here {wanted[name]!r})" for name in differ)
            raise LoaderError(
                got=got or f"epoch {epoch!r}, batch {batch!r} of {len(self)}",
                wanted="a position of a loader with the same order",
                where="Loader.load_state_dict",
                next_step="make the loader with the arguments of the saved run; only the workers may differ",
            )
        assert isinstance(epoch, int)
        assert isinstance(batch, int)
        self._epoch, self._position = epoch, batch
        self._turn += 1

    def _identity(self) -> dict[str, Any]:
        return {
            "rng_seed": self._rng_seed,
            "batch_size": self._batch_size,
            "drop_last": self._drop_last,
            "shuffle": self._shuffle,
            "shard": list(self._shard),
            "samples": len(self._indices),
            "indices": self._digest,
        }

    def _where(self) -> tuple[int, int]:
        """(epoch, batch) of what comes next: after the last batch of an epoch that is the next epoch's first."""
        if self._position >= len(self):
            return self._epoch + 1, 0
        return self._epoch, self._position

    @staticmethod
    def _batches(count: int, size: int, drop_last: bool) -> int:
        return count // size if drop_last else -(-count // size)


class _Plan:
    """The batch sampler: what is to be fetched is set anew for every iteration, also for workers that persist."""

    def __init__(self, batch_size: int) -> None:
        self._size, self._epoch, self._batches = batch_size, 0, 0
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)

    def turn_to(self, epoch: int, order: NDArray[np.int64], batches: int) -> None:
        """Say what comes: the samples of so many batches of an epoch."""
        self._epoch, self._order, self._batches = epoch, order, batches

    def __iter__(self) -> Iterator[list[Ticket]]:
        epoch, order = self._epoch, self._order
        for at in range(self._batches):
            yield [(epoch, index) for index in order[at * self._size : (at + 1) * self._size].tolist()]

    def __len__(self) -> int:
        return self._batches
