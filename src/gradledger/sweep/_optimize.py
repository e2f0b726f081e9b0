"""Step and free: each parameter is stepped as soon as its gradient is final, and the gradient goes at once.

With a clip the norm of all gradients is needed before the first step: a first walk takes the norms and keeps the
graphs, a second takes the parameter half of each product again.  Gradients that fit into `keep_grads` are kept from the
first walk instead.  The norm, the coefficient and every update have the bits of `clip_grad_norm_` and `step`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep import _vjp
from gradledger.sweep._executor import Walk
from gradledger.sweep._gradients import Gradients


class Stepper:
    """An optimizer that is stepped a few parameters at a time.

    What a step changes in a group besides the parameters (a counter of its own) is changed once, as by one step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = optimizer.param_groups
        self._all = [group["params"] for group in self._groups]
        self._where = {id(p): k for k, params in enumerate(self._all) for p in params}
        self._before = [{k: v for k, v in group.items() if k != "params"} for group in self._groups]
        self._after: list[dict[str, Any]] | None = None
        self.stepped: set[int] = set()

    def step(self, parameters: Iterable[Tensor]) -> None:
        """Step these parameters, those of them that the optimizer has."""
        mine = [p for p in parameters if id(p) in self._where and p.grad is not None]
        if not mine:
            return
        wanted = {id(p) for p in mine}
        try:
            for group, params, before in zip(self._groups, self._all, self._before, strict=True):
                group.update(before)
                group["params"] = [p for p in params if id(p) in wanted]
            self._optimizer.step()
            self._after = [{k: v for k, v in group.items() if k != "params"} for group in self._groups]
        finally:
            for group, params in zip(self._groups, self._all, strict=True):
                group["params"] = params
        self.stepped |= wanted

    def finish(self) -> None:
        """Step whatever else of the optimizer has a gradient: parameters of other models."""
        rest = [p for params in self._all for p in params if id(p) not in self.stepped and p.grad is not None]
        self.step(rest)


