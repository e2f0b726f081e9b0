"""Gradients against finite differences, in float64, on a copy of the model.

Every derivative is compared with a central difference ``(L(w + h) - L(w - h)) / 2h`` whose error is of order h² plus
rounding of order eps·|L|/h. At a kink (a ReLU at 0) no difference quotient can agree with a derivative that does not
exist: there the two one-sided quotients differ however small h becomes, and the entry is told as a kink, not failed.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Blocks, blocks, one_block
from gradledger.sweep._probe import GradientCheck, Probe, Verdict
from gradledger.sweep._replay import RandomState
from gradledger.sweep._twin import Backward, Twin, in_double, named_parameters

_EPS = 2.0**-52
_ROUNDING = 16.0  # rounding of one loss, in units of eps·|loss|; a difference quotient divides it by the step


def check_gradients(
    model: Any,
    x: Any,
    y: Any,
    loss_fn: Callable[[Any, Any], Any],
    *,
    epsilon: float = 1e-6,
    tolerance: float = 1e-6,
    floor: float | None = None,
    entries: int = 16,
    names: Sequence[str] | None = None,
    rng_seed: int = 0,
    backward: Backward | None = None,
) -> GradientCheck:
    """Compare the gradients of a model with central finite differences.

    Everything runs in float64 on a deep copy: parameters, buffers, floating-point data; casts to a lower precision
    inside the model (``.float()``, autocast) are lifted to float64, and what `torch.compile` wrapped runs uncompiled.
    Random state (torch, NumPy, Python), buffers and data are put back before each evaluation. The caller's model, data
    and random streams are as before.

    Args:
        model: any module, or what `sweep.blocks` takes (a list of modules and functions).
        x: the data; leaves that require a gradient are checked too, as ``x``.
        y: handed to `loss_fn`.
        loss_fn: ``loss_fn(output, y)`` -> scalar tensor, mapping of named losses or TensorDict (added up).
        epsilon: step h for an entry w is ``epsilon * max(1, |w|)``.
        tolerance: relative.
        floor: absolute difference that counts as equal; default: the rounding of a difference quotient,
            ``16 * 2**-52 * max(1, |loss|) / epsilon``.
        entries: per parameter. Smaller ones are checked whole; of larger ones the entry with the largest gradient,
            ``entries - 1`` at random and one random direction over all of them.
        names: of the parameters to check (default all that require a gradient).
        rng_seed: of the sampled entries and of the streams that the model draws from.
        backward: another reverse pass, ``backward(calls, x, y, loss_fn)``, that fills ``.grad``; default autograd's.

    Returns:
        a `GradientCheck`: false if anything is wrong, and printable.

    Raises:
        SweepError: parameters that are integer, complex or not initialised; a loss that is not one number, not finite
            or without a graph; a model that gives two results for the same input and random state, by block.

    Example:
        >>> import torch
        >>> from gradledger.sweep._check import check_gradients
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        >>> check = check_gradients(model, torch.ones(4, 2), torch.zeros(4, 1), torch.nn.functional.mse_loss)
        >>> bool(check), len(check.probes)
        (True, 13)
    """
    for name, value in (("epsilon", epsilon), ("tolerance", tolerance), ("entries", entries)):
        if not value > 0 or not math.isfinite(value):
            raise SweepError(
                got=f"{name}={value!r}", wanted="a positive number", where="check_gradients", next_step="leave it out"
            )
    chain = _read(model)
    _refuse_odd_parameters(chain, names)
    with _random_streams(rng_seed):
        twin = Twin(chain, x, y, loss_fn)
        leaves = _chosen(twin, names)
        with in_double():
            loss = twin.loss()
            twin.fill(backward)
            grads = {name: None if p.grad is None else p.grad.detach().to_dense() for name, p in leaves.items()}
            for leaf in leaves.values():
                leaf.grad = None
            absolute = floor if floor is not None else _ROUNDING * _EPS * max(1.0, abs(loss)) / epsilon
            compare = _Compare(twin.loss, loss, epsilon, tolerance, absolute)
            generator = torch.Generator().manual_seed(rng_seed)
            probes = [
                compare(name, leaf, grads[name], where)
                for name, leaf in leaves.items()
                for where in _places(leaf, grads[name], int(entries), generator)
            ]
    return GradientCheck(loss, tuple(probes), epsilon, tolerance, absolute)


Place = tuple[int, ...] | Tensor


def _places(leaf: Tensor, grad: Tensor | None, entries: int, generator: torch.Generator) -> Iterator[Place]:
    """Indices of entries, and of a large tensor one direction: it sees a wrong entry that was not drawn."""
    n = leaf.numel()
    if n <= entries:
        flat = list(range(n))
    else:
        drawn = torch.randperm(n, generator=generator)[: entries - 1].tolist()
        largest = [] if grad is None else [int(grad.abs().reshape(-1).argmax())]
        flat = sorted({*drawn, *largest})
    for k in flat:
        yield tuple(int(i) for i in np.unravel_index(k, tuple(leaf.shape)))
    if n > entries:
        direction = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        yield (direction / direction.norm()).to(leaf.device)


class _Compare:
    """One probe: a central difference, and where it disagrees, one-sided ones at smaller and smaller steps."""

    def __init__(
        self, loss: Callable[[], float], centre: float, epsilon: float, tolerance: float, floor: float
    ) -> None:
        self.loss, self.centre, self.epsilon, self.tolerance, self.floor = loss, centre, epsilon, tolerance, floor

    def __call__(self, name: str, leaf: Tensor, grad: Tensor | None, place: Place) -> Probe:
        index = None if isinstance(place, Tensor) else place
        if grad is None:
            analytic = 0.0
        elif isinstance(place, Tensor):
            analytic = float((grad * place).sum())
        else:
            analytic = float(grad[place])
        step = self.epsilon if index is None else self.epsilon * max(1.0, abs(float(leaf.detach()[index])))
        left, right = self._slopes(leaf, place, step)
        numeric = 0.5 * (left + right)
        error = self._error(analytic, numeric)
        if self._close(analytic, numeric, step):
            return Probe(name, index, analytic, numeric, error, "equal")
        verdict, numeric, sides = self._closer(leaf, place, step, analytic, (left, right))
        if verdict == "wrong" and grad is None:
            verdict = "cut"
        return Probe(name, index, analytic, numeric, self._error(analytic, numeric), verdict, sides)

    def _closer(
        self, leaf: Tensor, place: Place, step: float, analytic: float, first: tuple[float, float]
    ) -> tuple[Verdict, float, tuple[float, float]]:
        """Smaller steps: curvature shrinks with the step, a corner stays, a jump grows, a corner nearby vanishes."""
        gaps = [abs(first[1] - first[0])]
        sides, here = first, step
        for _ in range(2):
            here /= 8.0
            sides = self._slopes(leaf, place, here)
            gaps.append(abs(sides[1] - sides[0]))
            numeric = 0.5 * (sides[0] + sides[1])
            if self._close(analytic, numeric, here):
                nearby = gaps[-2] > 16.0 * gaps[-1] and gaps[-2] > self._slack(analytic, numeric, here)
                return ("kink" if nearby else "equal"), numeric, (first if nearby else sides)
        slack = self._slack(*sides, here)
        stays = gaps[-1] > slack and gaps[-1] > 0.5 * gaps[0]
        if stays and min(sides) - slack <= analytic <= max(sides) + slack:
            return "kink", 0.5 * (sides[0] + sides[1]), sides
        return "wrong", 0.5 * (first[0] + first[1]), first

    def _slopes(self, leaf: Tensor, place: Place, step: float) -> tuple[float, float]:
        """One-sided difference quotients; their mean is the central one."""
        down, moved_down = self._moved(leaf, place, -step)
        up, moved_up = self._moved(leaf, place, step)
        return (down - self.centre) / moved_down, (up - self.centre) / moved_up

    def _moved(self, leaf: Tensor, place: Place, step: float) -> tuple[float, float]:
        """The loss with `leaf` moved, and by how much it really moved; the leaf is as before."""
        with torch.no_grad():
            if isinstance(place, Tensor):
                kept = leaf.detach().clone()
                leaf.add_(place, alpha=step)
                try:
                    return self.loss(), step
                finally:
                    leaf.copy_(kept)
            before = float(leaf[place])
            leaf[place] = before + step
            try:
                return self.loss(), float(leaf[place]) - before
            finally:
                leaf[place] = before

    def _slack(self, a: float, b: float, step: float) -> float:
        """What counts as equal at this step: rounding grows as the step shrinks."""
        return self.tolerance * max(abs(a), abs(b)) + self.floor * max(1.0, self.epsilon / step)

    def _close(self, a: float, b: float, step: float) -> bool:
        return abs(a - b) <= self._slack(a, b, step)  # False for NaN

    def _error(self, a: float, b: float) -> float:
        error = abs(a - b) / max(abs(a), abs(b), self.floor / self.tolerance)
        return error if math.isfinite(error) else math.inf


def _read(model: Any) -> Blocks:
    """The model as blocks; a module with a forward of its own is one block."""
    plain = isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward
    if isinstance(model, nn.Module) and not plain and not isinstance(model, nn.ModuleList | nn.ModuleDict):
        return (one_block("", model),)
    return blocks(model)


def _chosen(twin: Twin, names: Sequence[str] | None) -> Mapping[str, Tensor]:
    leaves = twin.named_leaves()
    unknown = [name for name in names or () if name not in leaves]
    if unknown or not leaves:
        raise SweepError(
            got=f"names={list(unknown)}" if unknown else "a model in which nothing requires a gradient",
            wanted=f"some of {', '.join(leaves)}" if leaves else "at least one parameter with requires_grad=True",
            where="check_gradients",
            next_step="take the names from this list" if leaves else "unfreeze what is to be checked",
        )
    return leaves if names is None else {name: leaves[name] for name in names}


def _refuse_odd_parameters(chain: Blocks, names: Sequence[str] | None) -> None:
    for name, parameter in named_parameters(chain).items():
        if names is not None and name not in names:
            continue
        if nn.parameter.is_lazy(parameter):
            got, hint = "a lazy parameter without a shape", "run the model once on real data first"
        elif parameter.is_meta:
            got, hint = "a parameter on the meta device, without values", "materialise the model first"
        elif parameter.is_complex():
            got = f"a parameter of dtype {parameter.dtype}"
            hint = "hold real and imaginary part as two parameters, or leave it out with names="
        elif not parameter.is_floating_point():
            got = f"a parameter of dtype {parameter.dtype}"
            hint = "make it a buffer (integers have no gradient), or leave it out with names="
        else:
            continue
        raise SweepError(got=got, wanted="real floating-point parameters", where=f"parameter {name}", next_step=hint)


@contextlib.contextmanager
def _random_streams(rng_seed: int) -> Iterator[None]:
    """Every stream set to `rng_seed`, and put back."""
    outer, outer_numpy, outer_python = RandomState(), np.random.get_state(), random.getstate()
    torch.manual_seed(rng_seed)
    np.random.seed(rng_seed)
    random.seed(rng_seed)
    try:
        yield
    finally:
        outer.restore()
        np.random.set_state(outer_numpy)
        random.setstate(outer_python)
