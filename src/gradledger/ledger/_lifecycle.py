"""What stands in each `.grad`: a small state machine per followed leaf (clear -> fill -> consume).

It works from identities and version counters of the `.grad` tensors before and after each reverse pass, so it needs no
hook on any tensor and no walk over the graph, and stays on for the whole run.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradledger.core.events import Dropped, Fill, Life
from gradledger.ledger._identity import Ref
from gradledger.ledger._recorder import Recorder

OLDEST, NEWEST = 4, 8


@dataclass(slots=True)
class Leaf:
    """One followed leaf.  `fills`: [backward, times consumed] since the last clear, oldest first.  `lender`: the leaf
    whose gradient the program put here, the same tensor; until one of the two is cleared they have one list of fills.
    """

    number: int
    ref: weakref.ref[torch.Tensor]
    fills: list[list[int]] = field(default_factory=list)
    omitted: int = 0
    assigned: bool = False
    zeroed: bool = False
    read: bool = False
    grad: weakref.ref[torch.Tensor] | None = None
    version: int = 0
    written: int = -1  # version of the leaf itself at the last step told, when it had no gradient there
    drifted: bool = False  # ... and that step wrote into it
    before: torch.Tensor | None = None
    before_version: int = 0
    scaled: float = 1.0  # what the program multiplied the gradient by since the last fill, up to this version of it
    scaled_version: int = -1
    lender: Leaf | None = None

    def empty(self) -> None:
        self.fills = []
        self.omitted = 0
        self.assigned = False
        self.zeroed = False
        self.read = False

    def add(self, backward: int) -> None:
        self.fills.append([backward, 0])
        self.zeroed = False
        self.read = False
        if len(self.fills) > OLDEST + NEWEST:
            del self.fills[OLDEST]
            self.omitted += 1

    @property
    def borrows(self) -> bool:
        """Whether its fills are the lender's own list still."""
        return self.lender is not None and self.lender.fills is self.fills

    def history(self) -> tuple[Fill, ...]:
        return tuple(Fill(b, c) for b, c in self.fills)


