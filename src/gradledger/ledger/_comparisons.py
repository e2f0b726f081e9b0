"""Comparisons of two operands inside what a backward walks, and how each operand was made."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace

from gradledger.core.events import Operand
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._axes import along_one_axis
from gradledger.ledger._counts import ZEROS
from gradledger.ledger._naming import DISTANCES, LOSSES, SELECTIONS
from gradledger.ledger._operations import Op, is_ref
from gradledger.ledger._provenance import (
    CUTS,
    MAX_VISITS,
    PARTS,
    RANDOM,
    calls_behind,
    calls_below,
    content,
    has_call,
    is_detached_alias,
    plain_numbers,
)
from gradledger.ledger._trace import Trace
from gradledger.ledger._uneven import uneven

_NEAR = frozenset(
    {"add", "sub", "rsub", "mul", "div", "neg", "where", "masked_fill", "clamp", "clamp_", "mean", "sum", "maximum"}
)
_MEETS = frozenset({"mul", "sub", "rsub"})
_MAX_OTHERS = 4
_OF_ONE_LINE = 4
_FILLERS = frozenset({"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full"})


def comparisons(trace: Trace, root: int) -> list[tuple[Op, Operand, Operand]]:
    """Loss-like comparisons among everything a root value was made from: one of each line, nearest to the root first,
    then more of the same lines (a loss in a loop over time is many).

    After these come other places where outputs of two different modules meet: a product of one with graph and one
    without (a cross entropy written out), a difference that is not squared (a log ratio against a reference).
    """
    found: list[tuple[Op, Operand, Operand]] = []
    others: list[Op] = []
    lines: Counter[tuple[object, str]] = Counter()
    ranks: list[int] = []
    queue: deque[tuple[int, str, bool]] = deque([(root, "", True)])
    seen = {(root, True)}
    told: set[int] = set()
    while queue and len(seen) < MAX_VISITS and len(found) < 32:
        token, consumer, flows = queue.popleft()
        value = trace.values.get(token)
        if value is None or value.op is None:
            continue
        op = value.op
        # behind a cut the operands may carry a graph that this root does not walk: no comparison of this loss
        flows = flows and value.graph
        if (flows or not value.graph) and token not in told:
            told.add(token)
            difference = op.name in ("sub", "rsub") and len(op.ins) == 2 and consumer in DISTANCES
            compares = (op.name in LOSSES and len(op.ins) >= 2) or difference
            line = op.site.key(), op.name
            if compares and lines[line] < _OF_ONE_LINE:
                ranks.append(lines[line])
                lines[line] += 1
                left, right = op.ins[0], op.ins[1]
                logs = op.name == "kl_div" and not op.options.get("log_target")
                sides = operand(trace, left, right), operand(trace, right, left, logs)
                if any(side.bootstrap for side in sides) and along_one_axis(trace, left, right):
                    sides = replace(sides[0], bootstrap=False), replace(sides[1], bootstrap=False)
                found.append((op, *sides))
            elif flows and not compares and _may_meet(trace, op):
                others.append(op)
        for t in op.ins:
            if (t, flows) not in seen and (t, True) not in seen:
                seen.add((t, flows))
                queue.append((t, op.name, flows))
    found = [found[k] for k in sorted(range(len(found)), key=ranks.__getitem__)]
    for op in others[:_MAX_OTHERS]:
        mine, theirs = operand(trace, op.ins[0], op.ins[1]), operand(trace, op.ins[1], op.ins[0])
        if {c.module for c in mine.calls} != {c.module for c in theirs.calls}:
            found.append((op, mine, theirs))
    return found


def _may_meet(trace: Trace, op: Op) -> bool:
    """Whether two operands of one shape both depend on a module call; of a product, one with graph and one without."""
    if op.name not in _MEETS or len(op.ins) != 2 or op.in_forward:
        return False
    left, right = trace.values.get(op.ins[0]), trace.values.get(op.ins[1])
    if left is None or right is None or left.shape != right.shape or not (left.floating and right.floating):
        return False
    if op.name == "mul" and (left.graph == right.graph or len(left.shape) < 2):
        return False
    return has_call(trace, op.ins[0]) and has_call(trace, op.ins[1])


def operand(trace: Trace, token: int, other: int, logs: bool = False) -> Operand:
    """Describe one side of a comparison.  `logs`: the other side is the logarithm of what is compared (kl_div)."""
    value = trace.values.get(token)
    if value is None:
        return Operand((), False, "input", NOWHERE)
    calls, names, cut = calls_below(trace, value)
    read = _affine(trace, token)
    bootstrap = read.plus and bool(calls) and read.end is not None and (read.discount is not None or read.masked)
    return Operand(
        shape=value.shape,
        has_graph=value.graph,
        op=value.op.name if value.op else "input",
        site=value.op.site if value.op else NOWHERE,
        calls=calls,
        selection=read.selection and not read.plus and bool(calls),
        bootstrap=bootstrap,
        discount=read.discount,
        alias_of_other=is_detached_alias(trace, token, other) or is_equal_by_construction(trace, token, other, logs),
        cut=cut,
        made_from=names,
        masked=read.masked,
        mask_zeros=read.zeros,
        mask_across=read.across,
        mask_uneven=read.uneven,
        behind=calls_behind(trace, calls) if bootstrap else (),
    )


def _sides_with_call(trace: Trace, sides: list[int]) -> list[int]:
    """Operands that are themselves (scaled, masked, selected) module outputs; else those that depend on one in any way.

    A reward may depend on the network too, by way of the action that it chose: then the side that carries a graph, or
    the one that is multiplied by a discount, is meant.
    """
    near = [t for t in sides if _is_near_call(trace, t)]
    if len(near) > 1:
        graph = [t for t in near if trace.values[t].graph]
        scaled = [t for t in near if _is_scaled(trace, t)]
        near = graph if len(graph) == 1 else scaled if len(scaled) == 1 else near
    return near or [t for t in sides if has_call(trace, t)]


def _is_near_call(trace: Trace, token: int) -> bool:
    """Whether a value is a module's output up to selections, cuts, sums and products."""
    queue: deque[int] = deque([token])
    seen = {token}
    while queue and len(seen) < 100:
        value = trace.values.get(queue.popleft())
        if value is None:
            continue
        if value.call is not None:
            return True
        op = value.op
        if op is None or not value.floating or not (op.name in _NEAR or op.name in SELECTIONS or op.name in CUTS):
            continue
        for t in op.ins:
            if t not in seen:
                seen.add(t)
                queue.append(t)
    return False


