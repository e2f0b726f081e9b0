"""Dozing: while iterations repeat exactly, only the order of the calls is checked, not what stands in each gradient.

A long steady run spends its time in iterations that the recorder has told many times and now only counts.  For those
it is enough to see that the same calls (clear, backward, step, scheduler, clip, ...) come from the same instructions in
the same order.  The first call that differs, any other fact, a non-finite loss, or the next sample ends the doze: the
histories of the leaves are then brought up to date by replaying what the repeated iterations did, and the iteration is
watched and told as ever, with the calls of it that were let pass.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gradledger.core.events import Backward, Clear, Event, Step
from gradledger.core.site import Site

if TYPE_CHECKING:
    from gradledger.ledger._lifecycle import Lifecycle

Held = tuple[type[Event], Site, tuple[Any, ...], dict[str, Any], tuple[Any, ...]]  # a fact not told yet, and its key
MAX_TEMPLATES = 16
REPLAYED = 8  # iterations replayed at waking: as far back as ages of contributions are told apart


@dataclass(slots=True)
class Count:
    """Iterations that are alike: all so far, and those only counted since one of them was told last."""

    seen: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Template:
    """One iteration as it repeats: the keys of its calls in order, the facts they were, and how often it came."""

    keys: tuple[tuple[Any, ...], ...]
    facts: tuple[Held, ...]
    count: Count


@dataclass(frozen=True, slots=True)
class Woken:
    """Facts that were let pass: those of the last whole iteration (counted there), and of the open one."""

    before: list[Held]
    count: Count | None
    open: list[Held]


class Doze:
    """Knows the templates; `asleep` between two iterations or within one that has matched so far."""

    def __init__(self) -> None:
        self.asleep = False
        self.forbidden = False  # the program does something that the keys do not show (closures, nested passes)
        self._templates: dict[tuple[Any, ...], Template] = {}
        self._matching: list[Template] = []
        self._position = 0
        self._passes: list[int] = []
        self._recent: deque[tuple[Template, tuple[int, ...]]] = deque(maxlen=REPLAYED)

    def learn(self, signature: tuple[Any, ...], facts: list[Held], count: Count) -> bool:
        """An iteration that is only counted has ended; whether one may doze from here on."""
        if self.forbidden or (signature not in self._templates and len(self._templates) >= MAX_TEMPLATES):
            return False
        self._templates[signature] = Template(tuple([f[4] for f in facts]), tuple(facts), count)
        return True

    def begin(self) -> None:
        """Fall asleep, at the start of an iteration."""
        self.asleep = True
        self._recent.clear()
        self._next()

    def _next(self) -> None:
        self._matching = list(self._templates.values())
        self._position = 0
        self._passes = []

    def expects(self, key: tuple[Any, ...], backward: int | None = None) -> bool:
        """Whether this call comes next in an iteration like those known; `backward`: the number of a reverse pass."""
        at, matching = self._position, self._matching
        if len(matching) == 1:  # as nearly always
            keys = matching[0].keys
            if len(keys) <= at or keys[at] != key:
                return False
        else:
            still = [t for t in matching if len(t.keys) > at and t.keys[at] == key]
            if not still:
                return False
            self._matching = still
        self._position = at + 1
        if backward is not None:
            self._passes.append(backward)
        return True

    def ended(self) -> Count | None:
        """An iteration is over: the count of those that it was like, or None when it stopped short of them."""
        for template in self._matching:
            if len(template.keys) == self._position:
                self._recent.append((template, tuple(self._passes)))
                self._next()
                return template.count
        return None

    def wake(self, lifecycle: Lifecycle) -> Woken:
        """End the doze: histories are brought up to date."""
        self.asleep = False
        before: list[Held] = []
        for template, passes in self._recent:
            before = _renumbered(template.facts, passes)
            _replay(lifecycle, before)
        count = self._recent[-1][0].count if self._recent else None
        open_facts: list[Held] = []
        if self._position and self._matching:
            open_facts = _renumbered(self._matching[0].facts[: self._position], tuple(self._passes))
            _replay(lifecycle, open_facts)
        self._recent.clear()
        lifecycle.refresh()
        return Woken(before, count, open_facts)


def _renumbered(facts: tuple[Held, ...], passes: tuple[int, ...]) -> list[Held]:
    """The facts of a template with the numbers of the reverse passes that really ran."""
    first = next((f[3]["backward"] for f in facts if f[0] is Backward), None)
    shift = passes[0] - first if passes and first is not None else 0
    result: list[Held] = []
    for cls, site, signature, values, key in facts:
        values = dict(values)
        if cls is Backward:
            values["backward"] += shift
        elif cls is Clear:
            values["dropped"] = tuple(replace(d, backward=d.backward + shift) for d in values["dropped"])
        result.append((cls, site, signature, values, key))
    return result


def _replay(lifecycle: Lifecycle, facts: list[Held]) -> None:
    for cls, _, _, values, _ in facts:
        if cls is Backward and values["method"] == "backward":
            for number in values["leaves"]:
                if (leaf := lifecycle.leaves.get(number)) is not None:
                    leaf.add(values["backward"])
        elif cls is Clear:
            for number in values["tensors"]:
                if (leaf := lifecycle.leaves.get(number)) is not None:
                    leaf.empty()
        elif cls is Step:
            for life in values["lives"]:
                for number in () if life.frozen else life.tensors:
                    if (leaf := lifecycle.leaves.get(number)) is not None:
                        for fill in leaf.fills:
                            fill[1] += 1
