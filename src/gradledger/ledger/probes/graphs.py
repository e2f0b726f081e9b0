"""What becomes of graphs and values: forwards nobody walks, graphs kept alive, broadcasts, non-finite values."""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import torch

from gradledger.core.events import Broadcast, GraphDiscarded, GraphsAlive
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _provenance
from gradledger.ledger._broadcasts import Wide, reached
from gradledger.ledger._graph import mark
from gradledger.ledger._naming import LOSSES
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._risks import RISKS, SIZES, risk
from gradledger.ledger._session import Session
from gradledger.ledger._trace import Trace

OLD_AFTER = 3  # iterations after which a graph should be gone
LOOKED_AT = 8  # results of one line looked at for that
MAX_USED = 20_000  # values looked through for the calls that a loss was computed from
MAX_WIDE = 64  # broadcasts remembered at a time
CHECKED_ITERATIONS = 20
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "rdiv", "minimum", "maximum", "where"})
_PAIRWISE = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})


@dataclass(slots=True)
class _Line:
    """Calls from one line of the program (and the line that called it), in one mode.

    `run`: thrown away since the last reverse pass of any kind, `in_a_row`: the most there ever were; `since`: the
    iteration of the first."""

    module: int
    site: Site
    training: bool
    calls: int = 0
    walked: int = 0
    gap: int = -1
    run: int = 0
    in_a_row: int = 0
    used: int = 0
    then: Counter[tuple[str, Site]] = field(default_factory=Counter)
    inputs_need_grad: bool = False
    elements: int = 0
    reported: int = 0
    since: int = 0