def _is_scaled(trace: Trace, token: int) -> bool:
    """Whether a value was made by multiplying with a plain number up to 1."""
    value = trace.values.get(token)
    if value is None or value.op is None or value.op.name != "mul":
        return False
    return any(isinstance(o, (int, float)) and not is_ref(o) and 0 < abs(o) <= 1 for o in value.op.operands)


@dataclass(slots=True)
class _Affine:
    """A value read as (graph-free part) + number * mask * f(module output).

    `end`: token of f's end; `selection`: only selections lie on the way; `plus`: something was added; `discount`: the
    number; `masked`: a mask was multiplied in; `zeros`: how many of its elements are zero, and how many there are (or
    of a tensor that is filled in part, how many are left out);
    `across`: where the mask was made by a running product over the rows of the batch; `uneven`: where it reaches only
    some of the values of which the smallest is taken.
    """

    end: int | None = None
    selection: bool = True
    plus: bool = False
    discount: float | None = None
    masked: bool = False
    zeros: tuple[int, int] | None = None
    across: Site | None = None
    uneven: Site | None = None

    def scale(self, factor: float) -> None:
        self.discount = (1.0 if self.discount is None else self.discount) * factor


def _affine(trace: Trace, token: int) -> _Affine:
    read = _Affine()
    for _ in range(60):
        value = trace.values.get(token)
        if value is None:
            break
        if value.call is not None:
            read.end = token
            return read
        op = value.op
        if op is None or not op.ins:
            break
        if op.name in ("add", "sub", "rsub") and op.operands:
            sides = [int(o) for o in op.operands if is_ref(o)]
            with_call = _sides_with_call(trace, sides)
            if not with_call:
                break
            read.plus = read.plus or (len(with_call) == 1 and len(op.operands) == 2)
            read.selection = False
        elif op.name in ("mul", "div") and op.operands:
            sides = [int(o) for o in op.operands if is_ref(o)]
            with_call = _sides_with_call(trace, sides)
            if not with_call:
                break
            _read_product(trace, op, sides, with_call, read)
            read.selection = False
        elif (
            op.name in SELECTIONS
            or op.name in CUTS
            or op.name in ("where", "masked_fill", "clamp", "neg", "mean", "sum")
        ):
            read.selection = read.selection and (op.name in SELECTIONS or op.name in CUTS)
            read.uneven = read.uneven or (None if read.masked else uneven(trace, op))
            with_call = [t for t in op.ins if has_call(trace, t) and not _is_filler(trace, t)]
            if not with_call:
                break
        else:
            with_call = [t for t in op.ins if has_call(trace, t)]
            if op.name == "setitem" and len(with_call) == 1:
                read.zeros = _not_filled(trace, token, with_call[0])
            if not with_call or read.plus:
                read.end = token if with_call else None
                break
            read.selection = False
        token = with_call[0]
    read.selection = False
    return read


