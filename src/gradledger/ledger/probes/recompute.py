"""Activation recompute: what ran inside it that its second run does not repeat alike.

When an operation is seen in a watched iteration, the stack tells whether torch's `checkpoint` is above it, and with
which setting, or an `autograd.Function` of the program.  What the operations of the first run made is remembered by two
sums; the first operation of a second run that makes something else is where the two part.  Operations of a reverse pass
are looked at only where there was such a first run.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gradledger.core.events import Recomputed
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _frames, _site
from gradledger.ledger._attention import FULL_ITERATIONS
from gradledger.ledger._identity import Ref
from gradledger.ledger._naming import canonical, is_inplace
from gradledger.ledger._often import Often
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._recorder import unseen
from gradledger.ledger._session import Session

MAX_MOVED = 256
MAX_FRAMES = 63  # the innermost two or three are ours
MAX_MADE = 4096  # operations of one iteration whose results are remembered
MAX_ELEMENTS = 1 << 22
EQUAL = 1e-5  # of the sum of all magnitudes
_DROPOUTS = frozenset(
    {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "dropout_"}
)
_DRAWS = frozenset(
    {"rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_",
     "normal", "normal_", "uniform_", "multinomial", "rrelu", "gumbel_softmax", "exponential_"}
)  # fmt: skip
_MODULE = "torch.utils.checkpoint"
_ENGINE = "_engine_run_backward"


def _draws(op: Op) -> bool:
    """Whether an operation drew random numbers."""
    if op.name in _DRAWS:
        return True
    if op.name not in _DROPOUTS:
        return False
    given = op.options.get("_args", ())
    share = op.options.get("p", next((a for a in given if type(a) in (int, float)), 0.5))
    training = op.options.get("training", next((a for a in given if type(a) is bool), True))
    return bool(training) and bool(share)


def _stack() -> Iterator[FrameType]:
    """The frames above, innermost first, down to the program's first one; ours are among them."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None or id(frame.f_code) in _frames.bottom:
            return
        yield frame
        frame = frame.f_back


def _checkpoint_above() -> tuple[FrameType, bool] | None:
    """The innermost frame of torch's `checkpoint` on the stack, and whether it keeps the random state."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return None
    for frame in _stack():
        code = frame.f_code
        if code.co_name == "checkpoint" and code.co_filename == module.__file__:
            return frame, bool(frame.f_locals.get("preserve", True))
    return None


def _function_above() -> bool:
    """Whether an `autograd.Function` of the program is running."""
    for frame in _stack():
        if frame.f_code.co_name in ("forward", "backward") and frame.f_code.co_argcount:
            owner = frame.f_locals.get(frame.f_code.co_varnames[0])
            if isinstance(owner, torch.autograd.function.FunctionCtx) and _site.is_user_code(frame.f_code):
                return True
    return False


def _by_a_norm() -> bool:
    """Whether torch's own BatchNorm runs the operation."""
    return any(f.f_globals.get("__name__") == "torch.nn.modules.batchnorm" for f in itertools.islice(_stack(), 10))


