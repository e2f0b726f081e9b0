"""`Sweep`: a chain of blocks, a loss and a plan; each call is one explicit reverse pass."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from gradledger.core import passes
from gradledger.sweep import _optimize
from gradledger.sweep._action import Action
from gradledger.sweep._ambient import modes_kept
from gradledger.sweep._block import Blocks
from gradledger.sweep._chain import KINDS, Chain, Key
from gradledger.sweep._choose import bytes_of, one_plan, plan_for_kind, wrong
from gradledger.sweep._cotangents import CotangentLedger, Cotangents
from gradledger.sweep._events import ReverseWalk
from gradledger.sweep._executor import Walk
from gradledger.sweep._gradients import Gradients
from gradledger.sweep._memory import MemoryWatch, MemoryWatchError, Span
from gradledger.sweep._nested import Nested
from gradledger.sweep._parallel import refuse
from gradledger.sweep._plan import Keep, Plan, keeps
from gradledger.sweep._planners import BudgetError
from gradledger.sweep._planning import Budget, Planned, read_plan, solve
from gradledger.sweep._profile import NO_TARGET, device_of
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._step import Step, ids_of, reverse
from gradledger.sweep._straight import Straight, plain_enough
from gradledger.sweep._verify import Verification, verify

Engine = Literal["sweep", "autograd"]


class PeakWarning(UserWarning):
    """A step needed more memory than its plan had predicted."""


class Sweep:
    """An explicit reverse pass over a chain of blocks.

    Args:
        model: the chain, as `sweep.blocks` takes it: nn.Sequential, a list of modules and functions, ...; inside
            DistributedDataParallel, or with blocks sharded by fully_shard, its gradients are reduced as there.
        loss_fn: (state, y) -> loss: a scalar, or a (nested) mapping or TensorDict of losses, which are summed.
        plan: None or "keep_all" (keep every local graph), what `sweep.plan` returned, a `Plan`, its text
            ("0 1 (2 3) 4"), or a planner's name; a plan that recomputes is checked for replay at the first step.
        budget: instead of a plan: bytes, "512MB", "25%", "min"; the plan is made at the first step of each kind of
            input and again where the kind changes.
        engine: "sweep", the explicit walk; "autograd", the same plan under one plain backward.
        generators: random generators that blocks draw from and that no module carries as an attribute.
        watch_cotangents: record norm, extremes, zeros and finiteness of every cotangent (read `cotangents`).
        check_peak_every: where there is a budget, measure the peak at the second step and then at every so many, and
            plan again when it is over; 0: never.

    Everything a step leaves behind (`.grad`, what stays None, buffers, random state, the loss) has the bits of the
    plain forward and `loss.backward()`.  A step that raises leaves all of it as it was.

    Example:
        >>> import torch
        >>> from gradledger import sweep
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> s = sweep.Sweep(net, torch.nn.functional.mse_loss, plan="(0 1) 2 3")
        >>> loss = s.backward(torch.ones(4, 2), torch.zeros(4, 1))
        >>> net[0].weight.grad.shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[..., Any],
        *,
        plan: Planned | Plan | str | None = None,
        budget: Budget = None,
        engine: Engine = "sweep",
        generators: Sequence[torch.Generator] = (),
        watch_cotangents: bool = False,
        check_peak_every: int = 500,
    ) -> None:
        if engine not in ("sweep", "autograd"):
            raise wrong(f"engine={engine!r}", "'sweep' or 'autograd'", "choose one; both give the same bits")
        if plan is not None and budget is not None:
            raise wrong("a plan and a budget", "one of them", "sweep.plan(..., budget=...) makes a plan for a budget")
        if watch_cotangents and engine == "autograd":
            raise wrong(
                "watch_cotangents with engine='autograd'",
                "the explicit walk, which alone sees the cotangents at the boundaries",
                "use engine='sweep'",
            )
        self.chain = Chain(model, loss_fn, generators)
        self.engine: Engine = engine
        self.budget = budget
        self.watch_cotangents = watch_cotangents
        self._every = check_peak_every
        self._given = read_plan(plan, len(self.chain.blocks))
        if self.chain.reduction is not None:
            self.chain.reduction.check(engine)
            if self.chain.reduction.collective:
                self._given = one_plan(self._given, budget)
        if isinstance(self._given, Planned):
            self._given.plan.validate(len(self.chain.blocks))
            self.chain.adopt(self._given.key, self._given.facts)
        elif isinstance(self._given, Plan):
            self._given.validate(len(self.chain.blocks))
        self._plans: dict[Key, Planned | Plan] = {}
        self._actions: dict[Key, tuple[Action, ...]] = {}
        self._straight: Straight | None = None
        self._ledger: CotangentLedger | None = None
        self._read: Cotangents | None = None
        self._steps = 0

    # what users call ----------------------------------------------------------------------------------------------

    def backward(
        self, x: Any, y: Any = None, *, gradient: Any = None, inputs: Any = None, create_graph: bool = False
    ) -> Any:
        """Forward, loss and reverse walk of one batch; fills `.grad` (adds to what is there).

        Args:
            x: the batch, what the first block takes; differentiated only where it requires a gradient itself.
            y: the target, handed to the loss.
            gradient: seed cotangents of the losses by their nested keys (weights: tensors like the losses, or numbers);
                None: ones.
            inputs: the leaves (a tensor or any nesting) that are to be given a gradient; None: all.
            create_graph: must be False: the graph is cut at every boundary.

        Returns:
            what the loss function returned, detached.

        Raises:
            SweepError: see `roots_and_seeds`; whatever a block raises, with a note that names the block.
        """
        straight = self._straight
        usual = gradient is None and inputs is None and not create_graph
        if straight is not None and usual and straight.fits(x) and self.chain.unchanged() and not passes.anyone():
            return straight.backward(x, y)
        return self._backward(x, y, gradient, inputs, create_graph)

    @modes_kept
    def forward(self, x: Any) -> Step:
        """Only the forward pass; the caller computes losses on `.output` and calls `.backward(losses)`.

        Raises:
            SweepError: a budget is set and no batch was planned yet, since planning needs the target too.
        """
        walk, _ = self._walk(x, NO_TARGET)
        try:
            walk.forward(x)
            return Step(walk, walk.output())
        except BaseException:
            walk.abandon()
            self.chain.forget()
            raise

    def reverse(self, x: Any, y: Any = None, *, gradient: Any = None) -> ReverseWalk:
        """The reverse walk as an iterator of events, the loss first, in the caller's hands.

        Leaving it early (`break` and `close`, or an exception in a `with` block) puts everything back.

        Example:
            >>> import torch
            >>> from gradledger import sweep
            >>> s = sweep.Sweep([torch.nn.Linear(2, 2), torch.tanh], torch.nn.functional.mse_loss)
            >>> [event.block for event in s.reverse(torch.ones(1, 2), torch.ones(1, 2))]
            ['loss', '1:tanh', '0']
        """
        if self.chain.reduction is not None and self.chain.reduction.by_accumulation:
            refuse(self.chain.reduction, "reverse", "use backward; with watch_cotangents=True it records cotangents")
        walk, _ = self._walk(x, y)
        if not isinstance(walk, Walk):
            raise wrong("reverse with engine='autograd'", "the explicit walk", "use engine='sweep'")
        try:
            loss = self._begin(walk, x, y, gradient)
        except BaseException:
            walk.abandon()
            self.chain.forget()
            raise
        return ReverseWalk(walk, Gradients(walk.parameters(), reduction=walk.reduction), loss)

    @modes_kept
    def step(
        self,
        x: Any,
        y: Any = None,
        *,
        optimizer: torch.optim.Optimizer,
        clip: float | None = None,
        norm_type: float = 2.0,
        keep_grads: Budget = 0,
        gradient: Any = None,
    ) -> Any:
        """Forward, reverse and optimizer step in one; each parameter is stepped, and its gradient freed, at once.

        Args:
            x, y, gradient: as for `backward`.
            optimizer: any torch optimizer whose step looks at each parameter alone (all but LBFGS).
            clip: largest total norm of all gradients, exact, as `clip_grad_norm_` does it; None: no clipping.
            norm_type: of that norm.
            keep_grads: bytes of gradients that may be held from the first walk to the second when clipping (a number
                or a text such as "32MB"); more memory, less work.

        Returns:
            the loss, detached; no parameter of the chain holds a gradient afterwards.

        Raises:
            SweepError: the optimizer needs a closure; the engine is "autograd".
        """
        if self.engine != "sweep":
            raise wrong("step with engine='autograd'", "the explicit walk", "use engine='sweep', or backward and step")
        refuse(self.chain.reduction, "step", "use backward, clip_grad_norm_ and optimizer.step")
        if clip is not None and not clip >= 0:
            raise wrong(f"clip={clip!r}", "a norm of zero or more, or None", "give clip=10.0, or leave it out")
        walk, plan = self._walk(x, y)
        room = bytes_of(keep_grads)
        if any(depth or keep.place for keep, depth in keeps(plan.items)):
            room = sys.maxsize  # graphs are recomputed or away under this plan, and must not pile up for a second walk
        _optimize.check(optimizer)
        try:
            loss = self._begin(walk, x, y, gradient)
            assert isinstance(walk, Walk)
            _optimize.step(walk, optimizer, clip=clip, norm_type=norm_type, keep_bytes=room)
        except BaseException:
            walk.abandon()
            self.chain.forget()
            raise
        self._steps += 1
        return loss

    def verify(self, x: Any, y: Any = None, *, steps: int = 1) -> Verification:
        """Both ways on copies of the model: this sweep, and the plain forward and backward; compared bit for bit.

        Args:
            x, y: a batch.
            steps: training steps (SGD) after each of which everything is compared.

        Returns:
            what was compared and the first name that differs, if any; true if none does.
        """
        if self.chain.reduction is not None and self.chain.reduction.by_accumulation:
            refuse(self.chain.reduction, "verify", "verify the chain before its blocks are sharded")
        return verify(self, x, y, steps=steps)

    def on(self, blocks: Blocks) -> Sweep:
        """The same sweep over other blocks (copies of these), the loss the last of them."""
        other = Sweep(
            blocks[:-1],
            blocks[-1].call,
            plan=self._given if not isinstance(self._given, Planned) else self._given.plan,
            budget=self.budget,
            engine=self.engine,
            generators=self.chain.generators,
            check_peak_every=0,
        )
        return other

    @property
    def cotangents(self) -> Cotangents | None:
        """The cotangents of the last step, with the block in which the first non-finite value was born."""
        if self._ledger is not None:
            self._read, self._ledger = self._ledger.finish(), None
        return self._read

    def plan_for(self, x: Any) -> Planned | Plan | None:
        """The plan that inputs like `x` are walked by; None before the first."""
        return self._plans.get(self.chain.key(x))

    # inside -------------------------------------------------------------------------------------------------------

    @modes_kept
    def _backward(self, x: Any, y: Any, gradient: Any, inputs: Any, create_graph: bool) -> Any:
        walk, plan = self._walk(x, y)
        self._steps += 1
        planned = self._plans.get(self.chain.key(x))
        due = self._every and (self._steps == 2 or self._steps % self._every == 0)
        if due and isinstance(planned, Planned) and planned.budget:
            return self._measured(walk, planned, x, y, gradient, inputs)
        return self._one(walk, plan, x, y, gradient, inputs, create_graph)

    def _one(
        self, walk: Walk | Nested, plan: Plan, x: Any, y: Any, gradient: Any, inputs: Any, create_graph: bool = False
    ) -> Any:
        chain = self.chain
        if inputs is not None:
            refuse(chain.reduction, "inputs=", "leave it out, and set requires_grad_(False) before wrapping")
        try:
            loss = self._begin(walk, x, y, gradient, create_graph)
            reverse(walk, ids_of(inputs))
        except BaseException:
            walk.abandon()
            chain.forget()
            raise
        if isinstance(walk, Walk) and type(x) is Tensor and not x.requires_grad and not self.watch_cotangents:
            if (
                self._straight is None
                and chain.reduction is None
                and all(isinstance(i, Keep) and not i.place for i in plan.items)
            ):
                if plain_enough(walk.facts) and not walk.ambient.autocast:
                    self._straight = Straight(chain.blocks, walk.facts, chain.modules, x)
        return loss

    def _begin(self, walk: Walk | Nested, x: Any, y: Any, gradient: Any, create_graph: bool = False) -> Any:
        """Forward and loss; the walk stands at its start.  Returns the loss, detached."""
        ledger = self._listen(walk, x) if self.watch_cotangents else None
        walk.forward(x)
        loss = walk.loss(y)
        result = _detached(loss)
        try:
            roots, seeds = roots_and_seeds(loss, gradient, create_graph=create_graph)
            if ledger is not None:
                ledger.loss(result, seeds if gradient is not None else ())
            walk.begin(roots, seeds)
        except BaseException:
            walk.abandon()
            raise
        return result  # the loss itself must go: it would hold the last boundary all the way back

    def _listen(self, walk: Walk | Nested, x: Any) -> CotangentLedger:
        assert isinstance(walk, Walk)
        ledger = self._ledger = CotangentLedger()
        names = [b.name for b in self.chain.blocks]
        walk.on_cotangent = lambda i, cotangents: ledger.update(names[i], cotangents)
        if self.watch_forward:
            ledger.data(x)
            walk.on_forward = lambda at, boundary: ledger.forward(names[at - 1], boundary.state())
        return ledger

    watch_forward = False
    """Also record each block's output (finds in which block a loss that is NaN began)."""

    def _walk(self, x: Any, y: Any) -> tuple[Walk | Nested, Plan]:
        chain = self.chain
        if not chain.unchanged():
            self._plans.clear()
            self._actions.clear()
            self._straight = None
        key = chain.key(x)
        found = self._plans.get(key)
        if found is None:
            while len(self._plans) >= KINDS:
                oldest = next(iter(self._plans))
                self._plans.pop(oldest)
                self._actions.pop(oldest, None)
            found = self._plans[key] = plan_for_kind(chain, self._given, self.budget, self._plans, key, x, y)
        facts = chain.facts(key)
        plan = found.plan if isinstance(found, Planned) else found
        walk: Walk | Nested
        if self.engine == "autograd":
            walk = Nested(chain.blocks, facts, plan, chain.generators)
        else:
            actions = self._actions.get(key)
            if actions is None:
                actions = self._actions[key] = plan.actions()
            walk = Walk(chain.blocks, facts, actions, chain.generators)
        walk.reduction = chain.reduction
        return walk, plan

    def _measured(self, walk: Walk | Nested, planned: Planned, x: Any, y: Any, gradient: Any, inputs: Any) -> Any:
        """One step whose peak is compared with the prediction; when it is over the budget, a new plan is made."""
        watch = MemoryWatch(device_of(self.chain.blocks, x))
        with ExitStack() as stack:
            try:
                stack.enter_context(watch)
            except MemoryWatchError:  # a profiler of the user's is running: measure another time
                return self._one(walk, planned.plan, x, y, gradient, inputs)
            if isinstance(walk, Walk):
                walk.on_action = lambda action: watch.mark(str(action))
            loss = self._one(walk, planned.plan, x, y, gradient, inputs)
        worst = max(watch.spans, key=lambda span: span.peak)
        assert planned.budget is not None
        if worst.peak > planned.budget:
            self._tighten(planned, worst, x)
        return loss

    def _tighten(self, planned: Planned, worst: Span, x: Any) -> None:
        """Say where the budget was broken, and plan with what was missing set aside."""
        assert planned.budget is not None
        at = f"`{worst.name}` ({self._name(worst.name)})" if worst.name[-1].isdigit() else "the step"
        warnings.warn(
            PeakWarning(
                f"gradledger sweep: {worst.peak} bytes at {at}, over the budget of {planned.budget} (predicted "
                f"{planned.peak}); planning again with what was missing set aside"
            ),
            stacklevel=5,
        )
        key = self.chain.key(x)
        missing = max(worst.peak - planned.budget, worst.peak - planned.peak)
        facts = self.chain.facts(key)
        try:
            less = max(1, planned.budget - missing)
            again = solve(planned.costs, key, facts, budget=less, planner=planned.planner, **planned.options)
        except BudgetError:
            return  # nothing smaller is left; the warning stands
        self._plans[key] = replace(again, budget=planned.budget)
        self._actions.pop(key, None)

    def _name(self, action: str) -> str:
        return self.chain.blocks[int(action.split()[1])].name


def _detached(loss: Any) -> Any:
    """The losses without graph and in memory of their own: mse_loss returns a number in the memory of all its terms."""
    if isinstance(loss, Tensor):
        return loss.detach().clone()
    return pytree.tree_map(lambda t: t.detach().clone() if isinstance(t, Tensor) else t, loss)
