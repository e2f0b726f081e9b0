"""Which modules are targets, teachers or references of others, and how their outputs meet in losses.

Roles come from relations between events, not from names: a copy that is written from another module, a deep copy, and
the two sides of a comparison.  The rules of the T series keep a `Watch` as their state and ask it when the run is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gradledger.audit.world import CopyLink, World
from gradledger.core.events import Backward, CallRef, Comparison, Copied, DeepCopied, Event, Operand
from gradledger.core.site import Site

LISTENS: tuple[type[Event], ...] = (Backward, Comparison)

_MEETINGS = 512  # distinct ones kept
_LEAF_SETS = 128


@dataclass(slots=True)
class Meeting:
    """Outputs of two module calls that meet in a comparison; `target` is the side that the other is drawn towards.

    `learner`, `target`: module ids.  `bootstrap`: the target's side is (something) + discount * output.
    `target_graph`: gradient flows into the target's call.  `symmetric`: neither side is marked as target (both carry a
    graph, no bootstrap), the pair stands once in each order.  `selection`: the learner's side is a plain selection of
    its output.  `sole`: no other module's graph is on the target's side.  `one_call`: both sides are of one call.
    `feeds`: the module that gives the target's side, where `target` only gives that one its input.
    Sites: the comparison, the expression of the target's side, the two calls.
    """

    learner: int
    target: int
    bootstrap: bool
    target_graph: bool
    symmetric: bool
    selection: bool
    sole: bool
    one_call: bool
    discount: float | None
    op: str
    site: Site
    operand_site: Site
    operand_op: str
    target_site: Site
    learner_site: Site
    made_from: tuple[str, ...]
    first_iteration: int
    last_iteration: int = 0
    count: int = 0
    feeds: int | None = None


@dataclass(frozen=True, slots=True)
class Behind:
    """A call of one module whose output went into a bootstrapped target's: a target policy, a target encoder."""

    call: CallRef
    target: CallRef
    site: Site
    iteration: int


@dataclass(slots=True)
class LeafSet:
    """Reverse passes that filled the same tensors: how many, the first, and the first that was watched in detail."""

    first: Backward
    detailed: Backward | None = None
    last_iteration: int = 0
    count: int = 0


