"""One whole reverse walk, and the forward pass that waits for the caller's own losses."""

from __future__ import annotations

from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep._executor import Walk
from gradledger.sweep._gradients import Gradients
from gradledger.sweep._nested import Nested
from gradledger.sweep._parallel import refuse
from gradledger.sweep._seed import roots_and_seeds


class Step:
    """One forward pass whose reverse is still to come.

    Attributes:
        output: what the chain returned; its tensors ask for gradients, so any losses may be computed on it.
    """

    def __init__(self, walk: Walk | Nested, output: Any) -> None:
        self._walk: Walk | Nested | None = walk
        self.output = output

    def backward(self, losses: Any, gradient: Any = None, *, inputs: Any = None, create_graph: bool = False) -> None:
        """Walk back from `losses` (their sum, weighted by `gradient`); fills `.grad`.  Once.

        Args:
            losses: a tensor, nested mapping or TensorDict of tensors computed from `output`.
            gradient: the seed cotangents, by the same nested keys; None: ones, for single-element losses.
            inputs: the leaves to give a gradient, all others are left alone; None: all.
            create_graph: must be False.

        Raises:
            SweepError: called a second time; else see `roots_and_seeds`.
        """
        if self._walk is None:
            raise SweepError(
                got="a second backward of one forward pass",
                wanted="one: the graphs are freed as the walk goes, as by a backward without retain_graph",
                where="Step.backward",
                next_step="add the losses up first, hand them in as one mapping, or run forward again",
            )
        roots, seeds = roots_and_seeds(losses, gradient, create_graph=create_graph)
        walk, self._walk = self._walk, None
        if inputs is not None:
            refuse(walk.reduction, "inputs=", "leave it out, and set requires_grad_(False) before wrapping")
        walk.begin(roots, seeds)
        del roots, seeds
        reverse(walk, ids_of(inputs))


def reverse(walk: Walk | Nested, only: dict[int, Tensor] | None = None) -> None:
    """The reverse walk of one step that has been begun: every `.grad`, or none."""
    gradients = Gradients(walk.parameters(), only, walk.reduction, aside=False)
    try:
        gradients.set_aside()
        for _ in walk.reverse(gradients):
            pass
        gradients.finish()
    except BaseException:
        gradients.undo()
        if gradients.committed:
            walk.release()
        else:
            walk.abandon()
        raise
    walk.release()


def ids_of(inputs: Any) -> dict[int, Tensor] | None:
    """The leaves that a caller wants gradients for, by id; None: all."""
    if inputs is None:
        return None
    leaves = [inputs] if isinstance(inputs, Tensor) else pytree.tree_leaves(inputs)
    return {id(t): t for t in leaves if isinstance(t, Tensor)}
