"""Files that hold a run, other than those of `torch.save`: safetensors, numpy's, pickles, JSON.  And what of them is in
an optimizer and its network when it steps for the first time, however it came there.
"""

from __future__ import annotations

import _pickle
import importlib
import json
import pickle
from types import ModuleType
from typing import Any

import numpy
import torch

from gradledger.core.events import FileTouched, StateLoaded
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._filed import of_names, telling
from gradledger.ledger._held import held, values_in
from gradledger.ledger._offered import Offered
from gradledger.ledger._often import Often
from gradledger.ledger._once_loaded import AWAITED, when
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._registry import Registry
from gradledger.ledger._session import Session
from gradledger.ledger._states import FILE, States
from gradledger.ledger._values import readable

READS = 2048  # of one line: more are samples of a data set
CALLS = 20_000  # of all readers and writers of documents and arrays together
TOLD = 64
LARGE = 1 << 20  # elements of a tensor that is not read only to be known again
FEW_NAMES = 24


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.states = self.recorder.part(States)
        self.offered = self.recorder.part(Offered)
        self.often = Often()
        self.reads: dict[tuple[str, int], int] = {}
        self.calls = 0
        self.begun: set[int] = set()

    # ------------------------------------------------------------------ files

    def read(self, before: Any, content: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Something was read: its values are kept in mind, and what it holds is told."""
        if type(content) in (int, float, str, bool, bytes) or content is None:
            return
        site = _site.here(1)
        if self._many(site):
            return
        self._note(content, site)
        self._tell(held(content), site)

    def _note(self, content: Any, site: Site) -> None:
        at = self.states.moment()
        self.offered.read(content, site, self.recorder.iteration)
        for value in values_in(content):
            if isinstance(value, torch.Tensor):
                self.states.loaded.note(value, FILE)
            self.states.filed.note(value, at, site)

    def _tell(self, what: tuple[str, ...], site: Site) -> None:
        if set(what) - {"other"} and self.often.worth_telling((site.key(), what), first=8):
            self.recorder.emit(FileTouched, site, method="load", what=what)

    def enough(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Without a guard: a program that reads so often reads samples."""
        self.calls += 1
        return self.calls > CALLS

    def _many(self, site: Site) -> bool:
        count = self.reads[site.key()] = self.reads.get(site.key(), 0) + 1
        if len(self.reads) > TOLD * TOLD:
            self.reads.clear()
        return count > READS

    def member_read(self, before: Any, array: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One array of an .npz archive, which reads it when it is asked for."""
        site = _site.here(1)
        if isinstance(array, numpy.ndarray) and not self._many(site):
            self._note(array, site)
            self._tell(of_names([str(args[1])]), site)

    def opened(self, handle: Any) -> None:
        """A safetensors file was opened: its tensors are fetched one by one, by methods that cannot be watched."""
        site = _site.here(1)
        if self._many(site):
            return
        names = list(handle.keys())
        at = self.states.moment()
        for name in names[:: max(1, len(names) // FEW_NAMES)][:FEW_NAMES]:
            size = 1
            for length in handle.get_slice(name).get_shape():
                size *= length
            if size <= LARGE:
                self.states.filed.note(handle.get_tensor(name), at, site)
        self._tell(of_names(names), site)

    def saved(self, what: tuple[str, ...]) -> None:
        if set(what) - {"other"} and self.often.worth_telling((_site.here(1).key(), "save"), first=4):
            self.recorder.emit(FileTouched, method="save", what=what)

    # ------------------------------------------------------------------ the first step

    def first_step(self, tensors: list[torch.Tensor], site: Site) -> None:
        """Before an optimizer steps for the first time: was its state put there, and are these the values of a file?"""
        number = self.session.trace.optimizer_running
        if not number or number in self.begun:
            return
        self.begun.add(number)
        optimizer = self.recorder.optimizers.get(number)
        if optimizer is not None and _has_history(optimizer):
            self.recorder.emit(
                StateLoaded, NOWHERE, owner="optimizer", ident=number, matched=len(optimizer.state), origin="hand"
            )
        self._filled(tensors)

    def _filled(self, tensors: list[torch.Tensor]) -> None:
        """Networks that were filled from a file by hand: no `load_state_dict` of theirs was seen."""
        registry = self.recorder.part(Registry)
        roots: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors:
            found = self.recorder.tensors.find(tensor)
            owner = registry.owners.get(found) if found is not None else None
            if owner is not None:
                line = registry.ancestors(owner.module)
                if not self.states.filled.intersection(line):
                    roots.setdefault(line[-1], []).append(tensor)
        for root, mine in roots.items():
            known = telling(mine)
            read = [place for t in known if (place := self.states.filed.find(t)) is not None]
            if known and 5 * len(read) >= 4 * len(known):
                self.states.filled.add(root)
                last = max(read, key=lambda place: place[0])
                self.recorder.emit(
                    StateLoaded, last[1], owner="module", ident=root, matched=len(mine), origin="file"
                )


def _has_history(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer that has not stepped yet has what only steps (or a checkpoint) give."""
    for entries in list(optimizer.state.values())[:8]:
        if not isinstance(entries, dict) or not entries:
            continue
        if "step" in entries:
            return float(entries["step"]) > 0
        for value in entries.values():
            if isinstance(value, torch.Tensor) and readable(value) and bool((value.detach() != 0).any()):
                return True
    return False


def _also_below() -> Undo:
    """The functions of `pickle` call themselves those of `_pickle`: one that is pickled by its name (`__reduce__` often
    returns `pickle.loads`) has to be found there."""
    names = ("load", "loads", "dump", "dumps")
    before = {name: getattr(_pickle, name) for name in names}
    ours = {name: getattr(pickle, name) for name in names}
    for name in names:
        setattr(_pickle, name, ours[name])

    def undo() -> None:
        for name in names:
            if getattr(_pickle, name) is ours[name]:
                setattr(_pickle, name, before[name])

    return undo


class _Tensors:
    """safetensors, each of its modules from the moment when the program has loaded it."""

    def __init__(self, session: Session, probe: _Probe) -> None:
        self.recorder, self.probe = session.recorder, probe
        self.nest = self.recorder.part(States).files
        self.busy: list[bool] = []
        self.opens: list[tuple[Any, Any]] = []  # (safe_open, what stands in its place)
        self.undos: list[Undo] = []

    def loaded(self, place: ModuleType) -> None:
        with self.recorder.guard(place.__name__):
            self._safe_open(place)
            if place.__name__ == "safetensors":
                return
            for name in ("load_file", "load"):
                self._observe(place, name, before=self.enter, after=self.read, raised=self.failed)
            for name in ("save_file", "save", "save_model"):
                if hasattr(place, name):
                    self._observe(place, name, after=self.wrote)

    def _observe(self, place: ModuleType, name: str, **callbacks: Any) -> None:
        self.undos.append(observe(self.recorder, place, name, nest=self.nest, **callbacks))

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.busy.append(True)

    def read(self, before: Any, content: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.busy.clear()
        self.probe.read(before, content, args, kwargs)

    def failed(self, before: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.busy.clear()

    def wrote(self, before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("tensors", kwargs.get("model"))
        self.probe.saved(of_names(list(given)) if isinstance(given, dict) else ("module",))

    def _safe_open(self, place: Any) -> None:
        """`safe_open` is a class of another language, whose methods cannot be replaced: its calls are watched by a
        class in its place that hands out the very same objects."""
        found = place.safe_open
        original = next((o for o, ours in self.opens if found is ours), found)  # a module takes it from another one
        installed = next((ours for o, ours in self.opens if original is o), None)
        if installed is None:
            installed = self._in_place_of(original)
            self.opens.append((original, installed))
        place.safe_open = installed

        def undo() -> None:
            if place.safe_open is installed:
                place.safe_open = original

        self.undos.append(undo)

    def _in_place_of(self, original: Any) -> Any:
        recorder, probe, busy = self.recorder, self.probe, self.busy

        class Kind(type):
            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                handle = original(*args, **kwargs)
                if recorder.enabled and not busy:
                    with recorder.guard("safe_open"):
                        probe.opened(handle)
                return handle

            def __instancecheck__(cls, thing: Any) -> bool:
                return isinstance(thing, original)

            def __subclasscheck__(cls, kind: type) -> bool:
                return issubclass(kind, original)

        return Kind("safe_open", (), {"__doc__": original.__doc__, "__module__": original.__module__})


def install(session: Session) -> Undo:
    """Watch readers and writers of files that programs keep their runs in, and first steps."""
    recorder, probe = session.recorder, _Probe(session)
    nest = recorder.part(States).files
    foreign = _Tensors(session, probe)

    def document(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        probe.saved(held(args[0] if args else kwargs.get("obj")))

    def arrays(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        probe.saved(of_names(list(kwargs)) if kwargs else ("module",))

    undos: list[Undo] = []
    for owner, name in ((numpy, "load"), (pickle, "load"), (pickle, "loads"), (json, "load"), (json, "loads")):
        undos.append(observe(recorder, owner, name, after=probe.read, nest=nest, skip=probe.enough))
    for owner, name in ((pickle, "dump"), (pickle, "dumps"), (json, "dump"), (json, "dumps")):
        undos.append(observe(recorder, owner, name, after=document, nest=nest, skip=probe.enough))
    for name in ("save", "savez", "savez_compressed"):
        undos.append(observe(recorder, numpy, name, after=arrays, nest=nest, skip=probe.enough))
    undos.append(_also_below())
    archive = getattr(importlib.import_module("numpy.lib.npyio"), "NpzFile", None)
    if archive is not None:
        undos.append(observe(recorder, archive, "__getitem__", after=probe.member_read, nest=nest, skip=probe.enough))
    undos += [when(name, foreign.loaded) for name in AWAITED]
    session.at_step.append(probe.first_step)
    return together(lambda: session.at_step.remove(probe.first_step), *undos, lambda: together(*foreign.undos)())
