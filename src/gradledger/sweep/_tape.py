"""What the forward pass leaves for the reverse pass: per block its outputs and its input leaves, popped as they are used."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from gradledger.sweep._vjp import Root


@dataclass(slots=True, eq=False)
class Recorded:
    """One block's local graph.

    roots: the outputs that carry a gradient, in the order of the next boundary's cotangents; an output whose memory
    nobody reads any more is there as the edge of the graph alone.
    leaves: the tensors of its input that the walk differentiates, in the order of this boundary's cotangents.
    """

    roots: list[Root]
    leaves: tuple[Tensor, ...]


@dataclass(slots=True)
class Tape:
    """The local graphs that are alive, by block."""

    recorded: dict[int, Recorded] = field(default_factory=dict)

    def push(self, block: int, recorded: Recorded) -> None:
        self.recorded[block] = recorded

    def pop(self, block: int) -> Recorded:
        return self.recorded.pop(block)

    def peek(self, block: int) -> Recorded | None:
        return self.recorded.get(block)
