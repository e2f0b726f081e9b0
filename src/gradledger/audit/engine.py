"""Runs the rules over the facts of a run: `Judge` takes events one by one, `audit` a whole sequence.

A rule that raises is taken out, listed among what was not checked, and the others go on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradledger.audit import oracle, registry, suppress
from gradledger.audit._phrases import with_files
from gradledger.audit.registry import LoadedRule, Registry
from gradledger.audit.report import Note, Report
from gradledger.audit.rule import SEVERITIES, Finding, NotChecked
from gradledger.audit.world import World
from gradledger.core.events import Event, RankFinding, RankRun

RANK_FINDINGS = 1000
Update = Callable[[Any, Event, World], None]
Listener = Callable[[Event, World], None]


@dataclass(slots=True)
class _Running:
    loaded: LoadedRule
    state: Any = None
    failed: str = ""

    def fail(self, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        self.failed = f"the rule itself failed: {type(error).__name__}: {error}{where}"


class Judge:
    """Takes the events of one run in order (`put`), then gives the report (`finish`).

    `select`, `ignore`: codes, names or series letters.  `rules`: another registry than the installed rules.
    `listeners`: called with each event and the world that has just taken it; one that raises is called no more.
    """

    def __init__(
        self,
        *,
        select: Sequence[str] = (),
        ignore: Sequence[str] = (),
        rules: Registry | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.world = World()
        self._listeners = list(listeners)
        self._listener_errors: list[str] = []
        self._registry = rules if rules is not None else registry.load()
        self._running = [_Running(loaded) for loaded in self._registry.select(select, ignore)]
        self._everything = not select
        self._by_type: dict[type[Event], list[tuple[Update, Any, _Running]]] = {}
        self._events = 0
        self._ranks: list[RankFinding] = []
        self._others: list[RankRun] = []
        self._world_error = ""
        for run in self._running:
            try:
                run.state = run.loaded.module.init()
            except Exception as error:
                run.fail(error)

    def put(self, event: Event) -> None:
        """Take one event in."""
        self._events += 1
        if isinstance(event, RankFinding) and len(self._ranks) < RANK_FINDINGS:
            self._ranks.append(event)
        elif isinstance(event, RankRun):
            self._others.append(event)
        try:
            self.world.apply(event)
        except Exception as error:  # a torn fact: the rules go on with the world as it was
            self._world_error = self._world_error or f"{type(error).__name__}: {error} at {event.KIND} {event.seq}"
        if self._listeners:
            self._tell(event)
        kind = type(event)
        listeners = self._by_type.get(kind)
        if listeners is None:
            listeners = self._by_type[kind] = [
                (r.loaded.module.update, r.state, r) for r in self._running if not r.failed and _listens(r, kind)
            ]
        world = self.world
        for update, state, run in listeners:
            try:
                update(state, event, world)
            except Exception as error:
                run.fail(error)
                self._by_type.clear()

    def _tell(self, event: Event) -> None:
        for listener in list(self._listeners):
            try:
                listener(event, self.world)
            except Exception as error:  # pictures and tables must not cost the judgement
                self._listeners.remove(listener)
                self._listener_errors.append(f"a part of the report is incomplete: {type(error).__name__}: {error}")

    def _unseen(self, run: _Running) -> str | None:
        """Why a rule that looks at single operations saw none, if it did not."""
        ended = self.world.ended
        if ended is None or not ended.not_watched or self.world.detailed:
            return None
        return ended.not_watched[0] if getattr(run.loaded.module, "NEEDS_DETAIL", False) else None

    def finish(self, *, sampled: str = "") -> Report:
        """Judge what was seen so far.  `sampled`: what was left out of a long run, in words."""
        findings: list[Finding] = []
        checked: list[str] = []
        not_checked = [NotChecked(code, reason) for code, reason in self._registry.broken if self._everything]
        for run in self._running:
            rule = run.loaded.rule
            reason = None
            found: list[Finding] = []
            if not run.failed:
                try:
                    found = list(run.loaded.module.finish(run.state, self.world))
                    if not found:
                        reason = self._unseen(run) or _own_reason(run, self.world)
                except Exception as error:
                    found = []
                    run.fail(error)
            reason = run.failed or (reason and self._reason_elsewhere(rule.key, reason))
            if reason:
                not_checked.append(NotChecked(rule.code, reason))
            else:
                checked.append(rule.key)
                findings += found
        findings += self._of_ranks(findings)
        started, ended = self.world.program, self.world.ended
        kept, silenced, notes = suppress.apply(
            [_with_files(finding) for finding in ordered(merged(findings))],
            started.program if started is not None else "",
            set(checked),
            lambda word: self._registry.find(word).rule.key,
        )
        torn = [Note("", 0, f"the record of the run is torn: {self._world_error}")] if self._world_error else []
        return Report(
            started=started,
            ended=ended,
            findings=tuple(kept),
            suppressed=tuple(silenced),
            notes=(*torn, *(Note("", 0, text) for text in self._listener_errors), *notes),
            checked=tuple(checked),
            not_checked=tuple(not_checked),
            names={r.rule.key: r.rule.name for r in self._registry.rules},
            events=self._events,
            sampled=sampled,
            oracle=oracle.summary(self.world),
            others=tuple(self._others),
        )

    def _reason_elsewhere(self, key: str, reason: str) -> str:
        """Why a rule did not judge any process: "" where it judged one; the reason of one that trained, if this one
        did not."""
        if any(key in other.checked for other in self._others):
            return ""
        ended = self.world.ended
        if ended is None or ended.steps or ended.backwards:
            return reason
        return next((why for other in self._others for name, why in other.not_checked if name == key), reason)

    def _of_ranks(self, findings: list[Finding]) -> list[Finding]:
        """What other ranks found and this one did not, once each."""
        running = {run.loaded.rule.key for run in self._running}
        known = {(f.key, f.site.key()) for f in findings}
        found = []
        for event in self._ranks:
            finding = Finding(
                event.code,
                event.severity,  # type: ignore[arg-type]
                event.site,
                event.message,
                event.fix,
                event.related,
                {"process": event.process} if event.process else {"rank": event.rank},
                event.count,
                "likely" if event.likely else "certain",
                event.subject,
                event.iteration,
            )
            if finding.key in running and (finding.key, finding.site.key()) not in known:
                known.add((finding.key, finding.site.key()))
                found.append(finding)
        return found


def audit(
    events: Iterable[Event],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rules: Registry | None = None,
    sampled: str = "",
    listeners: Sequence[Listener] = (),
) -> Report:
    """Judge a recorded run.  `sampled`: what was left out of it, in words; `listeners`: see `Judge`.

    Raises UsageError when `select` or `ignore` names no rule.
    """
    judge = Judge(select=select, ignore=ignore, rules=rules, listeners=listeners)
    for event in events:
        judge.put(event)
    return judge.finish(sampled=sampled)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding a (code, line): counts added, related lines joined, the most severe and earliest wording kept."""
    kept: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        place = (str(finding.site.line),) if finding.has_line else ("", finding.subject)
        kept.setdefault((finding.key, finding.site.file, *place), []).append(finding)
    return [_join(group) for group in kept.values()]