@dataclass(slots=True)
class Watch:
    """What the T rules remember of a run.  Bounded: distinct meetings and distinct sets of filled tensors only."""

    meetings: dict[tuple[object, ...], Meeting] = field(default_factory=dict)
    fills: dict[tuple[int, ...], LeafSet] = field(default_factory=dict)
    terms: dict[frozenset[int], Backward] = field(default_factory=dict)  # tensors that one term of a loss reached
    asked: dict[frozenset[int], Backward] = field(default_factory=dict)  # the same, of `autograd.grad`
    behind: dict[int, Behind] = field(default_factory=dict)  # by module, the first time
    judged: dict[int, int] = field(
        default_factory=dict
    )  # module -> comparisons with data in which its output has a graph

    def take(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, Comparison):
            self._comparison(event)
        elif isinstance(event, Backward) and event.leaves:
            if event.method == "backward":
                self._terms(event, self.terms)
            elif not event.create_graph:
                self._terms(event, self.asked)
            kept = self.fills.get(event.leaves)
            if kept is None:
                if len(self.fills) >= _LEAF_SETS:
                    return
                kept = self.fills[event.leaves] = LeafSet(event)
            kept.count += event.weight
            kept.last_iteration = event.iteration
            if kept.detailed is None and event.detailed:
                kept.detailed = event

    def _terms(self, event: Backward, kept: dict[frozenset[int], Backward]) -> None:
        for leaves in [t.leaves for t in event.terms if t.leaves] or [event.leaves]:
            key = frozenset(leaves)
            if event.method != "backward":
                key &= set(event.leaves)  # what was asked for
            if key in kept or len(kept) < _LEAF_SETS:
                kept[key] = event

    def alone(self, tensors: set[int], others: set[int]) -> bool:
        """Whether some term of a loss reached some of `tensors` and none of `others`: they have a loss of their own."""
        return alone(self.terms, tensors, others)

    def _comparison(self, event: Comparison) -> None:
        left, right = event.left, event.right
        if left.bootstrap != right.bootstrap:
            sides = [(right, left)] if left.bootstrap else [(left, right)]
        elif left.has_graph != right.has_graph:
            sides = [(right, left)] if right.has_graph else [(left, right)]
        else:
            sides = [(left, right), (right, left)]
        for learner, target in sides:
            for call in target.behind if len(self.behind) < _MEETINGS else ():
                self.behind.setdefault(call.module, Behind(call, target.calls[0], event.site, event.iteration))
            for mine in learner.calls:
                # `loss(q - y, zeros)`: the difference itself was the comparison; what it is held against is no data
                if mine.graph and learner.op != "sub" and (len(sides) == 1 or not target.calls):
                    self.judged[mine.module] = self.judged.get(mine.module, 0) + 1
                for theirs in target.calls:
                    one = mine.call == theirs.call
                    # Of one call, other rows may be the target: values of a trajectory, states and next states.
                    if mine.graph and (not one or (target.bootstrap and theirs.graph and learner.selection)):
                        self._meet(event, learner, mine, target, theirs, len(sides) == 2)

    def _meet(
        self, event: Comparison, learner: Operand, mine: CallRef, target: Operand, theirs: CallRef, symmetric: bool
    ) -> None:
        key = (mine.module, theirs.module, target.bootstrap, theirs.graph, event.site.key(), theirs.site.key())
        met = self.meetings.get(key)
        if met is None:
            if len(self.meetings) >= _MEETINGS:
                return
            met = self.meetings[key] = Meeting(
                learner=mine.module,
                target=theirs.module,
                bootstrap=target.bootstrap,
                target_graph=theirs.graph,
                symmetric=symmetric,
                selection=learner.selection,
                sole=all(c.module == theirs.module for c in target.calls if c.graph),
                one_call=mine.call == theirs.call,
                discount=target.discount,
                op=event.op,
                site=event.site,
                operand_site=target.site,
                operand_op=target.op,
                target_site=theirs.site,
                learner_site=mine.site,
                made_from=(*learner.made_from, *target.made_from),
                first_iteration=event.iteration,
            )
        met.count += 1
        met.last_iteration = event.iteration


def alone(terms: Iterable[frozenset[int]], tensors: set[int], others: set[int]) -> bool:
    """Whether one of `terms` holds some of `tensors` and none of `others`."""
    return any(not key.isdisjoint(tensors) and key.isdisjoint(others) for key in terms)


# ----------------------------------------------------------------------------------------------- relations of modules


@dataclass(frozen=True, slots=True)
class Link:
    """`target` was written from `source`, or is a deep copy of it.  `repeated`: more than once (the first
    deep copy counts), and also while training went on."""

    source: int
    target: int
    pairs: tuple[tuple[int, int], ...]
    count: int
    repeated: bool
    deep: bool
    site: Site
    how: str
    last_iteration: int
    tau: float | None = None


def links(world: World) -> list[Link]:
    """Every copy from one module into another (a module into itself is left out), oldest first."""
    kept = [link for link in world.all_copies() if link.first.source != link.first.target and not _same(link)]
    copies = Counter[tuple[int, int]]()
    for link in kept:
        copies[link.first.source, link.first.target] += link.count
    return [_link(link, copies[link.first.source, link.first.target]) for link in kept]


def _same(link: CopyLink) -> bool:
    return isinstance(link.first, Copied) and link.first.same


def _link(link: CopyLink, copies: int) -> Link:
    first, last = link.first, link.last
    deep = isinstance(first, DeepCopied)
    pairs = last.pairs if len(last.pairs) >= len(first.pairs) else first.pairs
    return Link(
        source=first.source,
        target=first.target,
        pairs=pairs,
        count=link.count,
        repeated=not deep and last.iteration > 0 and copies > 1,
        deep=deep,
        site=first.site,
        how=first.how if isinstance(first, Copied) else "deepcopy",
        last_iteration=last.iteration,
        tau=last.tau if isinstance(last, Copied) else None,
    )