def _place(call: Call) -> tuple[Any, ...]:
    """The line that called, the one that called its function, and the mode."""
    return (call.site.key(), *((f.file, f.line) for f in call.site.callers[:1]), call.training)


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.trace = session.trace
        self.lines: dict[tuple[Any, ...], _Line] = {}
        self.roots: dict[tuple[str, int], deque[tuple[int, weakref.ref[Any], Site]]] = {}
        self.outputs: dict[tuple[Any, ...], deque[tuple[int, weakref.ref[Any], Site]]] = {}
        self.alive_reported: Counter[tuple[Any, ...]] = Counter()
        self.confirmed: set[tuple[Any, ...]] = set()
        self.growing: Counter[tuple[str, int]] = Counter()
        self.risky: dict[tuple[str, int], tuple[str, Site, str]] = {}
        self.risky_iteration = -1
        self.broadcasts: Counter[tuple[str, int]] = Counter()
        self.wide: dict[int, Wide] = {}

    # ------------------------------------------------------------------ forwards nobody walks

    def judge_calls(self, *_: Any, everything: bool = False) -> None:
        """Close the account of calls that were walked or whose graph is gone."""
        calls = self.trace.calls
        for number in list(calls):
            call = calls[number]
            if not call.walked and not everything and call.alive and not call.closed:
                continue
            if call.iteration < self.recorder.iteration or not call.walked or everything:
                self._close(call)
                if not call.walked or call.iteration < self.recorder.iteration - 1 or everything:
                    calls.pop(number, None)

    def _close(self, call: Call) -> None:
        if call.closed:
            return
        call.closed = True
        if not call.output_has_graph or not call.marks or call.differentiates:
            return  # (a parameter that is handed out as it is has no graph)
        key = _place(call)
        line = self.lines.get(key)
        if line is None:
            if len(self.lines) > 2000:
                return
            line = self.lines[key] = _Line(call.module, call.site, call.training)
        if call.walked:
            line.walked += 1
            if call.marks:
                kept = self.outputs.setdefault(key, deque(maxlen=LOOKED_AT + OLD_AFTER))
                if not kept or kept[-1][0] != call.iteration:
                    kept.append((call.iteration, call.marks[0], call.site))
            return
        line.calls += 1
        line.since = call.iteration if line.calls == 1 else line.since
        line.run = line.run + 1 if line.gap == call.gap else 1
        line.gap = call.gap
        line.in_a_row = max(line.in_a_row, line.run)
        line.inputs_need_grad = line.inputs_need_grad or call.carries
        line.used += call.used
        line.elements = max(line.elements, call.elements)
        if call.then:
            line.then[(call.then, call.then_site)] += 1
        if line.calls >= 8 and line.calls & (line.calls - 1) == 0:
            self._report(line)

    def _report(self, line: _Line) -> None:
        if line.reported == line.calls:
            return
        line.reported = line.calls
        (then, then_site), _ = line.then.most_common(1)[0] if line.then else (("", NOWHERE), 0)
        self.recorder.emit(
            GraphDiscarded,
            line.site,
            module=line.module,
            calls=line.calls,
            walked=line.walked,
            then=then,
            then_site=then_site,
            training=line.training,
            inputs_need_grad=line.inputs_need_grad,
            elements=line.elements,
            in_a_row=line.in_a_row,
            used=line.used,
            since=line.since,
        )

    def end(self) -> None:
        self._look_for_kept()
        self.judge_calls(everything=True)
        for line in self.lines.values():
            if line.calls:
                self._report(line)
        self._look_for_kept()

    # ------------------------------------------------------------------ graphs kept alive

    def root_walked(self, root: torch.Tensor, site: Site) -> None:
        if root.grad_fn is None:
            return
        key = site.key()
        line = self.roots.setdefault(key, deque(maxlen=LOOKED_AT + OLD_AFTER))
        if not line or line[-1][0] != self.recorder.iteration:
            line.append((self.recorder.iteration, mark(root.grad_fn), site))
        if self.trace.active:
            self._use(root)
            if self.wide:
                self._reached_by(root)
        if self.recorder.iteration % 4 == 0:
            self._look_for_kept()
        if self.recorder.calls % 16 == 0:
            self.judge_calls()

    def _use(self, root: torch.Tensor) -> None:
        """Mark the calls whose values went into this loss, whether or not a gradient can flow back into them."""
        waiting = [c for c in self.trace.calls.values() if not c.walked and not c.used]
        if not waiting:
            return
        queue = [self.trace.value_of(root).token]
        seen = set(queue)
        while queue and len(seen) < MAX_USED:
            value = self.trace.values.get(queue.pop())
            if value is None:
                continue
            if value.call is not None:
                value.call.used = True
            for token in value.op.ins if value.op is not None else ():
                if token not in seen:
                    seen.add(token)
                    queue.append(token)

    def _look_for_kept(self) -> None:
        for key, roots in self.roots.items():
            self._look_alive(key, "loss", roots)
        for place, outputs in self.outputs.items():
            self._look_alive((*place, "output"), "output", outputs)
        self._look_at_unwalked()

    def _look_at_unwalked(self) -> None:
        """Forwards that no reverse pass came to and whose graphs do not go either: a store of what was played."""
        waiting: dict[tuple[Any, ...], dict[int, Call]] = {}
        for call in self.trace.calls.values():
            if call.walked or call.closed or call.differentiates or not (call.output_has_graph and call.marks):
                continue
            if self.recorder.iteration - call.iteration >= OLD_AFTER and call.alive:
                waiting.setdefault(_place(call), {})[call.iteration] = call
        for place, calls in waiting.items():
            line = self.lines.get(place)
            if len(calls) >= LOOKED_AT and (line is None or 10 * (line.calls + line.walked) <= len(calls)):
                kept = deque((i, call.marks[0], call.site) for i, call in calls.items())
                self._look_alive((*place, "unwalked"), "output", kept)

    def _look_alive(
        self,
        key: tuple[Any, ...],
        what: str,
        line: deque[tuple[int, weakref.ref[Any], Site]],
    ) -> None:
        """Report a line nearly all of whose results of earlier iterations still have their graph."""
        for attempt in (0, 1):
            old = [(ref() is not None, site) for i, ref, site in line if self.recorder.iteration - i >= OLD_AFTER]
            alive = sum(a for a, _ in old)
            if len(old) < LOOKED_AT - 2 or alive < len(old) - 1:
                return
            if attempt == 0:
                seen = self.alive_reported[key] = self.alive_reported[key] + 1
                if seen & (seen - 1):
                    return
                if key in self.confirmed:
                    break
                gc.collect()  # a reference cycle that waits for the collector is no history
        self.confirmed.add(key)
        site = old[-1][1]
        self.recorder.emit(GraphsAlive, site, what=what, alive=alive, looked=len(old), age=OLD_AFTER, made_site=site)

    # ------------------------------------------------------------------ operations

    def op_seen(self, op: Op, results: list[Value], args: Any) -> None:
        if not results:
            return
        name = op.name
        if name in _ARITHMETIC or name in LOSSES:
            if len(op.ins) >= 2:
                self._broadcast(op, results[0])
                if name in LOSSES and self._self_target(op):
                    op.options["_zero"] = _is_zero(args, results, self.trace)
            if name == "add" and results[0].graph:
                self._grows(op, results[0])
        if (name in RISKS or name in SIZES) and self.recorder.iteration < CHECKED_ITERATIONS:
            self._risk(op, args)

    def _self_target(self, op: Op) -> bool:
        left, right = op.ins[0], op.ins[1]
        return _provenance.is_detached_alias(self.trace, right, left) or _provenance.is_detached_alias(
            self.trace, left, right
        )

    def _summands(self, op: Op) -> list[int]:
        """What a sum adds, also where it is weighted on the way: `0.9 * mean + 0.1 * x`."""
        found = list(op.ins)
        for token in op.ins:
            value = self.trace.values.get(token)
            if value is not None and value.op is not None and value.op.name in ("mul", "div"):
                found += value.op.ins
        return found

    def _grows(self, op: Op, result: Value) -> None:
        for token in self._summands(op):
            value = self.trace.values.get(token)
            if (
                value is not None
                and value.graph
                and not value.is_leaf
                and value.iteration < self.recorder.iteration
                and value.op is not None
                and value.op.name == "add"
                and value.op.site.key() == op.site.key()
            ):
                key = op.site.key()
                self.growing[key] += 1
                if self.growing[key] in (3, 16, 128):
                    self.recorder.emit(
                        GraphsAlive,
                        op.site,
                        what="running sum",
                        alive=self.growing[key],
                        looked=self.growing[key],
                        age=self.growing[key],
                        made_site=op.site,
                        growing=True,
                    )

    def _broadcast(self, op: Op, result: Value) -> None:
        """Remember a matrix made from [B] and [B, 1]; whether it matters is known when a reverse pass comes from it."""
        a, b = self.trace.values.get(op.ins[0]), self.trace.values.get(op.ins[1])
        if a is None or b is None or op.name == "where":
            return
        left, right = a.shape, b.shape
        out = result.shape if op.name in _ARITHMETIC else _joined(left, right) if op.name in _PAIRWISE else left
        if left == right or not _outer(left, right, tuple(out)):
            return
        if len(self.wide) >= MAX_WIDE:
            self.wide = {t: w for t, w in self.wide.items() if t in self.trace.values}
            if len(self.wide) >= MAX_WIDE:
                return
        self.wide[result.token] = Wide(op, a, b, tuple(out))

    def _reached_by(self, root: torch.Tensor) -> None:
        """Record the broadcasts from which this loss was computed elementwise."""
        token = self.trace.value_of(root).token
        for wide, deliberate, harmless in reached(self.trace, self.recorder, token, self.wide):
            op, a, b = wide.op, wide.left, wide.right
            seen = self.broadcasts[op.site.key()] = self.broadcasts[op.site.key()] + 1
            if seen > 4 and seen & (seen - 1):
                continue
            self.recorder.emit(
                Broadcast,
                op.site,
                op=op.name,
                left=a.shape,
                right=b.shape,
                out=wide.out,
                has_graph=a.graph or b.graph,
                explicit=deliberate,
                harmless=harmless,
                left_site=a.op.site if a.op else NOWHERE,
                right_site=b.op.site if b.op else NOWHERE,
            )

    # ------------------------------------------------------------------ non-finite values

    def _risk(self, op: Op, args: Any) -> None:
        reason = risk(op.name, args, op.options)
        if not reason:
            return
        if self.risky_iteration != self.recorder.iteration:
            self.risky_iteration = self.recorder.iteration
            self.risky.clear()
        self.risky.setdefault(op.site.key(), (op.name, op.site, reason))

    def suspect(self) -> tuple[str, Site, str]:
        """The last risky operation of this iteration, or the call that was given a value that is not finite."""
        iteration, site = self.session.bad_input
        if iteration == self.recorder.iteration:
            return (
                "input",
                site,
                "the input of this call was not finite already: it is in the data, not made by the model",
            )
        if self.risky_iteration < self.recorder.iteration - 1 or not self.risky:
            return "", NOWHERE, ""
        return list(self.risky.values())[-1]

    def check_gradients(self, tensors: list[torch.Tensor], site: Site) -> None:
        """Before a step in a watched iteration: are the gradients finite?"""
        if not self.recorder.detail:
            return
        grads = [t.grad for t in tensors if t.is_leaf and t.grad is not None]
        dense = [g.detach() for g in grads if not g.is_sparse and g.is_floating_point()]
        if not dense:
            return
        total = sum(float(g.sum()) for g in dense)
        if not math.isfinite(total) and not all(bool(torch.isfinite(g).all()) for g in dense):
            self.session.first_non_finite("gradient", site)
            self.recorder.suspicious()


