"""What the oracle says in a run: consumed gradients as combinations of terms, and how rules take that as evidence."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradledger.audit._cycle import assigned_word
from gradledger.audit._phrases import times
from gradledger.audit.rule import Finding
from gradledger.audit.world import World
from gradledger.core.events import OracleExplained, Share
from gradledger.core.site import Site

EXAMPLES = 8  # sentences in a report
SUMMANDS = 10  # in a sentence

Test = Callable[[OracleExplained], bool | None]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One way in which gradients were made up: `text`, the first iteration and line, in how many iterations."""

    text: str
    iteration: int
    site: Site
    iterations: int


@dataclass(frozen=True, slots=True)
class Abstention:
    """Why iterations could not be recomputed: `reason` (see `OracleAbstained`), `text`, the line, how many."""

    reason: str
    text: str
    site: Site
    iterations: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Sampled iterations: `explained`, `unexplained` (recomputed, and no combination fits), `abstained`."""

    explained: int
    unexplained: int
    abstained: int
    explanations: tuple[Explanation, ...] = ()
    reasons: tuple[Abstention, ...] = ()


# ------------------------------------------------------------------------------------------- evidence


def weigh(finding: Finding, world: World, optimizer: int | None, test: Test) -> Finding:
    """The finding with what the oracle says to it.

    `test` says of one explained step whether it shows the fault (True), shows that it is none (False), or nothing
    (None).  One that shows it makes the finding certain; if none does and some deny it, it is a remark only.
    """
    denied: OracleExplained | None = None
    for event in reversed(world.oracle.of(optimizer)):
        verdict = test(event)
        if verdict:
            evidence = {**finding.evidence, "oracle": sentence(event, world)}
            return replace(finding, evidence=evidence, confidence="certain")
        if verdict is False and denied is None:
            denied = event
    if denied is None:
        return finding
    evidence = {**finding.evidence, "oracle": f"{sentence(denied, world)}: not so in numbers"}
    return replace(finding, evidence=evidence, severity="info", confidence="likely")


def there(share: Share) -> bool | None:
    """Whether a share is in the consumed gradient at all; None when its size does not tell."""
    if abs(share.coefficient) > share.bound:
        return True
    return False if share.bound < abs(share.written) / 2 else None


def at_least(share: Share, single: float, scale: float) -> bool | None:
    """Whether a share counts more than `single` (the coefficient of one occurrence); None when that is not known."""
    scale = abs(scale) or 1.0
    found, bound = abs(share.coefficient) / scale, share.bound / scale
    if bound >= abs(single) / 2:
        return None
    return found > abs(single) + bound


# ------------------------------------------------------------------------------------------- words


def sentence(event: OracleExplained, world: World) -> str:
    """ "consumed = 1.00·task (train.py:41) + 2.00·penalty (train.py:42)"."""
    apart = event.fit == "scaled" and not all(_plain(share.coefficient) for share in event.shares)
    scale = event.scale if apart else 1.0
    groups: dict[tuple[object, ...], list[Share]] = {}
    for share in event.shares:
        same = share.tied or f"{share.coefficient / scale:.6g}"
        groups.setdefault((share.kind, share.op, share.site.key(), bool(share.tied), same), []).append(share)
    crowded = Counter(line for line, _ in {(s.site.key(), s.op) for s in event.shares})
    words = [
        _summand(group, scale, crowded[group[0].site.key()] > 1, world)
        for group in sorted(groups.values(), key=lambda g: _KINDS.get(g[0].kind, len(_KINDS)))
    ]
    if len(words) > SUMMANDS:
        words = [*words[: SUMMANDS - 1], f"{len(words) - SUMMANDS + 1} more"]
    total = " + ".join(words).replace("+ -", "- ") or "0"
    return f"consumed = {amount(scale)} × ({total})" if apart else f"consumed = {total}"


_KINDS = {"term": 0, "constant": 1, "earlier": 2, "stood": 3}  # their order in a sentence


def _summand(group: Sequence[Share], scale: float, crowded: bool, world: World) -> str:
    """One summand: shares of one line and operation with one coefficient, or with gradients in one direction."""
    one = group[0]
    passes = len(dict.fromkeys(b for share in group for b in share.backwards)) + sum(share.more for share in group)
    found = (sum(share.coefficient for share in group) if one.tied else one.coefficient) / scale
    where = f"{os.path.basename(one.site.file)}:{one.site.line}" if one.site.file else ""
    if one.kind in ("earlier", "stood"):
        what = times(passes, "earlier pass" if one.kind == "earlier" else "unused pass")
        each = "" if abs(found - 1) < 1e-3 else f"{amount(found)}·"
        where = where or _lines(group, world)
        return f"{each}{what}" + (f" ({where})" if where else "")
    name = one.op if crowded else _name(one, world)
    places = ", ".join(word for word in (where, "no graph" if one.kind == "constant" else "") if word)
    each = ""
    if len(group) > 1 and not one.tied:
        each = f" in each of {passes} passes" if passes > 1 else f" for each of {len(group)} terms"
    return f"{amount(found)}·{name}" + (f" ({places})" if places else "") + each


def _name(share: Share, world: World) -> str:
    """The variable that the term's line assigns it to, when nothing is left to do on that line; else the operation."""
    try:
        statement = ast.parse(world.source(share.site)).body
    except (SyntaxError, ValueError, RecursionError):
        return share.op
    value = statement[0].value if statement and isinstance(statement[0], (ast.Assign, ast.AnnAssign)) else None
    return (isinstance(value, ast.Call) and assigned_word(share.site, world)) or share.op


