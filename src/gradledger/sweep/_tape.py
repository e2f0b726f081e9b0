"""What the forward pass leaves for the reverse pass: of each block its outputs and its input leaves."""

from __future__ import annotations

from dataclasses import dataclass

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
