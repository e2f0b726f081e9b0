"""`Sweep`: a chain of blocks, a loss and a plan; each call is one explicit reverse pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep._action import Action
from gradledger.sweep._block import Blocks, blocks, one_block
from gradledger.sweep._executor import Walk
from gradledger.sweep._facts import Facts
from gradledger.sweep._gradients import Gradients
from gradledger.sweep._nested import Nested
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._straight import Straight, plain_enough

Engine = Literal["sweep", "autograd"]
Key = tuple[Any, ...]


class Chain:
    """Blocks with their loss, and what is known of them for each kind of input."""

    def __init__(self, model: Any, loss_fn: Callable[..., Any], generators: Sequence[torch.Generator]) -> None:
        loss = one_block("loss", loss_fn)
        self.blocks: Blocks = (*blocks(model), loss)
        self.generators = tuple(generators)
        self.modules = tuple({id(m): m for b in self.blocks for m in b.modules}.values())
        self._facts: dict[Key, list[Facts]] = {}

    def key(self, x: Any) -> Key:
        """What a block's behaviour depends on: the input's kind, the modes, what is trained."""
        kind = _kind(x) if isinstance(x, Tensor) else tuple(_kind(t) for t in pytree.tree_leaves(x))
        trained = tuple(p.requires_grad for m in self.modules for p in m._parameters.values() if p is not None)
        return (kind, tuple(m.training for m in self.modules), trained, _autocast())

    def facts(self, key: Key) -> list[Facts]:
        """What is known for inputs of this kind (filled in by the first step)."""
        known = self._facts.get(key)
        if known is None:
            known = self._facts[key] = [Facts() for _ in self.blocks]
        return known

    def forget(self) -> None:
        """Look again at the next step: a failed first step may have seen half."""
        self._facts = {k: f for k, f in self._facts.items() if all(one.looked for one in f)}


def _kind(x: Any) -> Any:
    if isinstance(x, Tensor):
        return (x.shape, x.dtype, x.device, x.requires_grad, x.stride() if x.layout is torch.strided else None)
    return type(x)


def _autocast() -> Any:
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return tuple(torch.get_autocast_dtype(k) for k in kinds if torch.is_autocast_enabled(k))


class Step:
    """One forward pass whose reverse is still to come.

    Attributes:
        output: the chain's output, detached; its tensors ask for gradients, so any losses may be computed on it.
    """

    def __init__(self, walk: Walk, parameters: Callable[[], Iterable[Tensor]]) -> None:
        self._walk, self._parameters = walk, parameters
        self.output = walk.output()

    def backward(self, losses: Any, gradient: Any = None, *, inputs: Any = None, create_graph: bool = False) -> None:
        """Walk back from `losses` (a sum over them, weighted by `gradient`); fills `.grad`.

        Args:
            losses: a tensor, nested mapping or TensorDict of tensors computed from `output`.
            gradient: the seed cotangents, by the same nested keys; None: ones, for single-element losses.
            inputs: the leaves to give a gradient, all others are left alone; None: all.
            create_graph: refused.

        Raises:
            SweepError: see `roots_and_seeds`.
        """
        roots, seeds = roots_and_seeds(losses, gradient, create_graph=create_graph)
        self._walk.begin(roots, seeds)
        del roots, seeds
        reverse(self._walk, _ids(inputs))


def reverse(walk: Walk | Nested, only: set[int] | None = None) -> None:
    """The reverse walk of one step that has been begun: every `.grad`, or none."""
    gradients = Gradients(walk.parameters(), only)
    try:
        for _ in walk.reverse(gradients):
            pass
        gradients.finish()
    except BaseException:
        gradients.undo()
        walk.abandon()
        raise
    walk.release()


class Sweep:
    def __init__(
        self,
        model: Any,
        loss_fn: Callable[[Any, Any], Any],
        *,
        plan: Any = None,
        engine: Engine = "sweep",
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        self.chain = Chain(model, loss_fn, generators)
        self.engine = engine
        n = len(self.chain.blocks)
        if plan is None:
            self._actions: tuple[Action, ...] = (
                *(Action("record", i) for i in range(n)),
                *(Action("reverse", i) for i in reversed(range(n))),
            )
        else:
            self._actions = plan.actions()
        self._keeps_all=all(a.kind in ("record","reverse") for a in self._actions)
        self._straight: Straight|None=None

    def backward(self, x: Any, y: Any = None, *, gradient: Any = None, inputs: Any = None) -> Any:
        chain = self.chain
        if gradient is None and inputs is None and self._straight is not None and self._straight.fits(x):
            return self._straight.backward(x, y)
        walk = Walk(chain.blocks, chain.facts(chain.key(x)), self._actions, chain.generators)
        try:
            walk.forward(x)
            loss = walk.loss(y)
            result = _detached(loss)
            try:
                walk.begin(*roots_and_seeds(loss, gradient))
            except BaseException:
                walk.abandon()
                raise
            del loss  # it would hold the last boundary all the way back
            reverse(walk, _ids(inputs))
        except BaseException:
            chain.forget()
            raise
        if self._keeps_all and plain_enough(walk.facts):
            self._straight = Straight(chain.blocks, walk.facts, chain.modules, x)
        return result


def _ids(inputs: Any) -> set[int] | None:
    if inputs is None:
        return None
    leaves = [inputs] if isinstance(inputs, Tensor) else pytree.tree_leaves(inputs)
    return {id(t) for t in leaves}


def _detached(loss: Any) -> Any:
    if isinstance(loss, Tensor):
        return loss.detach()
    return pytree.tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, loss)