def check(optimizer: Any) -> None:
    """Raise SweepError for what cannot be stepped a few parameters at a time."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SweepError(
            got=f"optimizer of type {type(optimizer).__name__}",
            wanted="a torch.optim.Optimizer",
            where="Sweep.step",
            next_step="give the optimizer itself; with a wrapper call backward, then the wrapper's step",
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure is not None and closure.default is inspect.Parameter.empty):
        raise SweepError(
            got=f"{type(optimizer).__name__}, which evaluates the loss itself, several times a step",
            wanted="an optimizer whose step looks at each parameter and its gradient alone",
            where="Sweep.step",
            next_step="call backward inside its closure: optimizer.step(lambda: sweep.backward(x, y))",
        )


class Final:
    """Knows, block by block, which parameters have their whole gradient."""

    def __init__(self, walk: Walk) -> None:
        last: dict[int, int] = {}
        self._parameters = {id(p): p for f in walk.facts for p in f.parameters}
        for i in reversed(range(len(walk.facts))):
            for p in walk.facts[i].parameters:
                last[id(p)] = i
        self._at: dict[int, list[Tensor]] = {}
        for key, i in last.items():
            self._at.setdefault(i, []).append(self._parameters[key])

    def after(self, i: int) -> list[Tensor]:
        """Parameters whose gradient is whole once block i has been reversed."""
        return self._at.get(i, [])


def step(
    walk: Walk, optimizer: torch.optim.Optimizer, *, clip: float | None, norm_type: float, keep_bytes: int
) -> None:
    """Reverse walk and optimizer step in one; afterwards no parameter of the chain holds a gradient.

    An error before the first parameter is stepped leaves everything as it was; one after it cannot, and says so.
    """
    stepper = Stepper(optimizer)
    try:
        if clip is None:
            _at_once(walk, stepper)
        else:
            _clipped(walk, stepper, clip, norm_type, keep_bytes)
        stepper.finish()
    except BaseException as error:
        walk.abandon()
        if stepper.stepped:
            error.add_note(
                f"gradledger sweep: {len(stepper.stepped)} parameters had been stepped when this happened; load a "
                "checkpoint, or use backward and optimizer.step where a step must be all or nothing"
            )
        raise
    walk.release()


def _at_once(walk: Walk, stepper: Stepper) -> None:
    final = Final(walk)
    gradients = Gradients(walk.parameters())
    try:
        for i in walk.reverse(gradients):
            walk.tell_begins()
            with walk.reversing():
                walk.product(i)
            done = final.after(i)
            gradients.merge(done)
            if done:
                walk.tell_ends()
            stepper.step(done)
            for p in done:
                p.grad = None
    except BaseException:
        gradients.undo()
        raise


class _Collected:
    """Takes the place of `Gradients`: holds each whole gradient until it has been looked at."""

    only = None

    def __init__(self) -> None:
        self.held: dict[int, Tensor] = {}

    def add(self, parameter: Tensor, gradient: Tensor, taken: Sequence[Tensor | None]) -> None:
        self.held[id(parameter)] = gradient


def _clipped(walk: Walk, stepper: Stepper, clip: float, norm_type: float, keep_bytes: int) -> None:
    final = Final(walk)
    order = walk.parameters()
    for p in order:
        if p._backward_hooks:
            raise SweepError(
                got="a hook on a parameter, with clip: its gradient is computed twice, so the hook would run twice",
                wanted="parameters without tensor hooks",
                where="Sweep.step",
                next_step="call backward, clip_grad_norm_ and optimizer.step, or register_post_accumulate_grad_hook",
            )
    older = {id(p): p.grad for p in order if p.grad is not None}
    norms: dict[int, Tensor] = {}
    kept: dict[int, Tensor] = {}
    again: list[tuple[int, tuple[_vjp.Root, ...], tuple[Tensor, ...]]] = []
    collected = _Collected()
    room = keep_bytes
    for i in walk.reverse(collected):  # type: ignore[arg-type]
        whole_before = {id(p) for p in walk.facts[i].shared}
        roots, d_out = walk.product_to_repeat(i)
        done = [p for p in final.after(i) if id(p) in collected.held]
        for p in done:
            whole = collected.held[id(p)]
            if id(p) in older:
                whole = older[id(p)] + whole
            norms[id(p)] = torch.linalg.vector_norm(whole, norm_type)
        size = sum(collected.held[id(p)].nbytes for p in done)
        if size <= room or size <= sum(d.nbytes for d in d_out) or whole_before or not roots:
            room -= size if size <= room else 0
            kept.update((id(p), collected.held[id(p)]) for p in done)
        elif done:
            again.append((i, roots, d_out))
        collected.held.clear()
        del roots, d_out
    for p in order:  # not reached by this step, but by an earlier one whose gradient waits
        if id(p) in older and id(p) not in norms:
            norms[id(p)] = torch.linalg.vector_norm(older[id(p)], norm_type)
    coefficient = _coefficient([norms[id(p)] for p in order if id(p) in norms], clip, norm_type)
    by_block = {i: (roots, d_out) for i, roots, d_out in again}
    del again
    for i in reversed(range(len(walk.blocks))):
        done = final.after(i)
        products: list[Tensor | None]
        if i in by_block:
            roots, d_out = by_block.pop(i)
            with walk.reversing():
                products = list(_vjp.capture(roots, d_out, tuple(done)))
        else:
            roots, d_out = (), ()
            products = [kept.pop(id(p), None) for p in done]
        if done:
            walk.tell_begins()
        for p, g in zip(done, products, strict=True):
            if g is not None:
                _vjp.give(p, g, d_out)
            if p.grad is not None:
                _scale(p, coefficient)
        products.clear()
        if done:
            walk.tell_ends()
        stepper.step(done)
        for p in done:
            p.grad = None


def _scale(parameter: Tensor, coefficient: Tensor) -> None:
    grad = parameter.grad
    assert grad is not None
    grad.mul_(coefficient)


def _coefficient(norms: list[Tensor], clip: float, norm_type: float) -> Tensor:
    """What `torch.nn.utils.clip_grad_norm_` multiplies every gradient with."""
    if not norms:
        return torch.ones(())
    total = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]), norm_type)
    return torch.clamp(clip / (total + 1e-6), max=1.0)
