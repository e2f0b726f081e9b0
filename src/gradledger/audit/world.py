"""The read model of a run: what exists and how it hangs together, as of the event a rule is looking at.

The engine calls `World.apply` with each event *before* the rules see it, so a rule never rebuilds modules, names,
optimizers or copies by itself.  Memory is bounded: things that died and that no optimizer holds are forgotten in the
order they were made, reverse passes and calls are kept in rings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from gradledger.audit._book import Book
from gradledger.audit._naming import assigned, root_label
from gradledger.audit._records import CopyLink, LoaderInfo, ModuleInfo, OptimizerInfo, SchedulerInfo, TensorInfo
from gradledger.audit._source import source_line
from gradledger.core import events as ev
from gradledger.core.site import NOWHERE, Site

BACKWARDS_KEPT = 500
CALLS_KEPT = 2000
CALLS_AGE = 500  # iterations after which a forward call is forgotten: far more than any trace goes back
COPIES_KEPT = 2000  # distinct (source, target, how, line)
MODULES_KEPT = 50_000  # freed modules beyond this are forgotten
TENSORS_KEPT = 100_000
FILLS_LOOKED_AT = 64  # of one life: a gradient that is never cleared carries every fill


class World:
    """What is known about the run so far.  Read-only for rules."""

    def __init__(self) -> None:
        self.program: ev.RunStarted | None = None
        self.ended: ev.RunEnded | None = None
        self.seq = 0
        self.iteration = 0
        self.detailed = 0  # reverse passes whose operations were looked at
        self.modules: dict[int, ModuleInfo] = {}
        self.tensors: dict[int, TensorInfo] = {}
        self.optimizers: dict[int, OptimizerInfo] = {}
        self.schedulers: dict[int, SchedulerInfo] = {}
        self.loaders: dict[int, LoaderInfo] = {}
        self.oracle = Book()
        self._flagged_at: dict[tuple[str, int], set[bool]] = {}
        self._holders: dict[int, list[int]] = {}
        self._copies: OrderedDict[tuple[object, ...], CopyLink] = OrderedDict()
        self._copies_into: dict[int, dict[tuple[object, ...], CopyLink]] = {}
        self._backwards: OrderedDict[int, ev.Backward] = OrderedDict()
        self._pinned: OrderedDict[int, ev.Backward] = OrderedDict()
        self._standing: dict[int, frozenset[int]] = {}
        self._alone: dict[int, frozenset[int]] = {}
        self._consumers: OrderedDict[int, frozenset[int]] = OrderedDict()
        self._calls: OrderedDict[int, ev.ModuleCalled] = OrderedDict()
        self._labels: dict[int, str] | None = None
        self._apply = {
            ev.RunStarted: self._run_started,
            ev.RunEnded: self._run_ended,
            ev.ModuleMade: self._module_made,
            ev.ChildRegistered: self._child_registered,
            ev.TensorRegistered: self._tensor_registered,
            ev.LeafSeen: self._leaf_seen,
            ev.PlainAttributes: self._plain_attributes,
            ev.ModuleCalled: self._module_called,
            ev.ModuleFreed: self._module_freed,
            ev.ModuleUsed: self._module_used,
            ev.GradFlagSet: self._grad_flag_set,
            ev.GradientInView: self._gradient_in_view,
            ev.OptimizerMade: self._optimizer_made,
            ev.GroupAdded: self._group_added,
            ev.Step: self._step,
            ev.SchedulerMade: self._scheduler_made,
            ev.SchedulerStep: self._scheduler_step,
            ev.LoaderMade: self._loader_made,
            ev.LoaderEpoch: self._loader_epoch,
            ev.Backward: self._backward,
            ev.Copied: self._copied,
            ev.DeepCopied: self._copied,
            ev.OracleExplained: self.oracle.explained,
            ev.OracleAbstained: self.oracle.abstained,
        }

    def apply(self, event: ev.Event) -> None:
        """Take one event in.  Called by the engine only."""
        self.seq = event.seq
        self.iteration = event.iteration
        handler = self._apply.get(type(event))
        if handler is not None:
            handler(event)  # type: ignore[operator]

    # ------------------------------------------------------------------------------------------- look-ups

    def module(self, ident: int) -> ModuleInfo:
        """The module; an empty record when it was never announced."""
        return self.modules.get(ident) or ModuleInfo(ident)

    def tensor(self, ident: int) -> TensorInfo:
        """The tensor; a record of role "unknown" when it was never announced."""
        return self.tensors.get(ident) or TensorInfo(ident)

    def chosen_at(self, tensor: int) -> Site:
        """The line that chose a tensor for training: it switched requires_grad on again, or set it for this one and
        took it from others.  NOWHERE when none did."""
        info = self.tensor(tensor)
        if info.unfrozen_seq is not None:
            return info.unfrozen_site
        both = len(self._flagged_at.get(info.flag_site.key(), ())) == 2
        return info.flag_site if both and info.flag_site.file and info.requires_grad else NOWHERE

    def optimizer(self, ident: int) -> OptimizerInfo:
        """The optimizer; an empty record when its construction was not seen."""
        return self.optimizers.get(ident) or OptimizerInfo(ident)

    def backward(self, ident: int) -> ev.Backward | None:
        """A reverse pass: one of the last 500, or one standing in a gradient at some optimizer's latest step."""
        return self._backwards.get(ident) or self._pinned.get(ident)

    def call(self, ident: int) -> ev.ModuleCalled | None:
        """A watched forward call: one of the last 2000, and of the last 500 iterations."""
        return self._calls.get(ident)

    def consumers(self, backward: int) -> frozenset[int]:
        """Optimizers whose steps used contributions of this reverse pass so far."""
        return self._consumers.get(backward, frozenset())

    def source(self, site: Site) -> str:
        """The stripped source line of `site`; "" when the file cannot be read."""
        return source_line(site.file, site.line).strip()

    # ------------------------------------------------------------------------------------------- structure

    def parents(self, module: int) -> list[int]:
        """Modules that directly hold `module`; freed wrappers only when the module itself is gone."""
        info = self.module(module)
        live = [p for p, _ in info.parents if not self.module(p).freed]
        return live if live or not info.freed else [p for p, _ in info.parents]

    def ancestors(self, module: int) -> list[int]:
        """All modules that hold `module`, nearest first, without itself."""
        found: dict[int, None] = {}
        queue = [module]
        for current in queue:
            for parent in self.parents(current):
                if parent not in found and parent != module:
                    found[parent] = None
                    queue.append(parent)
        return list(found)

    def root(self, module: int) -> int:
        """The outermost module that holds `module` (by the first holder at each level), itself when none does."""
        seen = {module}
        while True:
            parents = [p for p in self.parents(module) if p not in seen]
            if not parents:
                return module
            module = parents[0]
            seen.add(module)

    def descendants(self, module: int) -> list[int]:
        """`module` and every registered submodule below it, each once, parents first."""
        found = {module: None}
        queue = [module]
        for current in queue:
            for child in self.module(current).children.values():
                if child not in found:
                    found[child] = None
                    queue.append(child)
        return list(found)

    def tensors_of(self, module: int, recurse: bool = True, role: str = "parameter") -> list[int]:
        """Registered tensors of a module, each once.  `role`: "parameter", "buffer" or "" for both."""
        found: dict[int, None] = {}
        for ident in self.descendants(module) if recurse else [module]:
            for tensor in self.module(ident).tensors.values():
                if not role or self.tensor(tensor).role == role:
                    found[tensor] = None
        return list(found)

    def owners(self, tensor: int) -> list[int]:
        """Modules in which the tensor is registered now."""
        return [m for m, _ in self.tensor(tensor).owners]

    def owner_roots(self, tensor: int) -> set[int]:
        """Outermost modules that hold the tensor."""
        return {self.root(m) for m in self.owners(tensor)}

    # ------------------------------------------------------------------------------------------- optimizers

    def holders(self, tensor: int) -> list[int]:
        """Optimizers in which the tensor sits."""
        return list(self._holders.get(tensor, ()))

    def trained(self, tensor: int) -> bool:
        """Whether an optimizer that has stepped holds the tensor."""
        return any(self.optimizers[o].steps > 0 for o in self._holders.get(tensor, ()) if o in self.optimizers)

    def trains(self, event: ev.Backward) -> bool:
        """Whether a reverse pass fills gradients, or the program asked for those of tensors that an optimizer holds."""
        return event.method == "backward" or any(tensor in self._holders for tensor in event.leaves)

    def trained_module(self, module: int) -> bool:
        """Whether some parameter in the module's tree is held by an optimizer that has stepped."""
        return any(self.trained(t) for t in self.tensors_of(module))

    def schedulers_of(self, optimizer: int) -> list[SchedulerInfo]:
        """Schedulers built on this optimizer."""
        return [s for s in self.schedulers.values() if s.made.optimizer == optimizer]

    # ------------------------------------------------------------------------------------------- copies

    def copy_links(self, module: int, *, related: bool = True) -> list[CopyLink]:
        """Copies into `module`, with counts; with `related` also into a module that holds it or that it holds."""
        wanted = {module}
        if related:
            wanted.update(self.ancestors(module))
            wanted.update(self.descendants(module))
        links = [link for ident in wanted for link in self._copies_into.get(ident, {}).values()]
        return sorted(links, key=lambda link: link.first.seq)

    def copies_into(self, module: int, *, related: bool = True) -> list[ev.Copied | ev.DeepCopied]:
        """The latest event of each distinct copy into `module`, oldest kind first (see `copy_links`)."""
        return [link.last for link in self.copy_links(module, related=related)]

    def all_copies(self) -> Iterator[CopyLink]:
        """Every distinct copy of the run."""
        yield from list(self._copies.values())

    # ------------------------------------------------------------------------------------------- names

    def name(self, tensor: int) -> str:
        """A readable name: "policy.0.weight"; for one that no module owns, its variable, or "free tensor 12 [3]"."""
        info = self.tensor(tensor)
        places = info.owners or info.former
        live = [place for place in places if not self.module(place[0]).freed] or places
        if live:
            module, local = live[0]
            return f"{self.module_name(module)}.{local}"
        if info.leaf is not None and info.leaf.attribute_of is not None:
            owner = info.leaf.attribute_of
            for attribute in self.module(owner).plain:
                if tensor in attribute.tensors:
                    return f"{self.module_name(owner)}.{attribute.name}"
        for module_info in self.modules.values():
            for attribute in module_info.plain:
                if tensor in attribute.tensors:
                    return f"{self.module_name(module_info.ident)}.{attribute.name}"
        return self._variable(info) or f"free tensor {tensor} {list(info.shape)}"

    def _variable(self, info: TensorInfo) -> str:
        """The variable that the line of a free tensor assigns, "" when it assigns none or makes several tensors."""
        if not info.site.file or any(t.site.key() == info.site.key() for t in self.tensors.values() if t is not info):
            return ""
        return assigned(source_line(info.site.file, info.site.line))

    def names(self, tensors: Iterable[int], limit: int = 3) -> str:
        """Names of several tensors in one phrase: "a.weight, a.bias and 4 more"."""
        idents = list(dict.fromkeys(tensors))
        shown = [self.name(t) for t in idents[:limit]]
        rest = len(idents) - len(shown)
        if rest:
            return f"{', '.join(shown)} and {rest} more"
        return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1] if shown else ""

    def module_name(self, module: int) -> str:
        """Readable name of a module: the variable it was assigned to, or its class, then the path below it."""
        path: list[str] = []
        seen = {module}
        while True:
            info = self.module(module)
            holders = self.parents(module)
            place = next(((p, n) for p, n in info.parents if p in holders and p not in seen), None)
            if place is None:
                break
            module, name = place
            seen.add(module)
            path.append(name)
        return ".".join([self._label(module), *reversed(path)])

    def _label(self, root: int) -> str:
        if self._labels is None:
            roots = [i for i in self.modules.values() if not self.parents(i.ident)]
            roots.sort(key=lambda i: i.freed)  # the variable names what is there now
            self._labels = {}
            taken: set[str] = set()
            for info in roots:
                label = root_label(info.site, info.short_cls, taken)
                taken.add(label)
                self._labels[info.ident] = label
        return self._labels.get(root) or self.module(root).short_cls

    # ------------------------------------------------------------------------------------------- events: structure

    def _run_started(self, event: ev.RunStarted) -> None:
        self.program = event

    def _run_ended(self, event: ev.RunEnded) -> None:
        self.ended = event

    def _module_made(self, event: ev.ModuleMade) -> None:
        info = self._module_record(event.module)
        info.cls, info.site, info.builtin = event.cls, event.site, event.builtin
        info.made_iteration, info.made_seq = event.iteration, event.seq
        self._labels = None

    def _child_registered(self, event: ev.ChildRegistered) -> None:
        parent = self._module_record(event.parent)
        before = parent.children.get(event.name)
        if before is not None and before != event.child:
            old = self._module_record(before)
            old.parents = [p for p in old.parents if p != (event.parent, event.name)]
        parent.children[event.name] = event.child
        child = self._module_record(event.child)
        if (event.parent, event.name) not in child.parents:
            child.parents.append((event.parent, event.name))
        child.attached_seq, child.attached_site = event.seq, event.site
        self._labels = None

    def _tensor_registered(self, event: ev.TensorRegistered) -> None:
        module = self._module_record(event.module)
        before = event.replaced if event.replaced is not None else module.tensors.get(event.name)
        module.tensors[event.name] = event.tensor
        info = self._tensor_record(event.tensor)
        info.role, info.shape, info.requires_grad = event.role, event.shape, event.requires_grad
        info.lent |= event.lent
        if not info.site.file:
            info.site, info.made_iteration, info.made_seq = event.site, event.iteration, event.seq
        place = (event.module, event.name)
        if place not in info.owners:
            info.owners.append(place)
        if before is not None and before != event.tensor:
            old = self._tensor_record(before)
            old.owners = [p for p in old.owners if p != place]
            old.former.append(place)
            old.replaced_by, old.replaced_site = event.tensor, event.site
            info.replaces = before

    def _leaf_seen(self, event: ev.LeafSeen) -> None:
        info = self._tensor_record(event.tensor)
        if info.role == "unknown":
            info.role = "leaf"
        info.shape, info.leaf, info.requires_grad = event.shape, event, True
        if not info.site.file:
            info.site, info.made_iteration, info.made_seq = event.site, event.iteration, event.seq

    def _plain_attributes(self, event: ev.PlainAttributes) -> None:
        self._module_record(event.module).plain = event.attributes

    def _module_called(self, event: ev.ModuleCalled) -> None:
        self._module_record(event.module).calls += 1
        self._calls[event.call] = event
        oldest = next(iter(self._calls.values()))
        while len(self._calls) > CALLS_KEPT or oldest.iteration < event.iteration - CALLS_AGE:
            self._calls.popitem(last=False)
            oldest = next(iter(self._calls.values()))

    def _module_used(self, event: ev.ModuleUsed) -> None:
        self._module_record(event.module).used_site = event.site

    def _module_freed(self, event: ev.ModuleFreed) -> None:
        info = self._module_record(event.module)
        info.freed, info.freed_iteration = True, event.iteration
        self._labels = None

    def _grad_flag_set(self, event: ev.GradFlagSet) -> None:
        self._flagged_at.setdefault(event.site.key(), set()).add(event.value)
        for tensor in event.tensors:
            self._flagged(self._tensor_record(tensor), event.value, event)

    def _gradient_in_view(self, event: ev.GradientInView) -> None:
        for tensor in event.tensors:
            self._tensor_record(tensor).gradient_in_view = True

    @staticmethod
    def _flagged(info: TensorInfo, value: bool, event: ev.Event) -> None:
        if value and not info.requires_grad:
            info.unfrozen_seq, info.unfrozen_site = event.seq, event.site
        info.flag_site = event.site
        info.requires_grad = value

    # ------------------------------------------------------------------------------------------- events: optimizers

    def _optimizer_made(self, event: ev.OptimizerMade) -> None:
        info = OptimizerInfo(event.optimizer, event.cls, event.site, made_iteration=event.iteration, made_seq=event.seq)
        self.optimizers[event.optimizer] = info
        for group in event.groups:
            self._hold(info, group)

    def _group_added(self, event: ev.GroupAdded) -> None:
        info = self.optimizers.setdefault(event.optimizer, OptimizerInfo(event.optimizer))
        if not event.group.tensors:
            info.empty_group = event.site
        self._hold(info, event.group)

    def _hold(self, info: OptimizerInfo, group: ev.Group) -> None:
        index = len(info.groups)
        info.groups.append(group)
        for tensor in group.tensors:
            info.tensors[tensor] = index
            holders = self._holders.setdefault(tensor, [])
            if info.ident not in holders:
                holders.append(info.ident)

    def _regroup(self, info: OptimizerInfo, now: set[int]) -> None:
        """What a step works on is what its optimizer holds: a program may have edited the lists of its groups by hand,
        as those do that replace a layer, or grow and prune what they fit."""
        new, gone = now - info.tensors.keys(), info.tensors.keys() - now
        place = next((info.tensors[t] for t in gone), max(len(info.groups) - 1, 0))
        for tensor in gone:
            del info.tensors[tensor]
            self._holders[tensor].remove(info.ident)
            if not self._holders[tensor]:
                del self._holders[tensor]
        for tensor in new:
            info.tensors[tensor] = place
            self._holders.setdefault(tensor, []).append(info.ident)

    def _step(self, event: ev.Step) -> None:
        info = self.optimizers.setdefault(event.optimizer, OptimizerInfo(event.optimizer))
        info.steps = max(info.steps + 1, event.index + 1)
        info.first_step = info.first_step or event
        info.last_step = event
        held = tuple(life.tensors for life in event.lives)
        if held and held != info.held:
            info.held = held
            self._regroup(info, {t for tensors in held for t in tensors})
        used: set[int] = set()
        for life in event.lives:
            for tensor in life.lenders:
                self._tensor_record(tensor).gradient_in_view = True
            fills = life.fills
            if len(fills) > FILLS_LOOKED_AT:
                used.add(fills[0].backward)  # the oldest is what a rule names
                fills = fills[-FILLS_LOOKED_AT:]
            used.update(fill.backward for fill in fills)
        for backward in used:
            known = self._consumers.get(backward)
            if known is None:  # of one optimizer, as nearly all are: one set for all of them
                self._consumers[backward] = self._alone.setdefault(event.optimizer, frozenset({event.optimizer}))
            elif event.optimizer not in known:
                self._consumers[backward] = known | {event.optimizer}
        while len(self._consumers) > 2 * BACKWARDS_KEPT:
            self._consumers.popitem(last=False)
        self._standing[event.optimizer] = frozenset(used)
        if self._pinned:
            standing = set().union(*self._standing.values())
            for backward in [b for b in self._pinned if b not in standing]:
                del self._pinned[backward]

    def _scheduler_made(self, event: ev.SchedulerMade) -> None:
        self.schedulers[event.scheduler] = SchedulerInfo(event)

    def _scheduler_step(self, event: ev.SchedulerStep) -> None:
        info = self.schedulers.get(event.scheduler)
        if info is not None:
            info.steps = max(info.steps + 1, event.index + 1)
            info.last_step = event

    def _loader_made(self, event: ev.LoaderMade) -> None:
        self.loaders[event.loader] = LoaderInfo(event)

    def _loader_epoch(self, event: ev.LoaderEpoch) -> None:
        info = self.loaders.get(event.loader)
        if info is not None:
            info.epochs = max(info.epochs + 1, event.epoch + 1)

    # ------------------------------------------------------------------------------------------- events: passes, copies

    def _backward(self, event: ev.Backward) -> None:
        if event.method == "backward":
            for tensor in event.leaves:
                known = self.tensors.get(tensor)
                if known is not None and not known.requires_grad:
                    self._flagged(known, True, event)  # it was unfrozen where nobody looked
                    known.unfrozen_site = NOWHERE
        self.detailed += event.detailed
        self._backwards[event.backward] = event
        if len(self._backwards) > BACKWARDS_KEPT:
            old, kept = self._backwards.popitem(last=False)
            if any(old in standing for standing in self._standing.values()):
                self._pinned[old] = kept
                if len(self._pinned) > BACKWARDS_KEPT:
                    self._pinned.popitem(last=False)

    def _copied(self, event: ev.Copied | ev.DeepCopied) -> None:
        how = event.how if isinstance(event, ev.Copied) else "deepcopy"
        key = (how, event.source, event.target, event.site.file, event.site.line)
        link = self._copies.get(key)
        if link is not None:
            link.last = event
            link.count += 1
            return
        link = CopyLink(event, event)
        self._copies[key] = link
        self._copies_into.setdefault(event.target, {})[key] = link
        if len(self._copies) > COPIES_KEPT:
            old_key, old = self._copies.popitem(last=False)
            self._copies_into.get(old.first.target, {}).pop(old_key, None)

    # ------------------------------------------------------------------------------------------- bounded records

    def _module_record(self, ident: int) -> ModuleInfo:
        info = self.modules.get(ident)
        if info is None:
            if len(self.modules) >= MODULES_KEPT:
                self._forget_modules()
            info = self.modules[ident] = ModuleInfo(ident)
        return info

    def _tensor_record(self, ident: int) -> TensorInfo:
        info = self.tensors.get(ident)
        if info is None:
            if len(self.tensors) >= TENSORS_KEPT:
                self._forget_tensors()
            info = self.tensors[ident] = TensorInfo(ident)
        return info

    def _forget_modules(self) -> None:
        gone = [
            i for i, m in self.modules.items() if m.freed and not any(t in self._holders for t in m.tensors.values())
        ]
        for ident in gone[: max(len(gone) // 2, 1)]:
            for tensor in self.modules.pop(ident).tensors.values():
                if self.tensors.get(tensor) is not None and self.owners(tensor) == [ident]:
                    del self.tensors[tensor]
            self._copies_into.pop(ident, None)

    def _forget_tensors(self) -> None:
        free = [i for i, t in self.tensors.items() if not t.owners and i not in self._holders]
        for ident in free[: max(len(free) // 2, 1)]:
            del self.tensors[ident]


__all__ = ["CopyLink", "LoaderInfo", "ModuleInfo", "OptimizerInfo", "SchedulerInfo", "TensorInfo", "World"]