class Lifecycle:
    """All followed leaves of a run."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.leaves: dict[int, Leaf] = {}
        self.latest = 0  # the last reverse pass that wrote gradients
        self.by_grad: tuple[tuple[int, int], dict[int, Leaf]] = ((-1, -1), {})

    def follow(self, tensor: torch.Tensor) -> Leaf:
        """Start to follow a leaf (again: no effect)."""
        number = self.recorder.tensor_id(tensor)
        leaf = self.leaves.get(number)
        if leaf is None:
            leaf = self.leaves[number] = Leaf(number, Ref(tensor))
            grad = grad_of(tensor)
            if grad is not None:
                leaf.assigned = True
                leaf.grad = Ref(grad)
        return leaf

    # ------------------------------------------------------------------ looking

    def _awake(self) -> None:
        # while the recorder dozes histories stand still: whoever asks for them ends that
        if self.recorder.doze.asleep:
            self.recorder.wake()

    def _look(self, leaf: Leaf, gone: list[Leaf]) -> torch.Tensor | None:
        """Bring a leaf up to date with what the program did by hand since we last looked."""
        self._awake()
        tensor = leaf.ref()
        if tensor is None:
            return None
        grad = grad_of(tensor)
        if grad is None:
            if leaf.fills or leaf.assigned or leaf.zeroed:
                if leaf.fills:
                    gone.append(leaf)
                else:
                    leaf.empty()
            leaf.grad = leaf.lender = None
            return None
        if leaf.grad is None or leaf.grad() is not grad:
            # another tensor object without a backward of ours: the program assigned it
            leaf.empty()
            owner = self._owner(grad)
            leaf.lender = owner if owner is not leaf and owner is not None and owner.fills else None
            if leaf.lender is not None:
                leaf.fills, leaf.version = leaf.lender.fills, leaf.lender.version
                self.recorder.doze.forbidden = True  # a doze replays the histories of single leaves
            else:
                leaf.assigned = True
            leaf.grad = Ref(grad)
        return grad

    def _found_gone(self, gone: list[Leaf]) -> tuple[Dropped, ...]:
        dropped = self.dropped(gone)
        for leaf in gone:
            leaf.empty()
        return dropped

    def dropped(self, leaves: Iterable[Leaf]) -> tuple[Dropped, ...]:
        """What would be lost if these leaves were cleared now."""
        groups: defaultdict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for leaf in leaves:
            for backward, consumed in leaf.fills:
                groups[(backward, consumed, leaf.read)].append(leaf.number)
        return tuple(Dropped(b, tuple(t), c, r) for (b, c, r), t in sorted(groups.items()))

    # ------------------------------------------------------------------ backward

    def before_backward(self) -> tuple[tuple[Dropped, ...], tuple[Dropped, ...]]:
        """Look at every leaf before a reverse pass writes.  Returns (found gone, found zeroed by hand)."""
        gone: list[Leaf] = []
        stale: list[Leaf] = []
        read: list[Leaf] = []  # that no step has used
        dead: list[int] = []
        for leaf in self.leaves.values():
            if leaf.ref() is None:
                dead.append(leaf.number)
                continue
            leaf.before = self._look(leaf, gone)
            if leaf.before is not None:
                leaf.before_version = leaf.before._version
                if leaf.fills and leaf.fills[0][1] > 0:
                    stale.append(leaf)
                elif leaf.fills and leaf.read:
                    read.append(leaf)
        for number in dead:
            del self.leaves[number]
        zeroed: list[Leaf] = []
        for leaves in (stale, read):
            if leaves and all(_all_zero(leaf.before) for leaf in leaves[:2]):
                zeroed += [leaf for leaf in leaves if _all_zero(leaf.before)]
        lost = self._found_gone(gone)
        by_hand = self.dropped(zeroed)
        for leaf in zeroed:
            leaf.empty()
            leaf.zeroed = True
        for leaf in stale:
            if not leaf.zeroed and leaf.before is not None and leaf.before._version != leaf.version:
                leaf.empty()  # what the step had used was made into something else since (decayed: momentum by hand)
        return lost, by_hand

    def after_backward(self, backward: int) -> list[int]:
        """Which leaves the reverse pass wrote; their histories grow by one contribution."""
        self.latest = backward
        filled = []
        for leaf in self.leaves.values():
            tensor = leaf.ref()
            grad = grad_of(tensor) if tensor is not None else None
            before, leaf.before = leaf.before, None
            if grad is None:
                continue
            if grad is before and grad._version == leaf.before_version:
                continue
            if before is None:
                leaf.empty()
            if not leaf.borrows:  # (else the lender adds it)
                leaf.add(backward)
            leaf.grad = Ref(grad)
            leaf.version = grad._version
            filled.append(leaf.number)
        return filled

    # ------------------------------------------------------------------ clear, consume, read

    def clear(self, tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, ...], tuple[Dropped, ...], list[Leaf]]:
        """Called before a clear: which of these have a gradient, what stands in them, and the leaves to empty
        afterwards."""
        leaves: list[Leaf] = []
        gone: list[Leaf] = []
        for tensor in tensors:
            number = self.recorder.tensors.find(tensor)
            leaf = self.leaves.get(number) if number is not None else None
            if leaf is None:
                if grad_of(tensor) is None:
                    continue
                leaf = self.follow(tensor)
            if self._look(leaf, gone) is not None:
                leaves.append(leaf)
        return tuple(leaf.number for leaf in leaves), self.dropped(leaves), leaves

    def cleared(self, leaves: Iterable[Leaf]) -> None:
        """The clear has happened."""
        for leaf in leaves:
            tensor = leaf.ref()
            grad = grad_of(tensor) if tensor is not None else None
            leaf.empty()
            leaf.zeroed = grad is not None
            leaf.grad = None if grad is None else Ref(grad)

    def lives(self, tensors: Iterable[torch.Tensor]) -> tuple[tuple[Life, ...], tuple[Dropped, ...]]:
        """Histories of an optimizer's tensors as it is about to step, equal ones together; and what was found gone."""
        groups: dict[tuple[Any, ...], list[Leaf]] = {}
        gone: list[Leaf] = []
        order: list[tuple[Leaf, torch.Tensor]] = []
        for tensor in tensors:
            leaf = self.follow(tensor)
            self._look(leaf, gone)
            order.append((leaf, tensor))
        lost = self._found_gone(gone)
        for leaf, tensor in order:
            grad = grad_of(tensor)
            if grad is None:
                kind = "none"
            elif leaf.fills:
                kind = "filled"
            elif leaf.zeroed:
                kind = "zero"
            else:
                kind = "assigned"
            rescaled = kind == "filled" and grad is not None and grad._version != leaf.version
            drifted, leaf.drifted = leaf.drifted, False
            moved = _moved(leaf, tensor, kind)
            known = rescaled and grad is not None and grad._version == leaf.scaled_version
            scaled = leaf.scaled if known else None
            omitted = leaf.lender.omitted if leaf.lender is not None and leaf.borrows else leaf.omitted
            key = (kind, leaf.history(), not tensor.requires_grad, moved, omitted, rescaled, drifted, scaled)
            groups.setdefault((*key, leaf.lender is not None), []).append(leaf)
        return tuple(_life(key, leaves) for key, leaves in groups.items()), lost

    def consumed(self, tensors: Iterable[torch.Tensor]) -> None:
        """The optimizer has used what stands in these tensors."""
        used: dict[int, list[list[int]]] = {}  # each list once
        for tensor in tensors:
            number = self.recorder.tensors.find(tensor)
            leaf = self.leaves.get(number) if number is not None else None
            if leaf is not None and leaf.written != -1:  # (an optimizer of torch's own leaves it alone)
                leaf.drifted = not tensor.is_inference() and tensor._version != leaf.written
            if leaf is not None and tensor.requires_grad:
                used[id(leaf.fills)] = leaf.fills
                if (grad := grad_of(tensor)) is not None:
                    leaf.version = grad._version
                if leaf.grad is not None and grad_of(tensor) is not leaf.grad():
                    # the optimizer itself replaced or removed the gradient
                    leaf.grad = None if grad is None else Ref(grad)
                    if grad is None:
                        leaf.empty()
        for fills in used.values():
            for fill in fills:
                fill[1] += 1

    def multiplied(self, grad: torch.Tensor, by: float) -> None:
        """The program has just multiplied a gradient in place by a plain number."""
        leaf = self._owner(grad)
        if leaf is None:
            return
        before = grad._version - 1
        if before not in (leaf.version, leaf.scaled_version):
            return
        leaf.scaled = by if before == leaf.version else leaf.scaled * by
        leaf.scaled_version = grad._version

    def _owner(self, grad: torch.Tensor) -> Leaf | None:
        """The leaf whose gradient this tensor was when the last reverse pass had written."""
        now = (self.recorder.iteration, self.recorder.backwards)
        if self.by_grad[0] != now:
            grads = ((leaf, leaf.grad() if leaf.grad is not None else None) for leaf in self.leaves.values())
            self.by_grad = now, {id(g): leaf for leaf, g in grads if g is not None}
        leaf = self.by_grad[1].get(id(grad))
        return leaf if leaf is not None and leaf.grad is not None and leaf.grad() is grad else None

    def changed_by_torch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Clipping or a scaler has just changed these gradients in place: not the program's own rescaling."""
        for tensor in tensors:
            number = self.recorder.tensors.find(tensor)
            leaf = self.leaves.get(number) if number is not None else None
            grad = grad_of(tensor)
            if leaf is not None and grad is not None:
                leaf.version = grad._version

    def refresh(self) -> None:
        """Histories were brought up to date from elsewhere: take the gradients as they are now."""
        for leaf in self.leaves.values():
            tensor = leaf.ref()
            grad = grad_of(tensor) if tensor is not None else None
            leaf.grad = None if grad is None else Ref(grad)
            leaf.version = 0 if grad is None else grad._version
            if grad is None or leaf.fills or leaf.assigned:
                leaf.zeroed = False
            else:  # cleared to zeros, or put there by hand since: what no reverse pass has filled tells itself
                leaf.zeroed = _all_zero(grad)
                leaf.assigned = not leaf.zeroed

    def was_read(self, tensor: torch.Tensor) -> int | None:
        """The program read this leaf's gradient.  Returns its number when it is followed."""
        self._awake()
        number = self.recorder.tensors.find(tensor)
        leaf = self.leaves.get(number) if number is not None else None
        if leaf is None:
            return None
        leaf.read = True
        return leaf.number

    def pending(self, tensors: Iterable[torch.Tensor] | None = None) -> tuple[int, ...]:
        """Backwards whose contributions stand unconsumed in gradients now (of these tensors, or of all)."""
        found: set[int] = set()
        for leaf in self._choose(tensors):
            found.update(b for b, c in leaf.fills if c == 0)
        return tuple(sorted(found))

    def standing(self) -> set[int]:
        """Backwards whose contributions stand in any gradient now, consumed or not."""
        return {b for leaf in self.leaves.values() for b, _ in leaf.fills}

    def _choose(self, tensors: Iterable[torch.Tensor] | None) -> Iterable[Leaf]:
        self._awake()
        if tensors is None:
            return [leaf for leaf in self.leaves.values() if leaf.fills and _still_there(leaf)]
        chosen = []
        for tensor in tensors:
            number = self.recorder.tensors.find(tensor)
            leaf = self.leaves.get(number) if number is not None else None
            if leaf is not None:
                chosen.append(leaf)
        return chosen


def _life(key: tuple[Any, ...], leaves: list[Leaf]) -> Life:
    lenders = tuple(leaf.lender.number for leaf in leaves if leaf.lender is not None)
    return replace(Life(tuple(leaf.number for leaf in leaves), *key[:-1]), lenders=lenders)


def _moved(leaf: Leaf, tensor: torch.Tensor, kind: str) -> bool | None:
    """A step that nobody watched writes the values of what had a gradient then: their version counter tells."""
    before, leaf.written = leaf.written, -1
    if kind != "none" or tensor.is_inference():
        return None
    leaf.written = tensor._version
    return True if before not in (-1, leaf.written) else None


def grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a leaf."""
    if not tensor.is_leaf:
        return None  # reading .grad of a non-leaf would warn
    return tensor.grad


def _still_there(leaf: Leaf) -> bool:
    tensor = leaf.ref()
    return tensor is not None and grad_of(tensor) is not None


def _all_zero(grad: torch.Tensor | None) -> bool:
    if grad is None or grad.is_sparse:
        return False
    return not bool(grad.detach().any())
