"""A run against a stored good run of the same program: which relations differ, and which of them first.

    >>> comparison = compare(profile_of(good_events), profile_of(events))

Parameters are told by name; where a variable was renamed, by the end of the name, shape and order.  Values that follow
from chance (losses, weights) are not compared; norms of gradients are, by a factor of two and more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gradledger.audit._phrases import number, times
from gradledger.audit.profile import Built, Profile, Profiler
from gradledger.audit.world import World
from gradledger.core.events import Event
from gradledger.core.site import NOWHERE, Site

FACTOR = 2.0  # norms of gradients that differ by less are alike
ALIKE = 0.05  # rates that differ by less are alike
SAME_SEED = 1e-5  # relative difference of norms up to which two runs go together


@dataclass(frozen=True, slots=True)
class Difference:
    """One relation that differs.  `what`: gradient, cycle, norm, optimizer, parameters, mode, target, scheduler;
    `there`, `here`: in words, of the good run and of this one; `iteration`: the first in which it shows (None: not tied
    to one); `site`: the line of this run, or of the good one where this one has none."""

    what: str
    subject: str
    there: str
    here: str
    iteration: int | None = None
    site: Site = NOWHERE


@dataclass(frozen=True, slots=True)
class Comparison:
    """`good`: which run this one was compared with; `differences`: what showed first comes first; `compared`: how many
    parameters stand in both; `together`: iterations in which all norms of gradients are equal, None when not one."""

    good: str
    differences: tuple[Difference, ...]
    compared: int
    together: int | None = None


def profile_of(events: Iterable[Event]) -> Profile:
    """The profile of a recorded run."""
    world, profiler = World(), Profiler()
    for event in events:
        world.apply(event)
        profiler.put(event, world)
    return profiler.profile(world)


def compare(good: Profile, here: Profile, *, name: str = "") -> Comparison:
    """What differs in `here` from `good`.  `name`: of the good run, for the report."""
    match = _matches(good, here)
    found = [d for look in _LOOKS for d in look(good, here, match)]
    order = {what: n for n, what in enumerate(("parameters", "optimizer", "gradient", "cycle", "mode", "norm"))}
    found.sort(key=lambda d: (d.iteration if d.iteration is not None else math.inf, order.get(d.what, 9)))
    return Comparison(name or good.program, tuple(found), len(match), _together(good, here, match))


def _matches(good: Profile, here: Profile) -> dict[str, str]:
    """Name there -> name here."""
    match = {
        n: n
        for n, (shape, _) in good.parameters.items()
        if here.parameters.get(n, ((), False))[0] == shape and n in here.parameters
    }
    left = [n for n in here.parameters if n not in match]
    for there in good.parameters:
        if there in match:
            continue
        shape, end = good.parameters[there][0], there.rpartition(".")[2]
        same = next((n for n in left if here.parameters[n][0] == shape and n.rpartition(".")[2] == end), None)
        if same is not None:
            match[there] = same
            left.remove(same)
    return match


def _parameters(good: Profile, here: Profile, match: dict[str, str]) -> Iterable[Difference]:
    taken = set(match.values())
    gone = [n for n in good.parameters if n not in match]
    new = [n for n in here.parameters if n not in taken]
    if gone or new:
        yield Difference(
            "parameters", _some(gone or new), _count(len(gone), "only there"), _count(len(new), "only here")
        )
    flags = [n for n, m in match.items() if good.parameters[n][1] != here.parameters[m][1]]
    for value in (True, False):
        names = [match[n] for n in flags if good.parameters[n][1] is value]
        if names:
            words = ("requires grad", "frozen") if value else ("frozen", "requires grad")
            yield Difference("parameters", _some(names), *words)


def _gradients(good: Profile, here: Profile, match: dict[str, str]) -> Iterable[Difference]:
    lost = [n for n, m in match.items() if n in good.received and m not in here.received]
    for iteration in sorted({good.received[n].iteration for n in lost}):
        names = [n for n in lost if good.received[n].iteration == iteration]
        site = here.pass_site if here.pass_site.file else good.received[names[0]].site
        yield Difference("gradient", _some([match[n] for n in names]), "receives", "never", iteration, site)
    new = [n for n, m in match.items() if n not in good.received and m in here.received]
    if new:
        first = min((here.received[match[n]] for n in new), key=lambda r: r.iteration)
        yield Difference("gradient", _some([match[n] for n in new]), "never", "receives", first.iteration, first.site)
    free = ([n for n in p.received if n not in p.parameters] for p in (good, here))
    there, now = (sorted(names) for names in free)
    if there != now:
        where = next((here.received[n].site for n in now if n not in there), here.pass_site)
        yield Difference("gradient", "leaves that no module holds", str(len(there)), str(len(now)), None, where)


def _cycle(good: Profile, here: Profile, match: dict[str, str]) -> Iterable[Difference]:
    def words(p: Profile) -> str:
        if not p.steps:
            return f"{times(p.passes, 'pass')}, no step"
        return f"{_rate(p.clears / p.steps, 'clear')}, {_rate(p.passes / p.steps, 'pass')} a step"

    def rates(p: Profile) -> tuple[float, ...]:
        return (p.clears / p.steps, p.passes / p.steps) if p.steps else ()

    a, b = rates(good), rates(here)
    same = len(a) == len(b) and all(abs(x - y) <= ALIKE * max(x, y) for x, y in zip(a, b, strict=True))
    first = next(
        (
            i
            for i in sorted(good.cycles.keys() & here.cycles.keys())
            if (g := good.cycles[i])
            and (h := here.cycles[i])
            and (g.clears, g.passes, g.old) != (h.clears, h.passes, h.old)
        ),
        None,
    )
    if same and first is None:
        return
    if first is None:
        yield Difference("cycle", "clear, fill, step", words(good), words(here), None, here.step_site)
        return
    g, h = good.cycles[first], here.cycles[first]
    site = h.site if h.site.file else g.site
    if not same:
        yield Difference("cycle", "clear, fill, step", words(good), words(here), first, site)
    if g.old != h.old:
        yield Difference(
            "cycle", "contributions used before", f"{g.old} at the step", f"{h.old} at the step", first, here.step_site
        )
    elif same:
        counts = [f"{times(c.clears, 'clear')}, {times(c.passes, 'pass')}" for c in (g, h)]
        yield Difference("cycle", f"iteration {first}", counts[0], counts[1], first, site)


def _norms(good: Profile, here: Profile, match: dict[str, str]) -> Iterable[Difference]:
    factors: dict[str, list[tuple[int, float, float, float]]] = {}
    for (iteration, name), there in good.norms.items():
        now = here.norms.get((iteration, match.get(name, "")))
        if now is not None and there > 0 and now > 0 and math.isfinite(there) and math.isfinite(now):
            factors.setdefault(match[name], []).append((iteration, now / there, there, now))
    off: dict[str, tuple[float, tuple[int, float, float, float]]] = {}
    for name, seen in factors.items():
        middle = sorted(f for _, f, _, _ in seen)[len(seen) // 2]
        if max(middle, 1 / middle) >= FACTOR:
            away = [s for s in sorted(seen) if max(s[1], 1 / s[1]) >= FACTOR]
            off[name] = (middle, away[0])
    groups: dict[tuple[int, bool], list[str]] = {}
    for name, (middle, parted) in off.items():
        groups.setdefault((parted[0], middle > 1), []).append(name)  # what parts at once is one difference
    for (iteration, _), names in groups.items():
        first = names[0]
        _, (_, _, there, now) = off[first]
        middles = sorted(off[n][0] for n in names)
        factor = number(middles[0])
        if number(middles[-1]) != factor:
            factor += f" to {number(middles[-1])}"
        yield Difference(
            "norm", _some(names), number(there), f"{number(now)} (median factor {factor})", iteration, here.step_site
        )


def _together(good: Profile, here: Profile, match: dict[str, str]) -> int | None:
    """In how many iterations from the start on all norms agree: runs of one random seed."""
    by_iteration: dict[int, bool] = {}
    for (iteration, name), there in good.norms.items():
        now = here.norms.get((iteration, match.get(name, "")))
        if now is not None:
            equal = abs(now - there) <= SAME_SEED * max(abs(there), abs(now))
            by_iteration[iteration] = by_iteration.get(iteration, True) and equal
    count = 0
    for iteration in sorted(by_iteration):
        if not by_iteration[iteration]:
            break
        count += 1
    return count or None


def _optimizers(good: Profile, here: Profile, match: dict[str, str]) -> Iterable[Difference]:
    if len(good.optimizers) != len(here.optimizers):
        site = here.optimizers[-1].site if here.optimizers else good.optimizers[-1].site
        words = [", ".join(o.cls for o in p.optimizers) or "none" for p in (good, here)]
        yield Difference("optimizer", "optimizers", words[0], words[1], None, site)
    for n, (there, now) in enumerate(zip(good.optimizers, here.optimizers, strict=False), start=1):
        yield from _optimizer(f"optimizer {n}", there, now, match)


def _optimizer(label: str, there: Built, now: Built, match: dict[str, str]) -> Iterable[Difference]:
    if there.cls != now.cls:
        yield Difference("optimizer", label, there.cls, now.cls, None, now.site)
    if (there.steps > 0) != (now.steps > 0):
        yield Difference("optimizer", label, f"{there.steps} steps", f"{now.steps} steps", None, now.site)
    if len(there.groups) != len(now.groups):
        words = (_count(len(there.groups), "groups"), _count(len(now.groups), "groups"))
        yield Difference("optimizer", label, *words, None, now.site)
    held = {match.get(n, n) for g in there.groups for n in g[0]}, {n for g in now.groups for n in g[0]}
    for names, words in ((held[0] - held[1], ("held", "left out")), (held[1] - held[0], ("left out", "held"))):
        if names:
            yield Difference("optimizer", f"{label}: {_some(sorted(names))}", *words, None, now.site)
    for index, (a, b) in enumerate(zip(there.groups, now.groups, strict=False)):
        for word, x, y in (("lr", a[1], b[1]), ("weight decay", a[2], b[2])):
            if x != y:
                yield Difference("optimizer", f"{label}, group {index}: {word}", number(x), number(y), None, now.site)


def _modes(good: Profile, here: Profile, match: dict[str, str]) -> Iterable[Difference]:
    for name, there in good.modes.items():
        now = here.modes.get(name)
        if now is None:
            continue
        shares = [c.train / max(c.train + c.evaluating, 1) for c in (there, now)]
        if abs(shares[0] - shares[1]) > 0.2:
            words = [f"{s:.0%} of its calls in train mode" for s in shares]
            yield Difference("mode", name, words[0], words[1], now.iteration, now.site)


def _targets(good: Profile, here: Profile, match: dict[str, str]) -> Iterable[Difference]:
    for key in dict.fromkeys([*good.syncs, *here.syncs]):
        subject = f"{key[0]} → {key[1]}"
        there, now = good.syncs.get(key), here.syncs.get(key)
        if there is None or now is None:
            some = now or there
            assert some is not None
            words = (f"copied {some.count} times", "never copied")
            pair = words if there is not None else words[::-1]
            yield Difference("target", subject, *pair, some.first, some.site)
            continue
        if there.interval and now.interval and not 1 / 1.25 < now.interval / there.interval < 1.25:
            words = (f"every {number(there.interval)} iterations", f"every {number(now.interval)}")
            yield Difference("target", subject, *words, now.first, now.site)
        if there.how != now.how:
            yield Difference("target", subject, f"by {there.how}", f"by {now.how}", now.since, now.since_site)
        if there.tau != now.tau and None not in (there.tau, now.tau):
            words = (f"tau {number(there.tau)}", f"tau {number(now.tau)}")
            yield Difference("target", subject, *words, now.first, now.site)


def _schedulers(good: Profile, here: Profile, match: dict[str, str]) -> Iterable[Difference]:
    if len(good.schedulers) != len(here.schedulers):
        words = [", ".join(s.cls for s in p.schedulers) or "none" for p in (good, here)]
        site = (here.schedulers or good.schedulers)[-1].site
        yield Difference("scheduler", "schedulers", words[0], words[1], None, site)
    for n, (there, now) in enumerate(zip(good.schedulers, here.schedulers, strict=False), start=1):
        label = f"scheduler {n}"
        if there.cls != now.cls:
            yield Difference("scheduler", label, there.cls, now.cls, None, now.site)
        if there.horizon != now.horizon:
            words = [", ".join(f"{k} {number(v)}" for k, v in s.horizon) or "no length" for s in (there, now)]
            yield Difference("scheduler", label, words[0], words[1], None, now.site)
        a, b = there.per_step, now.per_step
        if (a is None) != (b is None) or (a is not None and b is not None and abs(a - b) > ALIKE * max(a, b)):
            words = [f"{_rate(v, 'call')} a step" if v is not None else "no step" for v in (a, b)]
            yield Difference("scheduler", label, words[0], words[1], None, now.site)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return f"{listed[0]} and {len(listed) - 1} more" if len(listed) > 1 else listed[0]


def _rate(value: float, noun: str) -> str:
    """ "1 clear", "0.25 clears"."""
    return times(1, noun) if abs(value - 1) < 1e-9 else number(value) + times(2, noun)[1:]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n else "–"


_Look = Callable[[Profile, Profile, dict[str, str]], Iterable[Difference]]
_LOOKS: tuple[_Look, ...] = (_parameters, _gradients, _cycle, _norms, _optimizers, _modes, _targets, _schedulers)

__all__ = ["Comparison", "Difference", "compare", "profile_of"]
