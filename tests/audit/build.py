"""Synthetic runs for tests of rules: written like a training program, turned into the events that a watch would record.

    run = Run()
    net = run.module("net", line=3, tensors=2)
    opt = run.optimizer(net, line=4)
    for _ in range(10):
        run.zero_grad(opt, line=6)
        run.forward(net, line=7)
        run.backward(net, line=8)
        run.step(opt, line=9)
    findings = judge(g01_zero_grad_missing, run)

`Run` keeps what stands in each `.grad` as torch does, so that `Step.lives` and `Clear.dropped` follow from the program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gradledger.audit.rule import Finding
from gradledger.audit.world import World
from gradledger.core import events as ev
from gradledger.core.site import Frame, Site

FILE = "train.py"


def at(line: int, *callers: int, function: str = "main") -> Site:
    """A site in the synthetic program, called from the lines `callers` (nearest first)."""
    return Site(FILE, line, function, 1, False, tuple(Frame(FILE, c, "main") for c in callers))


@dataclass
class Net:
    """A module of the synthetic program and the ids of its tensors."""

    ident: int
    tensors: tuple[int, ...]


@dataclass
class _Leaf:
    fills: list[list[int]] = field(default_factory=list)
    assigned: bool = False
    zeroed: bool = False
    read: bool = False


def mean_term(factor: float = 1.0, *, elements: int = 32, reduction: str = "mean", **more: Any) -> ev.Term:
    """A loss term reduced over `elements` elements."""
    values: dict[str, Any] = {
        "op": "mse_loss", "site": at(90), "times": 1, "has_graph": True, "kind": "tensor", "value": 1.0,
        "batch": elements,
    }  # fmt: skip
    return ev.Term(**{**values, "factor": factor, "reduction": reduction, "elements": elements, **more})


class Run:
    """The program and its events so far."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.iteration = 0
        self._seq = 0
        self._next: defaultdict[str, int] = defaultdict(int)
        self._leaves: defaultdict[int, _Leaf] = defaultdict(_Leaf)
        self._frozen: set[int] = set()
        self._held: dict[int, list[int]] = {}
        self._steps: defaultdict[int, int] = defaultdict(int)
        self._calls: list[ev.CallRef] = []
        self.emit(ev.RunStarted, at(0), program=FILE)

    # ------------------------------------------------------------------ making things

    def emit(self, cls: type[ev.Event], site: Site, /, **values: Any) -> Any:
        self._seq += 1
        event = cls(seq=self._seq, iteration=self.iteration, site=site, **values)
        self.events.append(event)
        if isinstance(event, ev.GroupAdded):
            self._held[event.optimizer] += event.group.tensors
        return event

    def new(self, kind: str) -> int:
        self._next[kind] += 1
        return self._next[kind]

    def module(
        self, name: str, line: int, tensors: int = 2, *, cls: str = "Net", parent: Net | None = None,
        role: str = "parameter",
    ) -> Net:  # fmt: skip
        """A module with parameters (or buffers); with `parent` it becomes its child `name`."""
        ident = self.new("module")
        self.emit(ev.ModuleMade, at(line), module=ident, cls=cls, builtin=False)
        ids = []
        for i in range(tensors):
            tensor = self.new("tensor")
            ids.append(tensor)
            self.emit(
                ev.TensorRegistered, at(line), tensor=tensor, module=ident, name=f"w{i}", role=role,
                shape=(4, 4), requires_grad=True,
            )  # fmt: skip
        net = Net(ident, tuple(ids))
        if parent is not None:
            self.attach(parent, net, name, line)
        return net

    def attach(self, parent: Net, child: Net, name: str, line: int) -> None:
        """`child` becomes the submodule `name` of `parent`."""
        self.emit(ev.ChildRegistered, at(line), parent=parent.ident, child=child.ident, name=name)

    def leaf(self, line: int, shape: tuple[int, ...] = (1,), **values: Any) -> int:
        """A free tensor that requires grad."""
        tensor = self.new("tensor")
        self.emit(
            ev.LeafSeen, at(line), tensor=tensor, shape=shape, is_parameter=values.pop("is_parameter", False), **values
        )
        return tensor

    def optimizer(self, *held: Net | int, line: int, cls: str = "Adam") -> int:
        """An optimizer over modules and free tensors, one group."""
        ident = self.new("optimizer")
        self._held[ident] = list(_ids(held))
        self.emit(
            ev.OptimizerMade, at(line), optimizer=ident, cls=cls, groups=(ev.Group(tuple(self._held[ident]), 1e-3),)
        )
        return ident

    def freeze(self, *what: Net | int, line: int, value: bool = False) -> None:
        """Set requires_grad."""
        ids = list(_ids(what))
        (self._frozen.difference_update if value else self._frozen.update)(ids)
        self.emit(ev.GradFlagSet, at(line), tensors=tuple(ids), value=value, changed=len(ids))

    # ------------------------------------------------------------------ running

    def forward(self, net: Net, line: int, *, graph: bool = True, batch: int = 32) -> ev.CallRef:
        """A forward call by the program itself."""
        call = self.new("call")
        self.emit(
            ev.ModuleCalled, at(line), call=call, module=net.ident, training=True, grad_on=graph,
            output_has_graph=graph, inputs_need_grad=False, batch=batch,
        )  # fmt: skip
        ref = ev.CallRef(call, net.ident, at(line), graph, graph, True)
        if graph:
            self._calls.append(ref)
        return ref

    def backward(
        self, *leaves: Net | int, line: int, callers: tuple[int, ...] = (), terms: tuple[ev.Term, ...] | None = None,
        calls: Iterable[ev.CallRef] | None = None, order: Iterable[Net | int] | None = None, **values: Any,
    ) -> int:  # fmt: skip
        """`loss.backward()` that fills `leaves`.  `calls`: the forward calls it walks (all since the last one);
        `order`: its leaves in the order in which the walk finds them."""
        ident = self.new("backward")
        ids = tuple(t for t in _ids(leaves) if t not in self._frozen)
        walked = self._calls if calls is None else list(calls)
        for tensor in ids:
            leaf = self._leaves[tensor]
            leaf.fills.append([ident, 0])
            leaf.zeroed = leaf.read = False
        self.emit(
            ev.Backward, at(line, *callers), **{
                "backward": ident, "method": "backward", "leaves": ids, "detailed": True,
                "terms": (mean_term(),) if terms is None else terms, "calls": tuple(walked),
                "reached": tuple(_ids(order)) if order is not None else ids, "root_shape": (), "root_age": 0, **values,
            },
        )  # fmt: skip
        if calls is None:
            self._calls = []
        return ident

    def read(self, *what: Net | int, line: int) -> None:
        """The program reads `.grad`."""
        ids = tuple(_ids(what))
        for tensor in ids:
            self._leaves[tensor].read = True
        self.emit(ev.GradientsRead, at(line), tensors=ids)

    def clear(self, *what: Net | int, line: int, how: str = "none", to_none: bool = True, **owner: int) -> None:
        """Clear the gradients of these tensors."""
        ids = [t for t in _ids(what) if self._leaves[t].fills or self._leaves[t].assigned or self._leaves[t].zeroed]
        groups: defaultdict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for tensor in ids:
            leaf = self._leaves[tensor]
            for backward, consumed in leaf.fills:
                groups[(backward, consumed, leaf.read)].append(tensor)
            self._leaves[tensor] = _Leaf(zeroed=not to_none)
        dropped = tuple(ev.Dropped(b, tuple(t), c, r) for (b, c, r), t in sorted(groups.items()))
        self.emit(
            ev.Clear, at(line), how=how, optimizer=owner.get("optimizer"), module=owner.get("module"),
            tensors=tuple(ids), dropped=dropped,
        )  # fmt: skip

    def zero_grad(self, optimizer: int, line: int, *, to_none: bool = True) -> None:
        """`optimizer.zero_grad()`."""
        self.clear(*self._held[optimizer], line=line, how="zero_grad", to_none=to_none, optimizer=optimizer)

    def step(
        self, optimizer: int, line: int, *, closure: bool = False, rescaled: Iterable[Net | int] = (),
        moved: Iterable[Net | int] = (),
    ) -> None:  # fmt: skip
        """`optimizer.step()`.  `rescaled`, `moved`: tensors whose `Life` says so."""
        touched, written = set(_ids(rescaled)), set(_ids(moved))
        groups: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for tensor in self._held[optimizer]:
            leaf = self._leaves[tensor]
            grad = "filled" if leaf.fills else "assigned" if leaf.assigned else "zero" if leaf.zeroed else "none"
            fills = tuple(ev.Fill(b, c) for b, c in leaf.fills)
            groups[(grad, fills, tensor in self._frozen, tensor in written, tensor in touched)].append(tensor)
        lives = tuple(
            ev.Life(tuple(t), grad, fills, frozen, True if wrote else None, rescaled=scaled)
            for (grad, fills, frozen, wrote, scaled), t in groups.items()
        )
        self.emit(
            ev.Step, at(line), optimizer=optimizer, index=self._steps[optimizer], lives=lives, closure=closure
        )  # fmt: skip
        self._steps[optimizer] += 1
        for tensor in self._held[optimizer]:
            for fill in self._leaves[tensor].fills:
                fill[1] += 1
        self.iteration += 1

    def assign(self, *what: Net | int) -> None:
        """`p.grad = g` by the program."""
        for tensor in _ids(what):
            self._leaves[tensor] = _Leaf(assigned=True)

    def loader(self, line: int, length: int, batch_size: int = 4) -> int:
        """A DataLoader."""
        ident = self.new("loader")
        self.emit(
            ev.LoaderMade, at(line), loader=ident, length=length, batch_size=batch_size, shuffled=True, workers=0,
            drop_last=False,
        )  # fmt: skip
        return ident

    def epoch(self, loader: int, line: int, index: int) -> None:
        """A new pass over a loader."""
        pending = {b for leaf in self._leaves.values() for b, c in leaf.fills if c == 0}
        self.emit(ev.LoaderEpoch, at(line), loader=loader, epoch=index, pending=tuple(sorted(pending)))

    def copied(self, source: Net, target: Net, line: int, *, how: str = "load_state_dict", tau: float = 1.0) -> None:
        """`target` takes the values of `source`."""
        self.emit(
            ev.Copied, at(line), how=how, source=source.ident, target=target.ident,
            pairs=tuple(zip(source.tensors, target.tensors, strict=True)), tau=tau, changed=True,
        )  # fmt: skip

    def end(self, *, exception: str = "", message: str = "") -> None:
        """The program ends."""
        self.emit(ev.RunEnded, at(0), exit_code=1 if exception else 0, exception=exception, message=message)


def _ids(what: Iterable[Net | int]) -> Iterable[int]:
    for item in what:
        if isinstance(item, Net):
            yield from item.tensors
        else:
            yield item


def judge(rule: ModuleType, run: Run) -> list[Finding]:
    """Findings of one rule over a synthetic run."""
    world, state = World(), rule.init()
    for event in run.events:
        world.apply(event)
        rule.update(state, event, world)
    found: list[Finding] = rule.finish(state, world)
    return found


def lines(finding: Finding) -> set[int]:
    """The line to edit and the related lines."""
    return {finding.site.line, *(site.line for site in finding.related)}
