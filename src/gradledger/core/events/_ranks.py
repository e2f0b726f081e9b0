"""Several processes that train one model: ranks.  Facts of each that are compared with those of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.events._base import Event
from gradledger.core.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerPass(Event):
    """A pass begins over a loader with a `DistributedSampler` that shuffles.  `order`: its epoch and seed, of which the
    order follows; `made_site`: where the sampler was made; `shard`: the part that it draws."""

    KIND: ClassVar[str] = "sampler_pass"
    rank: int
    loader: int
    replicas: int
    order: tuple[int, int]
    made_site: Site
    shard: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatch(Event):
    """A batch of a loader in one rank: the `index`-th of its `epoch`-th pass, as a `digest` of its values.  `loader`
    counts the loaders of that rank in the order of their first pass; `trained`: a reverse pass followed."""

    KIND: ClassVar[str] = "rank_batch"
    rank: int
    world: int
    loader: int
    epoch: int
    index: int
    digest: str
    trained: bool
    distributed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoss(Event):
    """The `index`-th reverse pass of one rank, at `site`, before any averaging.  `loss`: digest of its root, `value` of
    a scalar; `inputs`: digest of what the program's own forward calls were given since the pass before ("": nothing
    that could be looked at); `call_site`: the first of these calls; `made`: lines that made its inputs, nearest
    first."""

    KIND: ClassVar[str] = "rank_loss"
    rank: int
    world: int
    index: int
    loss: str
    value: float | None
    inputs: str
    call_site: Site
    made: tuple[Site, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters(Event):
    """An optimizer of one rank is about to take its `step`-th step.  Of each parameter: shape, digest of its values,
    and whether its gradient was averaged over ranks.  `exchanged`: other values than gradients travel between ranks;
    `sharded_data`: a DistributedSampler splits the data; `made_site`: where the first parameter's module was made.
    `made`: the lines where any were, and `made_at`: which of these, of each parameter (-1: not known)."""

    KIND: ClassVar[str] = "rank_parameters"
    rank: int
    world: int
    optimizer: int
    step: int
    shapes: tuple[str, ...]
    digests: tuple[str, ...]
    averaged: tuple[bool, ...]
    exchanged: bool
    sharded_data: bool
    made_site: Site
    made: tuple[Site, ...] = ()
    made_at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinding(Event):
    """What the rules found in another rank, at `site`.  Fields as of a finding.  `process`: in a process that the
    program started and that is no rank, by its number in order (0: in a rank)."""

    KIND: ClassVar[str] = "rank_finding"
    rank: int
    code: str
    severity: str
    message: str
    fix: str
    related: tuple[Site, ...]
    subject: str
    count: int
    likely: bool
    process: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun(Event):
    """What ran in another process that was watched: `steps` of optimizers, `backwards`, the rules that judged it, and
    those that did not, each with the reason.  `process`: as of a finding (0: a rank); `cut`: it was killed, and the
    numbers are those that were recorded."""

    KIND: ClassVar[str] = "rank_run"
    rank: int
    steps: int
    backwards: int
    checked: tuple[str, ...]
    not_checked: tuple[tuple[str, str], ...] = ()
    process: int = 0
    cut: bool = False
