"""Loaders and their passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.events._base import Event
from gradledger.core.site import NOWHERE, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderMade(Event):
    """A DataLoader.  `length`: batches an epoch (0: unknown)."""

    KIND: ClassVar[str] = "loader_made"
    loader: int
    length: int
    batch_size: int
    shuffled: bool
    workers: int
    drop_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderEpoch(Event):
    """`iter(loader)`: a new pass begins.  `epoch`: passes before this one; `pending`: backwards whose contributions
    stand unconsumed in gradients now."""

    KIND: ClassVar[str] = "loader_epoch"
    loader: int
    epoch: int
    pending: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesCompared(Event):
    """One of the first passes over a loader that does not shuffle, column by column of what it gave; or over a table
    that is cut into batches in order (`loader` 0).  `batches`, `rows` (of the first batch); `trained`: batches after
    which a reverse pass ran; `between`: the largest share of a column's variance that lies between batches (about
    1 / rows when the order says nothing); `between_inputs`: the same among columns of floating point and classes that a
    loss took for its target; `item`: which tensor of a batch has the largest; `order_site`: the `__iter__` of the
    program's data set that gave the order."""

    KIND: ClassVar[str] = "batches_compared"
    loader: int
    batches: int
    rows: int
    trained: int
    between: float
    between_inputs: float
    item: int
    order_site: Site = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDataChanged(Event):
    """Fetching items changed the values that the data set keeps for them, in the first pass and again in a later one.
    `dataset`: its class ("tensor": there is none); `attribute`: where it keeps them; `readers`: the program's own
    `__getitem__`s and collate function that the items passed through, outermost first."""

    KIND: ClassVar[str] = "stored_data_changed"
    dataset: str
    attribute: str
    passes: int
    items: int
    readers: tuple[Site, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGenerator(Event):
    """A loader with worker processes begins its first pass over a data set that draws from a random generator of its
    own (`name`, a `kind` such as numpy.random.Generator), of which every worker receives a copy.  `reader`: the method
    that draws; `init_fn`: a worker_init_fn was given; `persistent`: workers live longer than a pass."""

    KIND: ClassVar[str] = "worker_generator"
    loader: int
    workers: int
    name: str
    kind: str
    reader: Site
    init_fn: bool
    persistent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersAlike(Event):
    """In the first `batches` of a loader over an iterable data set all of its `workers` gave the same, batch for batch.
    `reader`: the data set's `__iter__`."""

    KIND: ClassVar[str] = "workers_alike"
    loader: int
    workers: int
    batches: int
    reader: Site = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDataset(Event):
    """A pass of a loader begins over one of several `Subset`s that share one data set object (`number`, of the class
    `dataset`): told at the first, and when settings of it were found set anew.  `settings`: its attributes that are no
    store of data; `anew`: those set anew since the subsets were made or the last pass began; `subsets`: how many share
    it; `made`: where they were made."""

    KIND: ClassVar[str] = "shared_dataset"
    loader: int
    number: int
    dataset: str
    settings: tuple[str, ...]
    anew: tuple[str, ...]
    subsets: int
    made: tuple[Site, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPart(Event):
    """A pass of a loader begins over a data set that holds an object with settings, such as a transform, which the data
    set of another loader holds, too: told of each data set, and when a setting has changed.  `part`: which object;
    `attribute`: where it is kept; `kind`: its class; `settings`: (name, value as Python writes it) of the plain ones;
    `holders`: data sets that hold it; `made`: where their loaders were made."""

    KIND: ClassVar[str] = "shared_part"
    loader: int
    part: int
    attribute: str
    kind: str
    settings: tuple[tuple[str, str], ...]
    holders: int
    made: tuple[Site, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetExplained(Event):
    """How far the target of a regression (compared at `site`) is a function of the input, from the rows trained on.

    `inputs`, `targets`: columns; `explained`: of each target column, the share of its variance that a smooth function
    of the input explains on rows held out; `apart`: the same variance as it stands between the nearest rows, which no
    function of the input can explain; `inverse`: the least share of an input column that the target explains;
    `without`: the same without the target columns that the input does not explain; `branches`: of each target column,
    nearest rows either agree or lie far apart; `floor`: the mean squared error that remains, in the target's units."""

    KIND: ClassVar[str] = "target_explained"
    module: int
    rows: int
    inputs: int
    targets: int
    explained: tuple[float, ...]
    apart: tuple[float, ...]
    inverse: float
    without: float
    branches: tuple[bool, ...]
    floor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingCounted(Event):
    """A walked loss compares (by `op`, at `site`) padded positions of a batch of sequences, too.

    `rows`, `steps`: of the batch; `padded`: share of its positions that are padding; `pulled`: the share of the
    gradient that they receive (None: each counts as any other); `value`: what they are filled with, when that is one
    number; `told_by`: what says where the padding is: "input", "mask", "lengths" or "pad_sequence"; or "one more": just
    the first padded position of each row counts, by a mask made at `mask_site`; `found` of `looked` comparisons at this
    line have counted padding so far."""

    KIND: ClassVar[str] = "padding_counted"
    op: str
    rows: int
    steps: int
    padded: float
    pulled: float | None
    value: float | None
    told_by: str
    found: int = 1
    looked: int = 1
    mask_site: Site = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingAveraged(Event):
    """A walked loss was set to zero at padded positions (at `mask_site`) and then averaged (by `op`, at `site`) over
    all of them.  `kept`: share of the positions that are no padding."""

    KIND: ClassVar[str] = "padding_averaged"
    op: str
    rows: int
    steps: int
    kept: float
    mask_site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsExchanged(Event):
    """Rows of a regression (compared at `site`) that came again, with targets that other rows have had.

    `rows` in all, of which `again` came again; `apart`: the mean squared distance of their two targets, as a share of
    that between any two."""

    KIND: ClassVar[str] = "targets_exchanged"
    module: int
    rows: int
    again: int
    apart: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDrawn(Event):
    """The target of a regression (compared at `site`) is noise as it was drawn at `drawn_site`, of which the input has
    nothing; the input of `module` has another draw of the same shape, made at `mixed_site`, mixed with data."""

    KIND: ClassVar[str] = "target_drawn"
    module: int
    drawn_site: Site
    mixed_site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelsMoved(Event):
    """Maps of labels (compared at `site`) of which `again` came again with another image, `moved` of them with the same
    pixels in other places.  `made_sites`: where the batches of both were put together."""

    KIND: ClassVar[str] = "pixels_moved"
    module: int
    again: int
    moved: int
    made_sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsShared(Event):
    """Rows held out from training (picked at `site`) were compared with the rows trained on (picked at `train_site`).

    `how` they belong together: "groups", "runs", "windows" (see the ledger's `_related`), or "same" (the very rows);
    `groups` among `rows`; `held`: how many are held out; `shared`: the share of those that belong together with rows
    trained on; `within`: how near related rows are, as a share of the typical distance; `evaluated`: a forward without
    graphs was seen to use them; `trained`: they were trained on after all."""

    KIND: ClassVar[str] = "rows_shared"
    how: str
    groups: int
    rows: int
    held: int
    shared: float
    within: float
    evaluated: bool
    trained: bool
    train_site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsMet(Event):
    """What a module was asked at `site`, without a graph and for no loss, compared by value with what it had been
    trained on until then at `train_site`.

    `how`: "same" (the very rows), "groups" or "windows" (see `RowsShared`), "mirrored" (pairs, the other way round,
    whose targets have no direction); `groups`, `rows`, `held`, `shared`, `within`: as there; `repeated`: the share of
    the rows asked for that are there more than once; `beside`: the same line is asked about the rows of training by
    another call of its function, and these are not those."""

    KIND: ClassVar[str] = "rows_met"
    module: int
    how: str
    groups: int
    rows: int
    held: int
    shared: float
    within: float
    repeated: float
    train_site: Site
    beside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedOnAll(Event):
    """Inputs trained on and inputs held out (picked at `part_site`) both carry one statistic over rows of both.

    `op`: what made it, at `site` (NOWHERE: told by the values alone); `rows`: it is over; `held`: how many are held
    out; `shared`: share of those among its rows; `evaluated`, `trained`: see `RowsShared`."""

    KIND: ClassVar[str] = "fitted_on_all"
    op: str
    rows: int
    held: int
    shared: float
    evaluated: bool
    trained: bool
    part_site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDraws(Event):
    """A worker process of a loader drew from the random generator `name` for its first batch of a pass (`epoch` counts
    from 1); `state`: a digest of the generator's state before that, after seeding and init function."""

    KIND: ClassVar[str] = "worker_draws"
    loader: int
    epoch: int
    worker: int
    workers: int
    name: str
    state: str
