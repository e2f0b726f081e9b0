"""The additive terms of a loss, with their factors, reductions and what they depend on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from gradledger.core.events import Cut, Term
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._counts import COUNTED, COUNTS, own_count
from gradledger.ledger._doubled import twice_inside
from gradledger.ledger._graph import Walk, leaves_below
from gradledger.ledger._naming import ELEMENTWISE, LOSSES, REDUCTIONS
from gradledger.ledger._operations import Op, Value, is_ref
from gradledger.ledger._provenance import MAX_VISITS, PARTS, RANDOM, THROUGH, content, depends_on, plain_numbers
from gradledger.ledger._trace import Trace

_MAX_TERMS = 64
_STEPS = 8
_VISITS = 64
_Stand = tuple[int, bool, tuple[int, ...], int, float]  # of a part: first alike, sign, weights, tensor or factor


@dataclass(slots=True)
class Part:
    """One additive operand while it is being unfolded.  `weights`: graph-free scalars that multiply it, and those that
    divide it as negative tokens."""

    token: int | None
    number: float | None
    factor: float
    site: Site
    weights: tuple[int, ...] = ()


def unfold(trace: Trace, root: int) -> list[Part]:
    """The additive operands of a root value, with the plain factors on their way."""
    parts: list[Part] = []
    todo: list[tuple[int, float, tuple[int, ...]]] = [(root, 1.0, ())]
    visits = 0
    while todo and len(parts) < _MAX_TERMS and visits < MAX_VISITS:
        visits += 1
        token, factor, weights = todo.pop()
        value = trace.values.get(token)
        op = value.op if value is not None else None
        if value is None or op is None or (prod(value.shape) != 1 and token != root):
            parts.append(Part(token, None, factor, op.site if op else NOWHERE, weights))
            continue
        if op.name in ("add", "sub", "rsub") and len(op.operands) == 2 and _scalars(trace, op):
            for i, operand in enumerate(op.operands):
                sign = -1.0 if (op.name == "sub" and i == 1) or (op.name == "rsub" and i == 0) else 1.0
                if i == 1:
                    sign *= float(op.options.get("alpha", 1.0))
                if is_ref(operand):
                    todo.append((int(operand), factor * sign, weights))
                elif isinstance(operand, (int, float)) and operand != 0:
                    parts.append(Part(None, float(operand), factor * sign, op.site, weights))
        elif op.name in ("mul", "div") and len(op.operands) == 2:
            left, right = op.operands
            if is_ref(left) and is_ref(right):
                inner = _weighted(trace, int(left), int(right), op.name)
                if inner is None:
                    parts.append(Part(token, None, factor, op.site, weights))
                else:
                    weight = int(right) if inner == int(left) else int(left)
                    todo.append((inner, factor, (*weights, weight if op.name == "mul" else -weight)))
            else:
                inner = int(left if is_ref(left) else right)
                number = right if is_ref(left) else left
                if not isinstance(number, (int, float)) or (op.name == "div" and (number == 0 or not is_ref(left))):
                    parts.append(Part(token, None, factor, op.site, weights))
                else:
                    todo.append((inner, factor / number if op.name == "div" else factor * number, weights))
        elif op.name == "neg" and op.ins:
            todo.append((op.ins[0], -factor, weights))
        elif op.name in THROUGH and op.ins and not op.inplace and _is_scalar(trace, op.ins[0]):
            todo.append((op.ins[0], factor, weights))
        elif op.name in ("sum", "mean") and op.ins and _stack_of_scalars(trace, op.ins[0]):
            inner_op = trace.values[op.ins[0]].op
            assert inner_op is not None
            share = factor / len(inner_op.ins) if op.name == "mean" else factor
            todo.extend((t, share, weights) for t in inner_op.ins)
        else:
            parts.append(Part(token, None, factor, op.site, weights))
    return parts


def _is_scalar(trace: Trace, token: int) -> bool:
    value = trace.values.get(token)
    return value is not None and prod(value.shape) == 1


def _scalars(trace: Trace, op: Op) -> bool:
    return all(_is_scalar(trace, int(o)) for o in op.operands if is_ref(o))


def _stack_of_scalars(trace: Trace, token: int) -> bool:
    value = trace.values.get(token)
    return (
        value is not None
        and value.op is not None
        and value.op.name in ("stack", "cat", "hstack")
        and bool(value.op.ins)
        and all(_is_scalar(trace, t) for t in value.op.ins)
    )


def _weighted(trace: Trace, left: int, right: int, name: str) -> int | None:
    """In `a * b` or `a / b` with exactly one side that carries a graph, that side (the other is a weight or a
    count)."""
    a, b = trace.values.get(left), trace.values.get(right)
    if a is None or b is None or prod(a.shape) != 1 or prod(b.shape) != 1:
        return None
    if a.graph and not b.graph:
        return left
    if b.graph and not a.graph and name == "mul":
        return right
    return None


def describe(
    trace: Trace, parts: list[Part], walk: Walk | None, trained: set[int], root_order: int
) -> tuple[Term, ...]:
    """Terms of a loss.  `trained`: numbers of tensors held by optimizers."""
    # the same tensor with the other sign, or under another tensor weight, is a combination and no repetition
    same = _made_alike(trace, parts)
    counts = Counter[_Stand]()
    for p in parts:
        if p.token is not None:
            # one tensor counts wherever it stands; what was only made alike counts where its weight is the same, too:
            # a stage cost and a terminal cost of the last state were given two weights by hand
            counts[same[p.token], p.factor > 0, p.weights, p.token, 0.0] += 1
            counts[same[p.token], p.factor > 0, p.weights, 0, float(f"{p.factor:.9g}")] += 1
    neutral = _neutral(trace, parts)
    done: set[int] = set()
    terms: list[Term] = []
    depends: tuple[int, ...]
    for part in parts:
        if part.token is None:
            depends, cut = _number_depends(trace, trained, root_order)
            terms.append(Term("number", part.site, part.factor, 1, False, "number", part.number, (), depends, cut))
            continue
        if same[part.token] in done or part.token in neutral:
            continue
        done.add(same[part.token])
        value = trace.values.get(part.token)
        if value is None:
            continue
        op = value.op
        reduction, elements, batch, divided, each = _reduction(trace, value)
        own = 0
        if reduction == "sum" and len(part.weights) == 1 and part.weights[0] < 0:
            own = own_count(trace, value, -part.weights[0], elements, batch)
        leaves: tuple[int, ...] = ()
        if value.graph and walk is not None:
            if value.leaf is not None:
                leaves = (value.leaf,)
            elif value.node in walk.by_number:
                below = leaves_below(walk.by_number[value.node])
                leaves = tuple(trace.recorder.tensor_id(t) for t in below)
        depends = ()
        cut = None
        penalty = False
        if not value.graph:
            depends, cut, penalty = depends_on(trace, value.token, trained)
        told = _of_numbers(trace, value) if not depends else []
        ways = [(number, *_number_depends(trace, trained, order)) for number, order in told]
        if op is not None and ways:
            number, depends, cut = next((w for w in ways if w[1]), ways[0])
            terms.append(Term(op.name, op.site, part.factor, 1, False, "number", number, (), depends, cut))
            continue
        terms.append(
            Term(
                op.name if op else "input",
                op.site if op else NOWHERE,
                part.factor,
                _times(counts, same[part.token]),
                value.graph,
                "tensor",
                op.options.get(COUNTED) if op is not None and op.name in COUNTS and not value.graph else None,
                leaves,
                depends,
                cut,
                reduction,
                elements,
                batch,
                bool(part.weights) or divided,
                penalty,
                value.node,
                own,
                each,
            )
        )
        terms += _constant_gradients(trace, value, part.factor, trained)
    if all(term.times == 1 for term in terms):
        terms += twice_inside(trace, ((p.token, p.factor) for p in parts if p.token is not None and not p.weights))
    return tuple(terms)


def _constant_gradients(trace: Trace, term: Value, factor: float, trained: set[int]) -> list[Term]:
    """Inside a term, below its reduction: results of autograd.grad without create_graph that are added to values with a
    graph, as in the residual of a differential equation.

    Not what is moved along its own gradient: weights by an inner step, an input or its embedding by an attack.
    """
    found: list[Term] = []
    queue, seen = [term.token] if term.graph and factor != 0 else [], set[int]()
    while queue and len(seen) < _VISITS:
        value = trace.values.get(queue.pop())
        if value is None or value.token in seen or not value.graph or value.call is not None or value.op is None:
            continue
        seen.add(value.token)
        op = value.op
        sides = [v for t in op.ins if (v := trace.values.get(t)) is not None]
        if op.name in ("add", "sub", "rsub") and len(sides) == 2 and sides[0].graph != sides[1].graph:
            alive, dead = sides if sides[0].graph else sides[::-1]
            if prod(dead.shape) > 1 and dead.shape == alive.shape and not _moved(trace, alive, dead):
                depends, cut, penalty = depends_on(trace, dead.token, trained)
                if penalty and depends and cut is not None:
                    values = (1, False, "tensor", None, (), depends, cut)
                    found.append(Term(op.name, op.site, factor, *values, penalty_of_grad=True))
        queue += op.ins
    return found


def _moved(trace: Trace, value: Value, step: Value) -> bool:
    """Whether `value` is a leaf, one that was moved before, or what the gradient in `step` was taken for."""
    wrt: set[int] = set()
    queue, seen = [step.token], set[int]()
    while queue and len(seen) < _VISITS:
        at = trace.values.get(queue.pop())
        if at is None or at.token in seen or at.op is None:
            continue
        seen.add(at.token)
        if at.grad_input:
            wrt.update(at.op.options.get("wrt", ()))
        else:
            queue += at.op.ins
    at = value
    for _ in range(_STEPS):
        if at.leaf is not None or at.op is None or at.token in wrt:
            return True
        above = [v for t in at.op.ins if (v := trace.values.get(t)) is not None and v.graph]
        if len(above) != 1 or at.op.name not in ELEMENTWISE | THROUGH or at.call is not None:
            return False
        at = above[0]
    return False


def _of_numbers(trace: Trace, value: Value) -> list[tuple[float, int]]:
    """Of a tensor made from Python numbers or arrays alone, perhaps by some steps: numbers that change when they do,
    and the order of the operation that made each."""
    found: list[tuple[float, int]] = []
    queue, seen = [value], set[int]()
    while queue and len(seen) < 2 * _STEPS:
        at = queue.pop()
        if at.op is None or at.graph or at.token in seen:
            continue
        seen.add(at.token)
        made = at.op.options.get("_value", at.op.options.get("_listed"))
        if made is not None:
            found.append((float(made), at.op.order))
        else:
            queue += [v for t in at.op.ins if (v := trace.values.get(t)) is not None]
    return found


def _made_alike(trace: Trace, parts: list[Part]) -> dict[int, int]:
    """For each part the first one that is the same: the same tensor, or made from the same tensors by the same way."""
    first: dict[object, int] = {}
    alike: dict[int, int] = {}
    for part in parts:
        if part.token is not None and part.token not in alike:
            alike[part.token] = first.setdefault(_recipe(trace, part.token, [64]), part.token)
    return alike


def _recipe(trace: Trace, token: int, left: list[int]) -> object:
    """How a value was made, down to module outputs, leaves and whatever is not told in full; equal for equal values."""
    value = trace.values.get(token)
    op = value.op if value is not None else None
    left[0] -= 1
    if value is None or op is None or not value.graph or value.call is not None or not op.ins or left[0] < 0:
        return token
    if op.inplace or op.name in RANDOM | PARTS or "_untold" in op.options:
        return token
    below = tuple(_recipe(trace, t, left) for t in op.ins)
    return token if left[0] < 0 else (value.iteration, op.name, value.shape, plain_numbers(op), below)


def _times(counts: Counter[_Stand], token: int) -> int:
    return max(number for (t, *_), number in counts.items() if t == token)


def _neutral(trace: Trace, parts: list[Part]) -> set[int]:
    """Detached parts that cancel the value of another part: `x - x.detach()` is there for its gradient alone."""
    alive = [p for p in parts if p.token is not None and (v := trace.values.get(p.token)) is not None and v.graph]
    found: set[int] = set()
    for part in parts:
        value = trace.values.get(part.token) if part.token is not None else None
        if value is None or value.graph:
            continue
        base = content(trace, value.token)[0]
        if any(content(trace, p.token)[0] == base and p.factor == -part.factor for p in alive if p.token is not None):
            found.add(value.token)
    return found


def _reduction(trace: Trace, value: Value) -> tuple[str, int, int, bool, int]:
    """Reduction nearest to the root below a term: kind, elements, rows, whether a graph-free tensor divides it, and of
    how many each of those elements is a sum."""
    divided = False
    for _ in range(24):
        op = value.op
        if op is None or not op.ins:
            return "", 0, 0, divided, 0
        first = trace.values.get(op.ins[0])
        if op.name in LOSSES:
            arguments = op.options.get("_args") or ()
            reduction = str(
                op.options.get(
                    "reduction", next((a for a in arguments if a in ("mean", "sum", "none", "batchmean")), "mean")
                )
            )
            if reduction != "none":
                counted = (
                    trace.values.get(op.ins[1])
                    if len(op.ins) > 1 and op.name in ("cross_entropy", "nll_loss")
                    else first
                )
                shape = counted.shape if counted is not None else ()
                elements = int(op.options.get(COUNTED, prod(shape)))
                return reduction, elements, shape[0] if shape else 1, divided, 0
        if op.name in REDUCTIONS and first is not None and prod(first.shape) != 1:
            rows = first.shape[0] if first.shape else 1
            return REDUCTIONS[op.name], prod(first.shape), rows, divided, _added_up(trace, first)
        if op.name in ("div", "mul") and len(op.ins) == 2:
            other = trace.values.get(op.ins[1])
            if other is not None and not other.graph and prod(other.shape) == 1:
                divided = True
        if first is None:
            return "", 0, 0, divided, 0
        value = first
    return "", 0, 0, divided, 0


def _added_up(trace: Trace, value: Value) -> int:
    """How many elements a sum has made each element of a value of; 0 for what no sum made."""
    op = value.op
    of = trace.values.get(op.ins[0]) if op is not None and op.name == "sum" and op.ins else None
    many, few = prod(of.shape) if of is not None else 0, prod(value.shape)
    return many // few if few else 0


def _number_depends(trace: Trace, trained: set[int], root_order: int) -> tuple[tuple[int, ...], Cut | None]:
    """For a Python number in a loss: the last value of this iteration that left the tensor world before the loss was
    made."""
    for exit_ in reversed(trace.exits):
        if exit_.order > root_order:
            continue
        value = trace.values.get(exit_.token)
        if value is None or value.iteration != trace.recorder.iteration:
            continue
        if exit_.how == "int" or not value.floating:
            continue
        depends, _, _ = depends_on(trace, exit_.token, trained)
        if depends or value.graph:
            return depends, Cut(exit_.how, exit_.site)
    return (), None