def _lines(group: Sequence[Share], world: World) -> str:
    sites = {one.site.key() for share in group for b in share.backwards if (one := world.backward(b)) is not None}
    return ", ".join(f"{os.path.basename(file)}:{line}" for file, line in sorted(sites)[:3])


def _plain(value: float) -> bool:
    """Whether two decimals say what a number is."""
    return abs(value - round(value, 2)) <= 5e-4 * max(abs(value), 1e-3)


def amount(value: float) -> str:
    """Two decimals where they are the number, else four significant digits."""
    return f"{value:.2f}" if _plain(value) else f"{value:.4g}"


_COUNT = re.compile(r"(\d+) earlier pass(?:es)?")
_SCALE = re.compile(r"^consumed = ([-\d.e]+) × ")


def summary(world: World) -> Summary | None:
    """What a report says of the oracle; None when it said nothing."""
    book = world.oracle
    if not +book.tallies:
        return None
    every = [e for kept in (book.first, book.latest) for events in kept.values() for e in events]
    alike: dict[str, list[tuple[str, OracleExplained]]] = {}
    for event in sorted(every, key=lambda e: e.seq):
        text = sentence(event, world)
        if event.fit == "none":
            text = f"not explained, {event.residual:.2g} is left of: {text.removeprefix('consumed = ')}"
        key = _SCALE.sub("consumed = s × ", _COUNT.sub("earlier", text)) if event.fit != "none" else event.fit
        alike.setdefault(key, []).append((text, event))
    found = [
        Explanation(_together([t for t, _ in group]), group[0][1].iteration, group[0][1].site,
                    sum(e.weight for _, e in group))
        for group in alike.values()
    ]  # fmt: skip
    found.sort(key=lambda e: (-e.iterations, e.iteration))
    reasons = [Abstention(code, what, site, n) for (code, what, site), n in book.reasons.most_common()]
    counts = book.tallies
    return Summary(
        counts["explained"], counts["unexplained"], counts["abstained"], tuple(found[:EXAMPLES]), tuple(reasons)
    )


def _together(texts: Sequence[str]) -> str:
    """One text for several that differ in the number of earlier passes or in the scale only."""
    text = texts[-1]
    counts = sorted({int(n) for t in texts for n in _COUNT.findall(t)})
    if len(counts) > 1:
        text = _COUNT.sub(f"{counts[0]} to {counts[-1]} earlier passes", text)
    scales = sorted({float(m[1]) for t in texts if (m := _SCALE.match(t)) is not None})
    if len(scales) > 1:
        text = f"{_SCALE.sub('consumed = s × ', text)}, s from {amount(scales[0])} to {amount(scales[-1])}"
    return text


def headline(found: Summary) -> str:
    """ "oracle: 12 iterations explained, 3 not replayable"."""
    parts = [f"{times(found.explained, 'iteration')} explained"]
    if found.unexplained:
        parts.append(f"{found.unexplained} not explained")
    if found.abstained:
        parts.append(f"{found.abstained} not replayable")
    return "oracle: " + ", ".join(parts)


def rows(found: Summary) -> list[tuple[str, str]]:
    """(what was said, how often and where) of explanations, then of reasons."""
    told = [(e.text, f"{times(e.iterations, 'iteration')}, first {e.iteration}") for e in found.explanations]
    for a in found.reasons:
        where = f" ({os.path.basename(a.site.file)}:{a.site.line})" if a.site.file else ""
        told.append((f"not replayable: {a.text}{where}", times(a.iterations, "iteration")))
    return told


__all__ = [
    "Abstention", "Explanation", "Summary", "amount", "at_least", "headline", "rows", "sentence", "summary", "there",
    "weigh",
]  # fmt: skip