def _with_files(finding: Finding) -> Finding:
    """The finding, its words naming the file of a line that is not in the finding's own."""
    message, fix = (with_files(text, finding.site, finding.related) for text in (finding.message, finding.fix))
    return finding if (message, fix) == (finding.message, finding.fix) else replace(finding, message=message, fix=fix)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """By consequence: errors first, certain before likely, then what began first."""
    return sorted(
        findings,
        key=lambda f: (
            SEVERITIES.index(f.severity),
            f.confidence != "certain",
            f.iteration if f.iteration is not None else 0,
            f.site.file,
            f.site.line,
            f.key,
        ),
    )


def _join(group: list[Finding]) -> Finding:
    if len(group) == 1:
        return group[0]
    first = ordered(group)[0]
    subjects = list(dict.fromkeys(f.subject for f in group if f.subject))
    related = tuple(dict.fromkeys(s for f in group for s in f.related))
    iterations = [f.iteration for f in group if f.iteration is not None]
    evidence = dict(first.evidence)
    if len(subjects) > 1:
        evidence["subjects"] = subjects[:10]
    return replace(
        first,
        related=related,
        evidence=evidence,
        count=sum(f.count for f in group),
        iteration=min(iterations) if iterations else None,
    )


def _own_reason(run: _Running, world: World) -> str | None:
    ask = getattr(run.loaded.module, "not_checked", None)
    reason: str | None = ask(run.state, world) if ask is not None else None
    return reason


def _listens(run: _Running, kind: type[Event]) -> bool:
    listens = getattr(run.loaded.module, "LISTENS", None)
    return listens is None or kind in listens