def _joined(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that two shapes broadcast to."""
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    padded = (1,) * (len(longer) - len(shorter)) + shorter
    return tuple(max(a, b) for a, b in zip(longer, padded, strict=True))


def _outer(left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]) -> bool:
    """[B] against [B, 1] into [B, B], or [B, H, W] against [B, 1, H, W] into [B, B, H, W]."""
    small, large = sorted((left, right), key=len)
    if not small or len(large) != len(small) + 1 or large[1] != 1 or small[0] < 2 or large[0] != small[0]:
        return False
    return large[2:] == small[1:] and tuple(out) in ((small[0], *small), left, right)


def _is_zero(args: Any, results: list[Value], trace: Trace) -> bool:
    left, right = [a for a in args if isinstance(a, torch.Tensor)][:2]
    return left.shape == right.shape and bool((left.detach() == right.detach()).all())


def install(session: Session) -> Undo:
    """Listen to operations, reverse passes and steps."""
    probe = _Probe(session)
    session.trace.listeners.op.append(probe.op_seen)
    session.at_root.append(probe.root_walked)
    session.at_step.append(probe.check_gradients)
    session.step_done.append(probe.judge_calls)
    session.at_end.append(probe.end)
    session.suspect = probe.suspect
    session.many_calls = probe.judge_calls

    def undo() -> None:
        session.trace.listeners.op.remove(probe.op_seen)

    return undo
