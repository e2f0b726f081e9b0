"""The two halves of a block's product: the input's cotangent now, the parameters' gradients later, no work done twice.

Each parameter hangs on a node of the block's graph through which the input's cotangent flows (the matrix product of a
linear layer).  While the input half runs, what flows into that node is noted; the parameter half starts there, so that
only the node's own second product is left.  The same idea as in torch.distributed.pipelining's split backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from torch import Tensor
from torch.autograd.graph import GradientEdge

from gradledger.sweep import _vjp


@final
class WeightHalf:
    """The parameter half of one product, prepared before the input half runs."""

    def __init__(self, starts: dict[Any, tuple[Tensor, ...]]) -> None:
        self._starts = starts
        self._given: dict[Any, tuple[Tensor | None, ...]] = {}
        for node in starts:
            node.register_prehook(self._note(node))

    def _note(self, node: Any) -> Any:
        def note(given: tuple[Tensor | None, ...]) -> None:
            self._given.setdefault(node, given)  # the node runs once more in this half: that is not noted

        return note

    def run(self) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """The gradient of each parameter that got one, and the cotangents that others may hold; once."""
        out: list[tuple[Tensor, Tensor]] = []
        taken: list[Tensor] = []
        for node, parameters in self._starts.items():
            given = self._given.get(node, ())
            pairs = [(GradientEdge(node, k), d) for k, d in enumerate(given) if d is not None]
            taken.extend(d for _, d in pairs)
            if pairs:
                roots, d_out = tuple(root for root, _ in pairs), tuple(d for _, d in pairs)
                for p, g in zip(parameters, _vjp.capture(roots, d_out, parameters), strict=True):
                    if g is not None:
                        out.append((p, g))
        self._starts, self._given = {}, {}
        return out, taken


@final
class WholeAgain:
    """The parameter half by a second walk of the whole block, where it cannot be told apart."""

    def __init__(self, roots: tuple[_vjp.Root, ...], d_out: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> None:
        self._work = roots, d_out, parameters

    def run(self) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """The gradient of each parameter that got one, and the cotangents that others may hold; once."""
        (roots, d_out, parameters), self._work = self._work, ((), (), ())
        if not (roots and parameters):
            return [], []
        products = _vjp.capture(roots, d_out, parameters)
        return [(p, g) for p, g in zip(parameters, products, strict=True) if g is not None], list(d_out)


def weight_half(
    roots: Sequence[_vjp.Root], leaves: Sequence[Tensor], parameters: Sequence[Tensor]
) -> WeightHalf | None:
    """Where each parameter's half starts; None where a parameter hangs on several nodes, whose sum has an order."""
    children: dict[Any, list[Any]] = {}
    order: list[Any] = []
    stack = [r.grad_fn if isinstance(r, Tensor) else r.node for r in roots]
    while stack:
        node = stack.pop()
        if node is None or node in children:
            continue
        below = [child for child, _ in node.next_functions if child is not None]
        children[node] = below
        order.append(node)
        stack.extend(below)
    ends = {id(leaf) for leaf in leaves}
    wanted = {id(p): p for p in parameters}
    flows = _reaching(children, {n for n in order if id(getattr(n, "variable", None)) in ends})
    starts: dict[Any, list[Tensor]] = {}
    seen: set[int] = set()
    for node in order:
        if node not in flows:
            continue
        for child in children[node]:
            for p in _parameters_below(child, children, flows, wanted):
                mine = starts.setdefault(node, [])
                if any(p is other for other in mine):
                    continue
                if id(p) in seen:
                    return None
                seen.add(id(p))
                mine.append(p)
    reached = {id(v) for n in order if (v := getattr(n, "variable", None)) is not None and id(v) in wanted}
    if reached != seen:
        return None  # a parameter that no flow to the input passes by
    return WeightHalf({node: tuple(ps) for node, ps in starts.items()})


def _reaching(children: dict[Any, list[Any]], ends: set[Any]) -> set[Any]:
    """The nodes from which one of `ends` is reached."""
    parents: dict[Any, list[Any]] = {}
    for node, below in children.items():
        for child in below:
            parents.setdefault(child, []).append(node)
    found, stack = set(ends), list(ends)
    while stack:
        for parent in parents.get(stack.pop(), ()):
            if parent not in found:
                found.add(parent)
                stack.append(parent)
    return found


def _parameters_below(
    node: Any, children: dict[Any, list[Any]], flows: set[Any], wanted: dict[int, Tensor]
) -> list[Tensor]:
    """Parameters reached from here without the input's flow."""
    out: list[Tensor] = []
    stack, seen = [node], set()
    while stack:
        one = stack.pop()
        if one in flows or one in seen:
            continue
        seen.add(one)
        variable = getattr(one, "variable", None)
        if variable is not None and id(variable) in wanted:
            out.append(wanted[id(variable)])
        stack.extend(children[one])
    return out