def _runs_again() -> bool:
    """Whether torch's `checkpoint` runs something a second time."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return False
    return any(frame.f_code.co_filename == module.__file__ for frame in _stack())


def _sums(out: torch.Tensor) -> tuple[float, float] | None:
    """Sum and sum of magnitudes; None for what is not looked at."""
    if out.device.type != "cpu" or not out.is_floating_point() or out.layout != torch.strided:
        return None
    if not 1 < out.numel() <= MAX_ELEMENTS:
        return None
    values = out.detach().to(torch.float64)
    both = (float(values.sum()), float(values.abs().sum()))
    return both if both[1] < float("inf") else None


def _caller(frame: FrameType) -> Site:
    """The line of the program that called."""
    above = frame.f_back
    while above is not None and not _site.is_user_code(above.f_code):
        above = above.f_back
    return _site.of(above if above is not None else frame)


@dataclass(slots=True)
class _Moved:
    """Running statistics, or another tensor that outlives the forward, which the forward has moved, and their values
    right after."""

    mean: weakref.ref[torch.Tensor]
    after: torch.Tensor
    site: Site
    op: Op
    inside: bool


@dataclass(slots=True)
class _Made:
    """What an operation of the first run made, and the lines that asked for the recompute and ran the operation."""

    sums: tuple[float, float]
    site: Site
    op_site: Site
    draws: bool
    checkpoint: bool


class _Again(TorchFunctionMode):
    """Sees what runs in a reverse pass: calls each function exactly once, and looks at what came of it."""

    def __init__(self, probe: _Probe) -> None:
        super().__init__()
        self._probe = probe

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._probe.recorder.enabled:
            with self._probe.recorder.guard("recompute"), torch._C.DisableTorchFunction(), unseen():
                self._probe.ran_again(func, args, out, kwargs is not None and kwargs.get("out") is not None)
        return out


class _Probe:
    def __init__(self, session: Session) -> None:
        self.recorder, self.trace = session.recorder, session.trace
        self.often = Often()
        self.moved: dict[int, _Moved] = {}
        self.again: dict[int, Site] = {}  # statistics that an operation of the reverse pass was given
        self.made: dict[tuple[str, tuple[int, ...]], list[_Made]] = {}
        self.kept = 0
        self.iteration = -1
        self.parted = False
        # Draws where nothing keeps the random state, by line, until the second run is known.
        self.drawn: dict[tuple[object, ...], tuple[Site, Op]] = {}
        self.alike: set[tuple[str, int]] = set()  # lines whose draws came out alike in a second run
        self.apart: set[tuple[str, int]] = set()  # and those whose draws did not

    def op_made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        """Remember what the first run made."""
        if op.inplace and not self.trace.reversing and outs and not (args and outs[0] is args[0]):
            self._written(op, outs)  # `out=`: the vectors of a spectral norm
        if self.trace.reversing or not outs or self.recorder.iteration >= FULL_ITERATIONS:
            return  # later the watch may begin in the midst of a forward
        if self.iteration != self.recorder.iteration:
            self._forget()
            self.drawn = {key: drawn for key, drawn in self.drawn.items() if drawn[1] is op}
        if self.kept >= MAX_MADE:
            self.parted = True  # not all is known: nothing is compared
            return
        draws = _draws(op)
        above = _checkpoint_above() if _MODULE in sys.modules else None
        if above is None and not (draws and _function_above()):
            return
        if above is not None and not op.grad_on and not above[0].f_locals.get("use_reentrant"):
            return  # under no_grad: nothing of it runs again
        sums = _sums(outs[0])
        if sums is not None:
            site = _caller(above[0]) if above is not None else op.site
            self.kept += 1
            key = (op.name, tuple(outs[0].shape))
            self.made.setdefault(key, []).append(_Made(sums, site, op.site, draws, above is not None))

    def _forget(self) -> None:
        self.made, self.kept, self.parted, self.iteration = {}, 0, False, self.recorder.iteration

    def ran_again(self, func: Any, args: Any, out: Any, into: bool) -> None:
        """An operation has run in the reverse pass (`into` a tensor that it was given): compare what the second run
        makes."""
        name = canonical(func)
        if name == "batch_norm" and len(args) > 1 and id(args[1]) in self.moved:
            self.again.setdefault(id(args[1]), _site.here(2))
        elif is_inplace(func) and args and id(args[0]) in self.moved:
            self.again.setdefault(id(args[0]), _site.here(2))
        elif into and id(out) in self.moved:
            self.again.setdefault(id(out), _site.here(2))
        if self.parted or not isinstance(out, torch.Tensor) or not torch.is_grad_enabled():
            return
        if (into or is_inplace(func)) and not out.requires_grad:
            return  # a count: twice what it should be (GL-S02), and no part of the function
        before = self.made.get((name, tuple(out.shape)))
        if not before:
            return
        checkpoint = _runs_again()
        before = [m for m in before if m.checkpoint == checkpoint]
        if not before or not (checkpoint or _function_above()):
            return
        sums = _sums(out)
        if sums is None:
            return
        near = EQUAL * (1e-6 + sums[1])
        same = [m for m in before if abs(sums[0] - m.sums[0]) <= near and abs(sums[1] - m.sums[1]) <= near]
        self.alike.update(m.op_site.key() for m in same if m.draws)
        if not same:
            self._parted(name, _site.here(2), before)

    def _parted(self, name: str, here: Site, before: list[_Made]) -> None:
        self.parted = True
        first = next((m for m in before if m.op_site.key() == here.key()), before[0])
        self.apart.add(first.op_site.key())
        site = first.site if first.checkpoint else here
        if self.often.worth_telling((site.key(), name, first.op_site.key())):
            asked = next(iter(first.site.above(1)), NOWHERE)
            what = "random" if first.draws else "state"
            self.recorder.emit(
                Recomputed, site, what=what, op=name, op_site=first.op_site, compared=True, asked_site=asked
            )

    def reverses(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The engine's run: with eyes on operations where something may run a second time in it."""
        if self.iteration != self.recorder.iteration or not self.trace.active or not (self.made or self.moved):
            return original(*args, **kwargs)
        with _Again(self):
            return original(*args, **kwargs)

    def op_seen(self, op: Op, results: list[Value], args: Any) -> None:
        """Look at what draws random numbers or moves statistics."""
        if op.name == "batch_norm":
            mean = args[1] if len(args) > 1 else None
            training = op.options.get("training", any(a is True for a in op.options.get("_args", ())))
            if not isinstance(mean, torch.Tensor) or not training:
                return
            if not self.trace.reversing:
                self._statistics(op, mean)
        elif op.inplace and not self.trace.reversing:
            self._written(op, args)
        elif not self.trace.reversing and _MODULE in sys.modules and _draws(op):
            above = _checkpoint_above()
            if above is not None and not above[1]:
                site = _caller(above[0])
                self.drawn[site.key(), op.name, op.site.key()] = site, op

    def _draws_told(self) -> None:
        """Draws that nothing keeps: those of a generator, or after a seed, that the program itself puts back came out
        alike."""
        drawn, self.drawn = self.drawn, {}
        for key, (site, op) in drawn.items():
            if op.site.key() in self.alike - self.apart:
                continue
            if self.often.worth_telling(key):
                self.recorder.emit(Recomputed, site, what="random", op=op.name, op_site=op.site)

    def _statistics(self, op: Op, mean: torch.Tensor) -> None:
        """Remember the statistics after the latest forward that moved them."""
        known = self.moved.get(id(mean))
        above = _checkpoint_above()
        if above is not None and len(self.moved) < MAX_MOVED:
            self.moved[id(mean)] = _Moved(Ref(mean), mean.detach().clone(), _caller(above[0]), op, True)
        elif known is None and len(self.moved) < MAX_MOVED and _function_above():
            self.moved[id(mean)] = _Moved(Ref(mean), mean.detach().clone(), op.site, op, False)
        elif known is not None:
            known.after = mean.detach().clone()

    def _written(self, op: Op, args: Any) -> None:
        """Remember what a recomputed part wrote into a tensor without graph: a counter, an average of its own."""
        target = args[0] if args else None
        if not isinstance(target, torch.Tensor) or target.requires_grad or target.numel() > MAX_ELEMENTS:
            return
        known = self.moved.get(id(target))
        if known is not None:
            known.after = target.detach().clone()
        elif _by_a_norm():
            return  # `num_batches_tracked`: its running statistics are looked at themselves
        elif len(self.moved) < MAX_MOVED:
            above = _checkpoint_above() if _MODULE in sys.modules else None
            if above is not None:
                self.moved[id(target)] = _Moved(Ref(target), target.detach().clone(), _caller(above[0]), op, True)
            elif op.in_forward and _function_above():
                self.moved[id(target)] = _Moved(Ref(target), target.detach().clone(), op.site, op, False)

    def root_walked(self, root: torch.Tensor, at: Site) -> None:
        """A reverse pass has recomputed what it needed: were statistics moved once more?"""
        moved, self.moved = self.moved, {}
        again, self.again = self.again, {}
        self._draws_told()
        self._forget()
        for number, one in moved.items():
            mean = one.mean()
            if number not in again and (not one.inside or one.op.name != "batch_norm"):
                continue
            if mean is None or bool((mean == one.after).all()) or not bool(torch.isfinite(mean).all()):
                continue
            if self.often.worth_telling((one.site.key(), one.op.name, one.op.site.key())):
                site = one.site if one.inside else again[number]
                self.recorder.emit(Recomputed, site, what="statistics", op=one.op.name, op_site=one.op.site)


def install(session: Session) -> Undo:
    """Listen to operations and reverse passes."""
    probe = _Probe(session)
    session.trace.listeners.op.append(probe.op_seen)
    session.trace.listeners.made.append(probe.op_made)
    session.at_root.append(probe.root_walked)
    original: Callable[..., Any] | None = getattr(torch.autograd, _ENGINE, None)  # not in every version

    @functools.wraps(original or probe.reverses)
    def engine(*args: Any, **kwargs: Any) -> Any:
        assert original is not None
        return probe.reverses(original, args, kwargs)

    if original is not None:
        setattr(torch.autograd, _ENGINE, engine)

    def undo() -> None:
        if getattr(torch.autograd, _ENGINE, None) is engine:
            setattr(torch.autograd, _ENGINE, original)
        session.trace.listeners.op.remove(probe.op_seen)
        session.trace.listeners.made.remove(probe.op_made)

    return undo