def _read_product(trace: Trace, op: Op, sides: list[int], with_call: list[int], read: _Affine) -> None:
    """Take the numbers and the mask of one product (or quotient) on the way."""
    for n in (float(o) for o in op.operands if isinstance(o, (int, float)) and not is_ref(o)):
        read.scale(n if op.name == "mul" else 1 / n if n else 0.0)
    read.masked = read.masked or len(with_call) < len(sides)
    for side in sides:
        if side in with_call:
            continue
        inside = _plain_factor(trace, side)
        if inside is not None:
            read.scale(inside)
        read.zeros = op.options.get(ZEROS, {}).get(side, read.zeros)
        below = trace.values.get(with_call[0])
        read.across = read.across or _product_across(trace, side, below.shape[0] if below and below.shape else 0)


def _not_filled(trace: Trace, token: int, given: int) -> tuple[int, int] | None:
    """Of `values[chosen] = net(rows)`: how many elements were not chosen, and how many there are."""
    whole, part = trace.values.get(token), trace.values.get(given)
    if whole is None or part is None or len(whole.shape) != 1 or len(part.shape) != 1:
        return None
    return whole.shape[0] - part.shape[0], whole.shape[0]


def _product_across(trace: Trace, token: int, rows: int) -> Site | None:
    """Where a mask was made by a running product over the rows of a batch: over samples, not over time."""
    for _ in range(12):
        value = trace.values.get(token)
        op = value.op if value is not None else None
        if value is None or op is None or len(op.ins) != 1:
            return None
        if op.name == "cumprod":
            axis = op.options.get("dim", next((a for a in op.options.get("_args", ()) if isinstance(a, int)), None))
            if axis is None or len(value.shape) < 2 or not -len(value.shape) <= axis < len(value.shape):
                return None
            others = [n for i, n in enumerate(value.shape) if i != axis % len(value.shape)]
            return op.site if value.shape[axis] == rows and rows not in others else None
        token = op.ins[0]
    return None


def _is_filler(trace: Trace, token: int) -> bool:
    """Whether a value has of the tensor it was made from the shape only: `where(over, zeros_like(v), gamma * v)`."""
    value = trace.values.get(token)
    return value is not None and value.op is not None and value.op.name in _FILLERS


def _plain_factor(trace: Trace, token: int) -> float | None:
    """The number in a mask like `0.9 * (1 - done)`: the factor of the outermost products, None when there is none."""
    found: float | None = None
    for _ in range(8):
        value = trace.values.get(token)
        op = value.op if value is not None else None
        if op is None or op.name not in ("mul", "div") or len(op.operands) != 2:
            return found
        left, right = op.operands
        number = right if is_ref(left) else left
        if (is_ref(left) and is_ref(right)) or not isinstance(number, (int, float)) or not number:
            return found
        found = (1.0 if found is None else found) * (number if op.name == "mul" else 1 / number)
        token = int(left if is_ref(left) else right)
    return found


def is_equal_by_construction(trace: Trace, token: int, other: int, logs: bool = False) -> bool:
    """Whether a graph-free value was made from the same output as `other`, by the same operations: equal to it always.

    Softmax of detached logits against softmax of the logits.  Values that come from two calls of a module differ.
    """
    mine, theirs = trace.values.get(token), trace.values.get(other)
    if mine is None or theirs is None or mine.graph or not theirs.graph:
        return False
    if logs:
        token, other = content(trace, token)[0], content(trace, other)[0]
        mine, theirs = trace.values.get(token), trace.values.get(other)
        if mine is None or theirs is None or mine.op is None or theirs.op is None or not mine.op.ins:
            return False
        if mine.op.name == "exp":
            return _same(trace, mine.op.ins[0], other, [64])
        names = (mine.op.name, theirs.op.name)
        return names == ("softmax", "log_softmax") and _same(trace, mine.op.ins[0], theirs.op.ins[0], [64])
    return _same(trace, token, other, [64])


def _same(trace: Trace, a: int, b: int, left: list[int]) -> bool:
    (a, _, one), (b, _, two) = content(trace, a), content(trace, b)
    if a == b:
        base = trace.values.get(a)
        return base is not None and not ((one or two) and base.leaf is not None)
    left[0] -= 1
    x, y = trace.values.get(a), trace.values.get(b)
    if (
        left[0] < 0
        or x is None
        or y is None
        or x.op is None
        or y.op is None
        or x.call is not None
        or y.call is not None
    ):
        return False
    if (
        x.iteration != y.iteration
        or x.shape != y.shape
        or x.op.name != y.op.name
        or x.op.name in RANDOM | PARTS
        or x.op.inplace
        or y.op.inplace
        or "_untold" in x.op.options
    ):
        return False
    if not x.op.ins or len(x.op.ins) != len(y.op.ins) or plain_numbers(x.op) != plain_numbers(y.op):
        return False
    return all(_same(trace, s, t, left) for s, t in zip(x.op.ins, y.op.ins, strict=True))
