"""State taken, loaded, written to files and read back; a load from another live network is a copy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from gradledger.core.events import FileTouched, StateLoaded, StateTaken
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._carried import around, leaves_of
from gradledger.ledger._filed import says_something
from gradledger.ledger._identity import Ref
from gradledger.ledger._offered import LeftOut, Offered, same_values
from gradledger.ledger._often import Often
from gradledger.ledger._patch import Nest, Undo, observe, together
from gradledger.ledger._registry import Registry, tree_tensors
from gradledger.ledger._restarts import Restarts
from gradledger.ledger._session import Session
from gradledger.ledger._states import (
    FILE,
    MAX_PLAIN,
    Handed,
    Snapshot,
    States,
    blend,
    contents,
    copies_of,
    counts,
    differs,
    is_module_state,
    is_optimizer_state,
    is_scheduler_state,
    parts,
    plain_tensors,
    tensors_in,
    that_differ,
)
from gradledger.ledger._values import readable, same_memory
from gradledger.ledger.probes.copies import Copies, tell, tell_shared
from gradledger.ledger.probes.modules import know, register_tree

MAX_HANDED = 4096  # iterations whose handing out of a state is remembered


@dataclass(slots=True)
class _Load:
    """What was seen right before a load: where the state comes from, and whether it changes anything."""

    origin: str
    source: torch.nn.Module | None
    tau: float | None
    snapshot: Snapshot | None
    changed: bool | None
    own: dict[str, tuple[str, torch.Tensor]] = field(default_factory=dict)
    same: set[str] = field(default_factory=set)  # keys whose values the module has already


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.states = self.recorder.part(States)
        self.copies = self.recorder.part(Copies)
        self.often = Often()
        self.offered = self.recorder.part(Offered)
        self.handed = Handed()  # a tensor of each state that was handed out: in which iteration
        self.handed_at: dict[int, Site] = {}

    # ------------------------------------------------------------------ modules

    def module_taken(self, before: Any, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        module = args[0]
        number = self._know(module)
        for tensor in state.values() if isinstance(state, dict) else ():
            if isinstance(tensor, torch.Tensor):
                self.states.modules.note(tensor, number)
        self.offered.taken(number, self.recorder.iteration)
        site = _site.here(1)
        self._hand_out(state, site)
        if not self.recorder.detail and self.often.worth_telling(("detail", site.key()), first=2):
            self.recorder.suspicious()  # what follows may write into these tensors
            self._introduce(module, state)
        if self.often.worth_telling(("print", number), first=64) or self.recorder.iteration % 10 == 0:
            plain = copies_of(plain_tensors(module))
            beside = around(module)
            beside.leaves = leaves_of(self.recorder)
            self.states.remember(state, Snapshot("module", number, plain=plain, around=beside))
        if self.often.worth_telling(("taken", number, site.key())):
            self.recorder.emit(StateTaken, site, owner="module", ident=number, missing=tuple(plain_tensors(module)))

    def _hand_out(self, state: Any, site: Site) -> None:
        """Remember when a state was taken, by one of its tensors (a new object each time)."""
        for tensor in state.values() if isinstance(state, dict) else ():
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, torch.nn.Parameter):
                self.handed.note(tensor, self.recorder.iteration)
                self.handed_at[self.recorder.iteration] = site
                if len(self.handed_at) > MAX_HANDED:
                    self.handed_at.pop(next(iter(self.handed_at)))
                return

    def _own_since(self, number: int, state: Any, own: dict[str, tuple[str, torch.Tensor]]) -> tuple[int | None, Site]:
        """When a state that is the live memory of the module itself was taken, and where."""
        given = {k: t for k, t in state.items() if isinstance(t, torch.Tensor) and k in own}
        if not given or not all(t is not own[k][1] and same_memory(t, own[k][1]) for k, t in given.items()):
            return None, NOWHERE
        since = next((n for t in given.values() if (n := self.handed.find(t)) is not None), None)
        if since is None:  # made out of a state, `{k: v.detach().cpu()}`, or of a list of parameters: the latest one
            since = self.offered.takers.get(number)
            if since is None:
                return self.offered.walked.get(number, (None, NOWHERE))
        return (None, NOWHERE) if since is None else (since, self.handed_at.get(since, NOWHERE))

    def _introduce(self, module: torch.nn.Module, state: Any) -> None:
        """Tell the trace, which was off when they were made, whose memory the tensors of a state are."""
        own, trace = tree_tensors(module), self.session.trace
        if trace.active:
            for key, tensor in state.items():
                if key in own and isinstance(tensor, torch.Tensor) and same_memory(tensor, own[key][1]):
                    trace.param_aliases[trace.token_of(tensor)] = Ref(own[key][1])

    def _know(self, module: torch.nn.Module) -> int:
        """Number of a module; its tree is taken in the first few times."""
        number = know(self.recorder, module)
        if self.often.worth_telling(("tree", number), first=8):
            register_tree(self.recorder, module)
        return number

    def load_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Load:
        module, state = args[0], args[1] if len(args) > 1 else kwargs["state_dict"]
        number = self._know(module)
        own = tree_tensors(module)
        given = {k: t for k, t in state.items() if isinstance(t, torch.Tensor)}
        load = self._origin(module, number, own, given)
        load.own = own
        if self.often.worth_telling(("changed", number), first=20):
            load.changed = differs(own, given)
        if self.often.worth_telling(("same", number), first=4):
            load.same = same_values(own, given)
        self.copies.captured = []
        return load

    def _origin(
        self,
        module: torch.nn.Module,
        number: int,
        own: dict[str, tuple[str, torch.Tensor]],
        given: dict[str, torch.Tensor],
    ) -> _Load:
        """Where a state comes from, by its tensors, by its print, or by its values."""
        registry, votes = self.recorder.part(Registry), Counter[int]()
        for key, tensor in given.items():
            of = self.states.modules.find(tensor)
            if of is None and key in own:
                live = self.recorder.tensors.find(tensor)  # a parameter itself, not its detached twin
                mine = self.recorder.tensors.find(own[key][1])
                roots = registry.roots_of_pair(live, mine) if live is not None and mine is not None else None
                of = number if tensor is own[key][1] else roots[0] if roots is not None else None
            if of is None:
                of = FILE if self._of_file(tensor, given) else 0
            if of or says_something(tensor):
                votes[of] += 1
        winner = votes.most_common(1)[0][0] if votes else 0
        if winner > 0:
            source = self.recorder.modules.get(winner)
            if source is None or not tree_tensors(source).keys() & own.keys():  # taken by a wrapper
                source = self._by_memory(own, given) or source
            return _Load("live", source, 1.0, None, None)
        snapshot = self.states.recall(given)
        if winner == FILE:
            return _Load("file", None, None, snapshot, None)
        if snapshot is not None:
            source = self.recorder.modules.get(snapshot.ident) if snapshot.owner == "module" else None
            return _Load("live", source, 1.0, snapshot, None)
        for taker in reversed(self.offered.takers):
            source = self.recorder.modules.get(taker)
            if source is not None and taker != number:
                tau = blend(own, given, tree_tensors(source))
                if tau is not None:
                    return _Load("live", source, tau, None, None)
        return _Load("unknown", None, None, None, None)

    def _of_file(self, tensor: torch.Tensor, given: dict[str, torch.Tensor]) -> bool:
        """Whether a tensor, or its values, were read from a file, and no live state was like this since."""
        if self.states.loaded.find(tensor) is not None:
            return True
        read = self.states.filed.find(tensor)
        snapshot = self.states.recall(given) if read is not None else None
        return read is not None and (snapshot is None or snapshot.at < read[0])

    def _by_memory(
        self, own: dict[str, tuple[str, torch.Tensor]], given: dict[str, torch.Tensor]
    ) -> torch.nn.Module | None:
        """The live network whose memory the given tensors are."""
        registry = self.recorder.part(Registry)
        live = {t.data_ptr(): n for t, n in self.recorder.tensors.live() if n in registry.owners and readable(t)}
        for key in own.keys() & given.keys():
            number = live.get(given[key].data_ptr()) if readable(given[key]) else None
            mine = self.recorder.tensors.find(own[key][1])
            roots = registry.roots_of_pair(number, mine) if number is not None and mine is not None else None
            if roots is not None:
                return self.recorder.modules.get(roots[0])
        return None

    def module_loaded(self, load: _Load | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        captured, self.copies.captured = self.copies.captured or [], None
        if load is None:
            return
        module, state = args[0], args[1] if len(args) > 1 else kwargs["state_dict"]
        number, site = know(self.recorder, module), _site.here(1)
        self.recorder.part(Restarts).loaded.add(number)
        assign = bool(args[3] if len(args) > 3 else kwargs.get("assign", False))
        own = load.own
        if assign:  # the module has other tensors now
            register_tree(self.recorder, module)
            own = tree_tensors(module)
        if load.origin == "file":
            self.states.filled.add(number)
            if self.states.put_back is not None and load.snapshot is not None and load.snapshot.around is not None:
                self.states.put_back(module, number, site, load.snapshot.around)
        source, tau = self._traced(captured, load)
        origin = self.recorder.modules.find(source) if source is not None else None
        if origin is None and load.snapshot is not None and load.snapshot.owner == "module":
            origin = load.snapshot.ident
        missing, unexpected = (tuple(getattr(result, n, ()) or ()) for n in ("missing_keys", "unexpected_keys"))
        since, taken_site = self._own_since(number, state, own) if source in (module, None) else (None, NOWHERE)
        left = self._left_out(number, load, state, missing, unexpected)
        self.recorder.emit(
            StateLoaded,
            site,
            owner="module",
            ident=number,
            strict=bool(args[2] if len(args) > 2 else kwargs.get("strict", True)),
            missing=missing[:64],
            unexpected=unexpected[:64],
            matched=sum(k in own for k in state),
            origin="live" if source is not None and load.origin == "unknown" else load.origin,
            origin_ident=origin,
            plain_differ=self._plain_differ(module, source, load),
            renamed=left.renamed,
            kept=left.kept[:64],
            left_out=left.keys[:64],
            early=left.early,
            left_site=left.site,
            own_since=since,
            taken_site=taken_site,
        )
        if source is None or load.origin == "file" or (source is module and load.changed):
            return  # (to go back to an earlier state of its own is no copy)
        if assign and source is not module:
            theirs = tree_tensors(source)
            for key in own.keys() & theirs.keys():
                tell_shared(self.session, own[key][1], theirs[key][1], "load_state_dict", site)
        given = {k for k, t in state.items() if not (k in own and _is_memory_of(t, own[k][1]))}
        self._tell_copy(module, source, own, given or set(state), tau, load.changed, captured)

    def _left_out(
        self, number: int, load: _Load, state: Any, missing: tuple[str, ...], unexpected: tuple[str, ...]
    ) -> LeftOut:
        """What the state that was loaded had to offer for the tensors that keep what they had."""
        if not missing and not load.same:
            return LeftOut()
        own, given = load.own, {k: t for k, t in state.items() if isinstance(t, torch.Tensor)}
        return self.offered.left_out(number, own, given, load.same, missing, unexpected, self.recorder)

    def _traced(
        self, captured: list[tuple[torch.Tensor, torch.Tensor, float | None]], load: _Load
    ) -> tuple[torch.nn.Module | None, float | None]:
        """The source and its weight; what the trace of this iteration saw comes before what the values suggest."""
        if load.source is not None or not captured or load.snapshot is not None or load.origin == "file":
            return load.source, load.tau
        registry = self.recorder.part(Registry)
        for target, source, tau in captured:
            numbers = self.recorder.tensors.find(source), self.recorder.tensors.find(target)
            if source is not target and numbers[0] is not None and numbers[1] is not None:
                roots = registry.roots_of_pair(numbers[0], numbers[1])
                if roots is not None:
                    return self.recorder.modules.get(roots[0]), tau
        return None, None

    def _tell_copy(
        self,
        module: torch.nn.Module,
        source: torch.nn.Module,
        own: dict[str, tuple[str, torch.Tensor]],
        given: set[str],
        tau: float | None,
        changed: bool | None,
        captured: list[tuple[torch.Tensor, torch.Tensor, float | None]],
    ) -> None:
        theirs = tree_tensors(source)
        number = self.recorder.tensor_id
        pairs = [(number(theirs[k][1]), number(own[k][1])) for k in own if k in given and k in theirs]
        if not pairs:
            pairs = [(number(s), number(t)) for t, s, _ in captured]
        tell(
            self.session,
            _site.here(1),
            "load_state_dict",
            know(self.recorder, source),
            know(self.recorder, module),
            tuple(dict.fromkeys(pairs)),
            tau,
            changed,
        )

    def _plain_differ(self, module: torch.nn.Module, source: torch.nn.Module | None, load: _Load) -> tuple[str, ...]:
        if not self.often.worth_telling(("plain", id(load.source), id(module)), first=8):
            return ()
        if load.snapshot is not None:
            then = load.snapshot.plain
        elif source is not None and source is not module and load.tau == 1.0:
            then = {k: t for k, t in plain_tensors(source).items() if readable(t) and t.numel() <= MAX_PLAIN}
        else:
            return ()
        return that_differ(then, plain_tensors(module)) if then else ()

    def load_raised(self, load: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.copies.captured = None

    # ------------------------------------------------------------------ optimizers and schedulers

    def other_taken(self, owner: str, ident: int, state: Any) -> None:
        if owner == "optimizer":
            for tensor in tensors_in(state.get("state", {})):
                self.states.optimizers.note(tensor, ident)
        if self.often.worth_telling((owner, ident), first=16):
            self.states.remember(state, Snapshot(owner, ident))
            self.recorder.emit(StateTaken, owner=owner, ident=ident)

    def other_loaded(self, owner: str, ident: int, state: Any) -> None:
        origin, of = "unknown", None
        for tensor in tensors_in(state):
            of = self.states.optimizers.find(tensor)
            origin = "live" if of is not None else "file" if self.states.loaded.find(tensor) is not None else origin
            break
        snapshot = self.states.recall(state)
        if snapshot is not None and snapshot.owner == owner:
            of = snapshot.ident
            origin = origin if origin != "unknown" else "file" if snapshot.saved else "live"
        self.recorder.emit(StateLoaded, owner=owner, ident=ident, matched=len(state), origin=origin, origin_ident=of)

    # ------------------------------------------------------------------ files

    def saved(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        content = args[0] if args else kwargs["obj"]
        for value in parts(content):
            if is_module_state(value):
                of = next((n for t in value.values() if (n := self._owner_of(t)) is not None), None)
                snapshot = self.states.recall(value)
                if snapshot is not None:
                    snapshot.saved = True
                elif of is not None:
                    module = self.recorder.modules.get(of)
                    plain = copies_of(plain_tensors(module)) if module is not None else {}
                    self.states.remember(value, Snapshot("module", of, True, plain))
            elif is_optimizer_state(value) or is_scheduler_state(value):
                snapshot = self.states.recall(value)
                if snapshot is not None:
                    snapshot.saved = True
        self.recorder.emit(FileTouched, method="save", what=contents(content), counts=counts(content))

    def _owner_of(self, tensor: Any) -> int | None:
        return self.states.modules.find(tensor) if isinstance(tensor, torch.Tensor) else None

    def read(self, before: Any, content: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        at, site = self.states.moment(), _site.here(1)
        for tensor in tensors_in(content):
            self.states.loaded.note(tensor, FILE)
            self.states.filed.note(tensor, at, site)
        self.offered.read(content, site, self.recorder.iteration)
        self.recorder.emit(FileTouched, method="load", what=contents(content), counts=counts(content))


def _is_memory_of(given: Any, mine: torch.Tensor) -> bool:
    """Whether a tensor of a state is the module's own: it took it from itself, and gives it back as it was."""
    if not isinstance(given, torch.Tensor) or not readable(given) or not readable(mine):
        return False
    return given.numel() > 0 and given.data_ptr() == mine.data_ptr()


