"""Copies between modules, shared memory, state taken and loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.events._base import Event
from gradledger.core.site import NOWHERE, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCopied(Event):
    """`copy.deepcopy` of a module (or of an object holding it): `source` -> `target`."""

    KIND: ClassVar[str] = "deep_copied"
    source: int
    target: int
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(Event):
    """Values of `source`'s tensors were written into `target`'s.  `how`: load_state_dict, copy_, lerp_, "mul_add",
    assign (`.data = new tensor`), replace (new Parameter objects).  `tau`: weight of the source when known (1.0 =
    hard); `pairs`: (source tensor, target tensor); `changed`: values of the target really changed (None: not looked
    at); `same`: source and target are the same module; `buffers`: floating buffers of the target's tree;
    `buffers_followed`: how many of them were copied too; `buffers_differ`: names of buffers whose values differ from
    the source's after the copy and that do not move by themselves."""

    KIND: ClassVar[str] = "copied"
    how: str
    source: int
    target: int
    pairs: tuple[tuple[int, int], ...]
    tau: float | None = None
    changed: bool | None = None
    same: bool = False
    buffers: int = 0
    buffers_followed: int = 0
    buffers_differ: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesCompared(Event):
    """The parameters of a module that the program calls and no optimizer holds were compared with what they were at
    iteration `since` (a few elements of a few of them, at growing intervals): `changed` says whether any differs."""

    KIND: ClassVar[str] = "values_compared"
    module: int
    since: int
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageShared(Event):
    """After an assignment (usually `.data = other.data`) two different followed tensors have the same memory."""

    KIND: ClassVar[str] = "storage_shared"
    target: int
    source: int
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowAveraged(Event):
    """At `site`, tensors that no module registers were blended with the parameters `tensors`, each with weight `tau`
    and its own value with the rest: an average kept by hand, in a list or dict.  `lost`: of so many the result went
    nowhere, and the old value is blended again the next time; `shared`: so many are the parameter's own memory, which
    was taken at `made_site`."""

    KIND: ClassVar[str] = "shadow_averaged"
    tensors: tuple[int, ...]
    tau: float
    lost: int = 0
    shared: int = 0
    made_site: Site = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTaken(Event):
    """`state_dict()` of a module, optimizer or scheduler.  `missing`: plain tensor attributes that it does not
    carry."""

    KIND: ClassVar[str] = "state_taken"
    owner: str  # "module" | "optimizer" | "scheduler"
    ident: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLoaded(Event):
    """`load_state_dict` on a module, optimizer or scheduler; or, seen at an optimizer's first step, a state that got
    there in another way.  `origin`: where the state came from ("file", "live", "unknown"; "hand": entries of an
    optimizer that the program put there) and `origin_ident` the module it was taken from.  `plain_differ`: plain tensor
    attributes, and buffers that no state holds, whose values differ between origin and loaded module although all
    tensors of the state agree.  `renamed`:
    (missing, unexpected) keys whose tensors have one shape and whose names end alike; `own_since`: the state was handed
    out by this very module in that iteration, on line `taken_site`, and is its live memory: loading it changes
    nothing.  `kept`: keys that were given the values they had, and that the state which the rest comes from (read at
    `left_site`) has not under these names; what it has beside is in `left_out`, and in `renamed`, too.  `early`: how
    many of `renamed` stand in the module before the last key that was loaded (all, when none was)."""

    KIND: ClassVar[str] = "state_loaded"
    owner: str
    ident: int
    strict: bool = True
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    matched: int = 0
    origin: str = "unknown"
    origin_ident: int | None = None
    plain_differ: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    own_since: int | None = None
    taken_site: Site = NOWHERE
    kept: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    early: int = 0
    left_site: Site = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPutBack(Event):
    """Before the first step after `module` was filled from a file (on this line): an object of the program's class
    `cls`, made anew, has in `names` the values that it had right after the load, and others than the object that stood
    in its place when the state was taken, at `taken_site`.  `moved`: those that differed, too, and have been given
    another value since, that is not the one of then.  `owner`: "module", "optimizer" or "object"; `cls_site`: a method
    of the class; `arrays`: those of both that are arrays or tensors; `generators`: that draw random numbers; `once`:
    flags that were off after the load and on then, and that have been put on again since."""

    KIND: ClassVar[str] = "not_put_back"
    module: int
    owner: str
    cls: str
    names: tuple[str, ...]
    cls_site: Site
    taken_site: Site
    arrays: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()
    once: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavesNotPutBack(Event):
    """Before the first step after `module` was filled from a file (on this line): `optimizer`, made since the state was
    taken at `taken_site`, trains `tensors`, which no module owns, and which have other values than those that stood in
    their places then."""

    KIND: ClassVar[str] = "leaves_not_put_back"
    module: int
    optimizer: int
    tensors: tuple[int, ...]
    taken_site: Site


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTouched(Event):
    """A file was written or read (of `torch.save`, safetensors, numpy, pickle or JSON): `what` it held, by owner
    ("module", "optimizer", "scheduler", "rng", "number", "other").  `counts`: whole numbers under names that tell how
    far a run is."""

    KIND: ClassVar[str] = "file_touched"
    method: str
    what: tuple[str, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
