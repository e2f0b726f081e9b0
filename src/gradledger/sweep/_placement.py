"""Which blocks of a chain make which stage of a pipeline: found from measured costs, in one process for all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from gradledger.core.errors import SweepError
from gradledger.sweep._chain import Chain
from gradledger.sweep._cost import Costs
from gradledger.sweep._profile import Profiler
from gradledger.sweep._stage import wrong


@dataclass(frozen=True)
class Placement:
    """Which blocks make which stage.

    Attributes:
        stages: for each stage its first block and the one after its last; the loss belongs to the last stage.
        seconds: of each stage, one micro-batch forward and back.
        names: of the blocks.
    """

    stages: tuple[tuple[int, int], ...]
    seconds: tuple[float, ...]
    names: tuple[str, ...]

    @property
    def balance(self) -> float:
        """Mean stage time over largest, 1 when all are equal: what the slowest stage leaves of the others' time."""
        return sum(self.seconds) / len(self.seconds) / max(self.seconds) if max(self.seconds) else 1.0

    def __str__(self) -> str:
        lines = [f"{'stage':>5}  {'blocks':<24}{'ms':>9}"]
        for k, ((first, stop), seconds) in enumerate(zip(self.stages, self.seconds, strict=True)):
            what = self.names[first] if stop - first == 1 else f"{self.names[first]} .. {self.names[stop - 1]}"
            lines.append(f"{k:>5}  {what:<24}{seconds * 1e3:>9.3f}")
        return "\n".join([*lines, f"balance {self.balance:.2f}"])


def split(seconds: Sequence[float], stages: int, together: Sequence[tuple[int, int]] = ()) -> tuple[int, ...]:
    """Cut a row of times into contiguous parts so that the largest part is as small as can be; exact.

    Args:
        seconds: of each block.
        stages: number of parts, none of them empty.
        together: pairs (i, j) of blocks that must lie in one part, and with them all between.

    Returns:
        the first block of each part but the first.

    Raises:
        SweepError: not that many parts can be made.

    Example:
        >>> split([3, 1, 1, 1, 4], 3)
        (1, 4)
    """
    n = len(seconds)
    allowed = [all(not low < cut <= high for low, high in map(sorted, together)) for cut in range(n + 1)]
    most = 1 + sum(allowed[1:n])
    if not 1 <= stages <= most:
        raise SweepError(
            got=f"{stages} stages for {n} blocks"
            + (f", of which {n - most} must lie with the one before (shared parameters)" if most < n else ""),
            wanted=f"1 to {most} stages",
            where="sweep.pipeline",
            next_step="ask for fewer stages, cut the model into smaller blocks, or do not share parameters across it",
        )
    before = [0.0]
    for value in seconds:
        before.append(before[-1] + value)
    best = [0.0] + [float("inf")] * n  # of the first j blocks in k parts
    cuts: list[list[int]] = []
    for _ in range(stages):
        made = [float("inf")] * (n + 1)
        at = [0] * (n + 1)
        for stop in range(1, n + 1):
            for cut in range(stop):
                if allowed[cut]:
                    largest = max(best[cut], before[stop] - before[cut])
                    if largest < made[stop]:
                        made[stop], at[stop] = largest, cut
        best = made
        cuts.append(at)
    found: list[int] = []
    stop = n
    for at in reversed(cuts):
        stop = at[stop]
        found.append(stop)
    return tuple(reversed(found[:-1]))


def place(
    chain: Chain, stages: int, costs: Costs | None, x: Any, y: Any, group: dist.ProcessGroup | None, rank: int
) -> Placement:
    """The placement that the first process finds, in every process; an error in one is an error in all."""
    found: list[Any] = [None]
    if rank == 0:
        try:
            if costs is None:
                costs = Profiler(chain.blocks, chain.facts(chain.key(x)), chain.generators, x, y).measure()
            found = [_placement(chain, stages, costs)]
        except Exception as error:  # the others wait for word
            dist.broadcast_object_list([f"{type(error).__name__}: {error}"], src=first_of(group), group=group)
            raise
    dist.broadcast_object_list(found, src=first_of(group), group=group)
    if not isinstance(found[0], Placement):
        raise wrong(f"an error in the first process, {found[0]}", "a placement from it", "see what it says there")
    return found[0]


def first_of(group: dist.ProcessGroup | None) -> int:
    return 0 if group is None else dist.get_global_rank(group, 0)


def _placement(chain: Chain, stages: int, costs: Costs) -> Placement:
    n = len(chain.blocks) - 1
    if len(costs) != n + 1:
        raise wrong(f"costs of {len(costs)} blocks", f"{n + 1}, the loss counted", "measure this chain")
    seconds = [b.record_s + b.reverse_s for b in costs.blocks]
    seconds = [*seconds[: n - 1], seconds[n - 1] + seconds[n]]
    first: dict[int, int] = {}
    together = [
        (first.setdefault(id(p), i), i)
        for i, block in enumerate(chain.blocks[:-1])
        for p in (*block.parameters(), *(m for m in block.modules if m._buffers))
    ]
    cuts = split(seconds, stages, [(i, j) for i, j in together if i < j])
    edges = (0, *cuts, n)
    ranges = tuple(itertools.pairwise(edges))
    return Placement(ranges, tuple(sum(seconds[a:b]) for a, b in ranges), tuple(b.name for b in chain.blocks[:-1]))
