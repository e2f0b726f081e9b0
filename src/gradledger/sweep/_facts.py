"""What is known of a block for inputs of one kind: found by watching it run once, never guessed from its type."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Block, place_of
from gradledger.sweep._replay import Found, Named, RandomState, Still, first_run, is_small
from gradledger.sweep._state import Boundary, address_of, equal_bits


@dataclass(slots=True, eq=False)
class Facts:
    """What one block does with inputs of one kind.

    Attributes:
        looked: whether a recorded run has been watched (else everything below is the cautious default).
        copies: it writes into its input, so it is given a copy.
        random: it draws from torch's generators.
        buffers: the buffers that it changes, as (module, name).
        small: its other buffers that are small enough to be noted on the chance that it changes them another time.
        still: the rest.
        no_grad: run without recording it gives the same bits (None: not tried, so it is run recording, saving nothing).
        capture: cotangents are taken by capture, because accumulation would change their memory layout.
        unsaved: which of its leaves its own graph does not save: their memory can go unless the block before needs it.
        droppable: those of them that the block before has not saved either.
        parameters: the parameters that its local graph reaches.
        shared: those of them that another block reaches too.
        last_use: those of `shared` whose sum is complete after this block's reverse.
        needs: of the leaves of its output, which carry a gradient.
        single: its output is one tensor.
        large: its output is so large that it is not to be held an action too long.
        keep_reason: why it must not be run twice (None: it may; "" : not tried).
    """

    looked: bool = False
    copies: bool = True
    random: bool = True
    buffers: tuple[Named, ...] = ()
    small: tuple[Named, ...] = ()
    still: tuple[Named, ...] = ()
    no_grad: bool | None = None
    capture: bool = True
    unsaved: tuple[int, ...] = ()
    droppable: tuple[int, ...] = ()
    parameters: tuple[Tensor, ...] = ()
    shared: tuple[Tensor, ...] = ()
    last_use: frozenset[int] = frozenset()
    needs: tuple[bool, ...] | None = None
    single: bool = False
    large: bool = False
    keep_reason: str | None = ""
    generators: list[torch.Generator] = field(default_factory=list)


class Watched:
    """One block, watched while it runs: what it draws, which buffers and inputs it changes."""

    def __init__(self, block: Block, facts: Facts, generators: Sequence[torch.Generator]) -> None:
        self._block, self._facts = block, facts
        facts.generators = list({id(g): g for g in (*block.generators(), *generators)}.values())
        self._random = RandomState(facts.generators)
        self.found = Found(block.buffer_names(), None)

    def ran(self, boundary: Boundary, given: Sequence[Any]) -> None:
        """Compare after the run; `given` are the copies of the boundary's leaves that it was given."""
        facts = self._facts
        facts.random = not self._random.same(RandomState(facts.generators))
        moved = [
            (module, name)
            for module, name, buffer, value in self.found.buffers
            if module._buffers.get(name) is not buffer
            or (buffer is not None and value is not None and not equal_bits(buffer, value))
        ]
        # a module that changes one of its buffers may change its others at another step (a counter, a warm-up)
        mine = self._block.buffer_names()
        facts.buffers = tuple((m, n) for m, n in mine if any(m is other for other, _ in moved))
        rest = [named for named in mine if named not in facts.buffers]
        facts.small = tuple(named for named in rest if is_small(named))
        facts.still = tuple(named for named in rest if not is_small(named))
        written = _written(boundary, given)
        facts.copies = bool(written)
        if written:
            _not_aliased(self._block, boundary, written)


def _written(boundary: Boundary, given: Sequence[Any]) -> list[Tensor]:
    """The boundary's tensors whose copies have been written to (a fresh copy has version 0)."""
    return [t for t, copy in zip(boundary.flat, given, strict=True) if isinstance(copy, Tensor) and copy._version]


def _not_aliased(block: Block, boundary: Boundary, written: list[Tensor]) -> None:
    """A write into memory that another tensor of the state shares would be seen there without us, and not with us."""
    for one in written:
        for other in boundary.tensors():
            if other is not one and address_of(other) == address_of(one):
                raise SweepError(
                    got="a block that writes in place into an input whose memory another tensor of its state shares",
                    wanted="no in-place write into a tensor that a skip connection carries on",
                    where=f"block {block.name}",
                    next_step="use the out-of-place operation (nn.ReLU(), x = x + y) or keep both uses in one block",
                )


def note_first_run(
    blocks: Sequence[Block], i: int, facts: Facts, generators: Sequence[torch.Generator]
) -> tuple[Found, AbstractContextManager[None]]:
    """What block i finds at a run that is to be repeated, and the context of that run.

    Random state and small buffers are noted whatever was seen at an earlier step: a dropout rate or an observer may
    have been switched on since.
    """
    if not facts.looked:
        found = Found(blocks[i].buffer_names(), generators)
        return found, nullcontext()
    found = Found((*facts.buffers, *facts.small), facts.generators or generators)

    def tell(moved: Sequence[Named]) -> None:
        facts.buffers += tuple(moved)
        facts.still = tuple(named for named in facts.still if named not in moved)

    return found, first_run(found, Still(facts.still), place_of(tuple(blocks), i), tell)


def leaves_of(roots: Sequence[Tensor | GradientEdge], own: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The leaves that the local graph of `roots` reaches, its own input leaves apart, in order of first sight."""
    mine = {id(t) for t in own}
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    stack = [r.grad_fn if isinstance(r, Tensor) else r.node for r in roots]
    for root in roots:
        if isinstance(root, Tensor) and root.grad_fn is None and root.requires_grad and id(root) not in mine:
            found[id(root)] = root
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) not in mine:
            found[id(variable)] = variable
        stack.extend(parent for parent, _ in node.next_functions if parent is not None)
    return tuple(found.values())


def settle_shared(facts: Sequence[Facts]) -> None:
    """Say of each block which of its parameters other blocks reach too, and where each sum is complete."""
    users: dict[int, list[int]] = {}
    for index, one in enumerate(facts):
        for parameter in one.parameters:
            users.setdefault(id(parameter), []).append(index)
    for index, one in enumerate(facts):
        one.shared = tuple(p for p in one.parameters if len(users[id(p)]) > 1)
        one.last_use = frozenset(id(p) for p in one.shared if users[id(p)][0] == index)
        if one.shared:
            one.capture = True