def tree(module: int, world: World) -> set[int]:
    """Parameters of a module and everything below it."""
    return set(world.tensors_of(module))


def related(target: int, source: int, world: World, known: Iterable[Link]) -> list[Link]:
    """Links by which (a part of) `target` was written from, or copied off, (a part of) `source`.  Directed."""
    mine, theirs = tree(target, world), tree(source, world)
    found = []
    for link in known:
        if link.pairs:
            if any(t in mine and s in theirs for s, t in link.pairs):
                found.append(link)
        elif _covers(link.target, target, world) and _covers(link.source, source, world):
            found.append(link)
    return found


def _covers(one: int, other: int, world: World) -> bool:
    return one == other or one in world.ancestors(other) or other in world.ancestors(one)


def kin(one: int, other: int, world: World, known: Iterable[Link]) -> list[Link]:
    """Links between two modules in either direction."""
    every = list(known)
    return related(one, other, world, every) or related(other, one, world, every)


def fed(watch: Watch, known: Iterable[Link], world: World) -> Iterator[Meeting]:
    """Copies of networks whose output goes into a bootstrapped target's network: each as if it met its source.

    The source is one that is trained through the network that has this target, as a policy is through its critic.
    """
    for link in known:
        seen = watch.behind.get(link.target)
        if seen is not None and _trained_through(link.source, seen.target.module, watch, world):
            yield Meeting(
                learner=link.source,
                target=link.target,
                bootstrap=True,
                target_graph=False,
                symmetric=False,
                selection=False,
                sole=True,
                one_call=False,
                discount=None,
                op="",
                site=seen.site,
                operand_site=seen.target.site,
                operand_op="",
                target_site=seen.call.site,
                learner_site=link.site,
                made_from=(),
                first_iteration=seen.iteration,
                feeds=seen.target.module,
            )


def _trained_through(module: int, target: int, watch: Watch, world: World) -> bool:
    """Whether a reverse pass went through a network that is drawn towards `target`, and on into `module`."""
    learners = {m.learner for m in watch.meetings.values() if m.bootstrap and m.target == target}
    mine = tree(module, world)
    for leaves, fill in watch.fills.items():
        calls = fill.detailed.calls if fill.detailed is not None else ()
        if not mine.isdisjoint(leaves) and any(c.module in learners and c.module != module for c in calls):
            return True
    return False


def frozen(module: int, world: World) -> bool:
    """Whether no parameter of the module takes gradients."""
    return not any(world.tensor(t).requires_grad for t in world.tensors_of(module))


def filled_together(link: Link, watch: Watch) -> Iterator[tuple[LeafSet, set[int]]]:
    """Sets of filled tensors that hold both tensors of the link's target and the sources they are written from."""
    sources, targets = {s for s, _ in link.pairs}, {t for _, t in link.pairs}
    for leaves, seen in watch.fills.items():
        if targets.isdisjoint(leaves) or sources.isdisjoint(leaves):
            continue
        held = set(leaves)
        both = {t for s, t in link.pairs if s in held and t in held and s != t}
        if both:
            yield seen, both


def call_into(backward: Backward | None, tensors: set[int], world: World) -> CallRef | None:
    """The smallest module call of a detailed reverse pass whose module holds some of `tensors`."""
    best: tuple[int, CallRef] | None = None
    for call in backward.calls if backward is not None else ():
        mine = tree(call.module, world)
        if mine & tensors and (best is None or len(mine) < best[0]):
            best = (len(mine), call)
    return best[1] if best is not None else None


def made_at(module: int, world: World) -> Site:
    """Where a module (or the outermost one that holds it) was made."""
    site = world.module(module).site
    return site if site.file else world.module(world.root(module)).site
