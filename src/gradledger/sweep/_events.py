"""The reverse walk in the user's hands: one event a block, each with its cotangents and gradients."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from typing import Any, final

from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep._executor import Cotangents, Walk
from gradledger.sweep._gradients import Gradients
from gradledger.sweep._halves import WeightHalf, WholeAgain


@final
class Deferred:
    """The parameter half of one block's product (dW), still to be computed; `run` adds it into `.grad`.

    It holds the block's graph until then.  What has not been run when the walk ends is run by the walk.
    """

    def __init__(self, walk: Walk, i: int, half: WeightHalf | WholeAgain) -> None:
        self.block = walk.blocks[i].name
        self._walk, self._half = walk, half
        self.done = False

    def run(self) -> None:
        """Compute the parameter gradients and add them into `.grad`; once."""
        if self.done:
            return
        self.done = True
        with self._walk.reversing():
            products, taken = self._half.run()
        for p, g in products:
            self._walk.gradients.add(p, g, taken)


@final
class Event:
    """One block of a reverse walk, before its product is taken.

    Attributes:
        index, block: which block (the loss is the last) and its name.
        cotangent: d_out, the cotangent of what the block returned: a tensor, or a tuple for several.
    """

    def __init__(self, walk: Walk, i: int) -> None:
        self._walk = walk
        self.index, self.block = i, walk.blocks[i].name
        self.cotangent = _one(walk.cotangents)
        self._taken: list[tuple[Tensor, Tensor]] | None = None

    @property
    def grads(self) -> dict[str, Tensor]:
        """What this block's product gives its parameters, by name (of a shared parameter: the sum so far).

        Asking takes the product.
        """
        self._take()
        names = self._names()
        assert self._taken is not None
        return {names[id(p)]: g for p, g in self._taken}

    @property
    def d_in(self) -> Any:
        """The cotangent of the block's input, a tensor or a tuple; asking takes the product."""
        self._take()
        return _one(self._walk.cotangents)

    def defer_weights(self) -> Deferred:
        """Take only the input half of the product now (dX), so that the walk can go on; the rest when `run` is called.

        Raises:
            SweepError: the product has been taken, or a parameter of the block is shared with another block, whose
                sum would be taken out of order.
        """
        walk, i = self._walk, self.index
        if self._taken is not None or i not in walk.tape:
            raise SweepError(
                got="a block whose product has been taken",
                wanted="defer_weights before grads or d_in are read",
                where=f"block {self.block}",
                next_step="call defer_weights first in the loop's body",
            )
        if walk.facts[i].shared:
            raise SweepError(
                got="a block that shares a parameter with another block",
                wanted="blocks with parameters of their own: the sum over blocks has an order",
                where=f"block {self.block}",
                next_step="let the walk take this block whole, or put the blocks that share into one",
            )
        self._taken = []
        deferred = Deferred(walk, i, walk.product_of_input(i))
        walk.deferred.append(deferred)
        return deferred

    def _take(self) -> None:
        if self._taken is None:
            self._taken = []
            if self.index in self._walk.tape:
                with self._walk.reversing():
                    self._taken = self._walk.product(self.index, tell=True)

    def _names(self) -> dict[int, str]:
        block = self._walk.blocks[self.index]
        names: dict[int, str] = {}
        for root in block.modules[:1]:
            names.update((id(p), name) for name, p in root.named_parameters())
        for module in block.modules[1:]:
            for name, p in module.named_parameters(recurse=False):
                names.setdefault(id(p), f"{type(module).__name__}.{name}")
        for number, (leaf, _) in enumerate(self._taken or ()):
            names.setdefault(id(leaf), f"parameter {number}")
        return names


@final
class ReverseWalk:
    """An iterator of events, the loss first.  When it ends every `.grad` is filled; left early, nothing is.

    Attributes:
        loss: what the loss function returned, detached.
    """

    def __init__(self, walk: Walk, gradients: Gradients, loss: Any) -> None:
        self.loss = loss
        self._walk, self._gradients = walk, gradients
        self._events = self._run(walk, gradients)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """Stop here: gradients, buffers and random state are put back as they were before the step."""
        if inspect.getgeneratorstate(self._events) == inspect.GEN_CREATED:  # closing it would run nothing of it
            self._gradients.undo()
            self._walk.abandon()
        self._events.close()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> ReverseWalk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _run(walk: Walk, gradients: Gradients) -> Generator[Event, None, None]:
        try:
            for i in walk.reverse(gradients):
                yield Event(walk, i)
            for deferred in walk.deferred:
                deferred.run()
            gradients.finish()
        except BaseException:
            gradients.undo()
            if gradients.committed:
                walk.release()
            else:
                walk.abandon()
            raise
        walk.release()


def _one(values: Cotangents) -> Any:
    return values[0] if len(values) == 1 else tuple(values)