def install(session: Session) -> Undo:
    """Watch `state_dict` and `load_state_dict` of modules, optimizers, schedulers, and `torch.save`, `torch.load`."""
    probe = _Probe(session)
    recorder = session.recorder
    taking, loading = Nest(), Nest()

    def number_of(owner: str, thing: Any) -> int:
        return session.know_optimizer(thing, NOWHERE) if owner == "optimizer" else recorder.objects.number(thing)

    def pair(owner: str, cls: type, take: Nest, load: Nest) -> list[Undo]:
        def taken(before: Any, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            probe.other_taken(owner, number_of(owner, args[0]), state)

        def loaded(before: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = args[1] if len(args) > 1 else kwargs["state_dict"]
            probe.other_loaded(owner, number_of(owner, args[0]), state)

        found = []
        if "state_dict" in vars(cls):
            found.append(observe(recorder, cls, "state_dict", after=taken, nest=take))
        if "load_state_dict" in vars(cls):
            found.append(observe(recorder, cls, "load_state_dict", after=loaded, nest=load))
        return found

    schedulers = [c for c in vars(lr_scheduler).values() if isinstance(c, type) and issubclass(c, LRScheduler)]
    inner_take, inner_load = Nest(), Nest()
    undos = [undo for c in dict.fromkeys(schedulers) for undo in pair("scheduler", c, inner_take, inner_load)]
    undos += pair("optimizer", torch.optim.Optimizer, Nest(), Nest())
    files = recorder.part(States).files
    for place in (torch, torch.serialization):
        undos.append(observe(recorder, place, "save", before=probe.saved, nest=files))
        undos.append(observe(recorder, place, "load", after=probe.read, nest=files))
    return together(
        observe(recorder, torch.nn.Module, "state_dict", after=probe.module_taken, nest=taking),
        observe(
            recorder,
            torch.nn.Module,
            "load_state_dict",
            before=probe.load_begins,
            after=probe.module_loaded,
            raised=probe.load_raised,
            nest=loading,
        ),
        *undos,
    )
