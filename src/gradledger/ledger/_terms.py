"""From the trace to the parts of a loss: additive terms, what they depend on, and comparisons of two operands."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch

from gradledger.core.events import CallRef, Cut, Operand, Term
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._graph import Walk, leaves_below
from gradledger.ledger._naming import DISTANCES, LOSSES, REDUCTIONS, SELECTIONS, VIEWS
from gradledger.ledger._trace import Call, Op, Trace, Value, is_ref

_THROUGH = VIEWS | {"to", "clone", "double", "type", "half", "bfloat16", "positive", "type_as", "cpu", "cuda"}
_CUTS = frozenset({"detach", "data", "detach_", "numpy"})
_RANDOM = frozenset(
    {"dropout", "alpha_dropout", "feature_dropout", "rrelu", "bernoulli", "multinomial", "normal", "gumbel_softmax"}
)
# Which part they give is not recorded: two of them may differ.
_PARTS = frozenset(
    {"getitem", "select", "narrow", "chunk", "split", "split_with_sizes", "unbind", "diagonal", "unfold"}
)
_NEAR = frozenset(
    {"add", "sub", "rsub", "mul", "div", "neg", "where", "masked_fill", "clamp", "clamp_", "mean", "sum", "maximum"}
)
# The same elements in the same order, whatever the shape.
_SAME_ELEMENTS = frozenset(
    {
        "view",
        "reshape",
        "flatten",
        "squeeze",
        "unsqueeze",
        "contiguous",
        "view_as",
        "unflatten",
        "ravel",
        "squeeze_",
        "unsqueeze_",
    }
)
_MEETS = frozenset({"mul", "sub", "rsub"})
_MAX_OTHERS = 4
_MAX_TERMS = 64
_MAX_VISITS = 4000


@dataclass(slots=True)
class Part:
    """One additive operand while it is being unfolded.  `weights`: graph-free scalars that multiply or divide it."""

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
    while todo and len(parts) < _MAX_TERMS and visits < _MAX_VISITS:
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
                    todo.append((inner, factor, (*weights, weight)))
            else:
                inner = int(left if is_ref(left) else right)
                number = right if is_ref(left) else left
                if not isinstance(number, (int, float)) or (op.name == "div" and (number == 0 or not is_ref(left))):
                    parts.append(Part(token, None, factor, op.site, weights))
                else:
                    todo.append((inner, factor / number if op.name == "div" else factor * number, weights))
        elif op.name == "neg" and op.ins:
            todo.append((op.ins[0], -factor, weights))
        elif op.name in _THROUGH and op.ins and not op.inplace and _is_scalar(trace, op.ins[0]):
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


# ----------------------------------------------------------------------------------------------- terms


def describe(
    trace: Trace, parts: list[Part], walk: Walk | None, trained: set[int], root_order: int
) -> tuple[Term, ...]:
    """Terms of a loss.  `trained`: numbers of tensors held by optimizers."""
    # the same tensor with the other sign, or under another tensor weight, is a combination and no repetition
    same = _made_alike(trace, parts)
    counts = Counter((same[p.token], p.factor > 0, p.weights) for p in parts if p.token is not None)
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
        reduction, elements, batch, divided = _reduction(trace, value)
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
        if op is not None and "_value" in op.options:  # a tensor made from a Python number
            depends, cut = _number_depends(trace, trained, op.order)
            number = float(op.options["_value"])
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
                None,
                leaves,
                depends,
                cut,
                reduction,
                elements,
                batch,
                bool(part.weights) or divided,
                penalty,
                value.node,
            )
        )
    return tuple(terms)


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
    if op.inplace or op.name in _RANDOM | _PARTS or "_untold" in op.options:
        return token
    below = tuple(_recipe(trace, t, left) for t in op.ins)
    return token if left[0] < 0 else (value.iteration, op.name, value.shape, _numbers(op), below)


def _times(counts: Counter[tuple[int, bool, tuple[int, ...]]], token: int) -> int:
    return max(number for (t, _, _), number in counts.items() if t == token)


def _neutral(trace: Trace, parts: list[Part]) -> set[int]:
    """Detached parts that cancel the value of another part: `x - x.detach()` is there for its gradient alone."""
    alive = [p for p in parts if p.token is not None and (v := trace.values.get(p.token)) is not None and v.graph]
    found: set[int] = set()
    for part in parts:
        value = trace.values.get(part.token) if part.token is not None else None
        if value is None or value.graph:
            continue
        base = _content(trace, value.token)[0]
        if any(_content(trace, p.token)[0] == base and p.factor == -part.factor for p in alive if p.token is not None):
            found.add(value.token)
    return found


def _reduction(trace: Trace, value: Value) -> tuple[str, int, int, bool]:
    """Reduction nearest to the root below a term: kind, elements, rows, and whether a graph-free tensor divides it."""
    divided = False
    for _ in range(24):
        op = value.op
        if op is None or not op.ins:
            return "", 0, 0, divided
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
                return reduction, prod(shape), shape[0] if shape else 1, divided
        if op.name in REDUCTIONS and first is not None and prod(first.shape) != 1:
            return REDUCTIONS[op.name], prod(first.shape), first.shape[0] if first.shape else 1, divided
        if op.name in ("div", "mul") and len(op.ins) == 2:
            other = trace.values.get(op.ins[1])
            if other is not None and not other.graph and prod(other.shape) == 1:
                divided = True
        if first is None:
            return "", 0, 0, divided
        value = first
    return "", 0, 0, divided


def depends_on(trace: Trace, token: int, trained: set[int]) -> tuple[tuple[int, ...], Cut | None, bool]:
    """Trained tensors that a graph-free value depends on, the nearest cut on the way, and whether a result of
    autograd.grad without create_graph lies on it."""
    found: dict[int, None] = {}
    nearest: Cut | None = None
    penalty: Cut | None = None
    queue: deque[int] = deque([token])
    seen = {token}
    while queue and len(seen) < _MAX_VISITS:
        value = trace.values.get(queue.popleft())
        if value is None:
            continue
        if value.leaf is not None and value.leaf in trained:
            found[value.leaf] = None
        op = value.op
        if value.grad_input and penalty is None and op is not None:
            penalty = Cut("autograd_grad", op.site)
        if op is None:
            continue
        if not value.graph and nearest is None:
            inputs = [trace.values.get(t) for t in op.ins]
            if any(v is not None and v.graph for v in inputs):
                how = (
                    op.name
                    if op.name in _CUTS
                    else "no_grad"
                    if not op.grad_on
                    else "integer"
                    if not value.floating
                    else op.name
                )
                nearest = Cut(how, op.site)
        for t in op.ins:
            if t not in seen:
                seen.add(t)
                queue.append(t)
    if penalty is not None:
        return tuple(found), penalty, True
    return tuple(found), nearest, False


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


def exits_of_graphs(trace: Trace, trained: set[int], before: int) -> tuple[Cut, ...]:
    """Where values of this iteration that depend on trained tensors left the graph or the tensor world."""
    cuts: dict[tuple[str, int], Cut] = {}
    for exit_ in trace.exits:
        value = trace.values.get(exit_.token)
        if exit_.order > before or value is None or value.iteration != trace.recorder.iteration or not value.floating:
            continue
        if depends_on(trace, exit_.token, trained)[0]:
            cuts.setdefault(exit_.site.key(), Cut(exit_.how, exit_.site))
    return tuple(cuts.values())


def cuts_below(trace: Trace, root: int, trained: set[int]) -> tuple[Cut, ...]:
    """Cuts between a root without graph and the trained tensors its value depends on."""
    depends, cut, _ = depends_on(trace, root, trained)
    return (cut,) if cut is not None and depends else ()


# ----------------------------------------------------------------------------------------------- comparisons


def comparisons(trace: Trace, root: int) -> list[tuple[Op, Operand, Operand]]:
    """Loss-like comparisons among everything a root value was made from, nearest to the root first.

    After these come other places where outputs of two different modules meet: a product of one with graph and one
    without (a cross entropy written out), a difference that is not squared (a log ratio against a reference).
    """
    found: list[tuple[Op, Operand, Operand]] = []
    others: list[Op] = []
    queue: deque[tuple[int, str, bool]] = deque([(root, "", True)])
    seen = {(root, True)}
    told: set[int] = set()
    while queue and len(seen) < _MAX_VISITS and len(found) < 32:
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
            if (op.name in LOSSES and len(op.ins) >= 2) or difference:
                left, right = op.ins[0], op.ins[1]
                logs = op.name == "kl_div" and not op.options.get("log_target")
                found.append((op, operand(trace, left, right), operand(trace, right, left, logs)))
            elif flows and op.name in _MEETS and len(op.ins) == 2 and not op.in_forward and _may_meet(trace, op):
                others.append(op)
        for t in op.ins:
            if (t, flows) not in seen and (t, True) not in seen:
                seen.add((t, flows))
                queue.append((t, op.name, flows))
    for op in others[:_MAX_OTHERS]:
        mine, theirs = operand(trace, op.ins[0], op.ins[1]), operand(trace, op.ins[1], op.ins[0])
        if {c.module for c in mine.calls} != {c.module for c in theirs.calls}:
            found.append((op, mine, theirs))
    return found


def _may_meet(trace: Trace, op: Op) -> bool:
    """Whether two operands of one shape both depend on a module call; of a product, one with graph and one without."""
    left, right = trace.values.get(op.ins[0]), trace.values.get(op.ins[1])
    if left is None or right is None or left.shape != right.shape or not (left.floating and right.floating):
        return False
    if op.name == "mul" and (left.graph == right.graph or len(left.shape) < 2):
        return False
    return _has_call(trace, op.ins[0]) and _has_call(trace, op.ins[1])


def operand(trace: Trace, token: int, other: int, logs: bool = False) -> Operand:
    """Describe one side of a comparison.  `logs`: the other side is the logarithm of what is compared (kl_div)."""
    value = trace.values.get(token)
    if value is None:
        return Operand((), False, "input", NOWHERE)
    calls, names, cut = _calls_below(trace, value)
    base, selection, plus, discount, masked = _affine(trace, token)
    bootstrap = plus and bool(calls) and base is not None and (discount is not None or masked)
    return Operand(
        shape=value.shape,
        has_graph=value.graph,
        op=value.op.name if value.op else "input",
        site=value.op.site if value.op else NOWHERE,
        calls=calls,
        selection=selection and not plus and bool(calls),
        bootstrap=bootstrap,
        discount=discount,
        alias_of_other=_is_detached_alias(trace, token, other) or is_equal_by_construction(trace, token, other, logs),
        cut=cut,
        made_from=names,
    )


def _calls_below(trace: Trace, start: Value) -> tuple[tuple[CallRef, ...], tuple[str, ...], Cut | None]:
    calls: dict[int, CallRef] = {}
    names: dict[str, None] = {}
    cut: Cut | None = None
    queue: deque[tuple[int, bool]] = deque([(start.token, start.graph)])
    seen: set[tuple[int, bool]] = set()
    while queue and len(seen) < _MAX_VISITS:
        token, flow = queue.popleft()
        value = trace.values.get(token)
        if value is None or (token, flow) in seen:
            continue
        seen.add((token, flow))
        if value.call is not None:
            old = calls.get(value.call.number)
            if old is None or (flow and not old.graph):
                calls[value.call.number] = call_ref(value.call, flow and value.graph)
            continue
        op = value.op
        if op is None:
            continue
        if len(names) < 30:
            names[op.name] = None
        if cut is None and not value.graph:
            inputs = [trace.values.get(t) for t in op.ins]
            if any(v is not None and v.graph for v in inputs):
                cut = Cut(op.name if op.name in _CUTS else "no_grad" if not op.grad_on else op.name, op.site)
        for t in op.ins:
            v = trace.values.get(t)
            queue.append((t, flow and v is not None and v.graph))
    return tuple(calls.values()), tuple(names), cut


def call_ref(call: Call, graph: bool) -> CallRef:
    """The event form of a call."""
    return CallRef(call.number, call.module, call.site, graph, call.grad_on, call.training)


def _has_call(trace: Trace, token: int) -> bool:
    queue: deque[int] = deque([token])
    seen = {token}
    while queue and len(seen) < 400:
        value = trace.values.get(queue.popleft())
        if value is None:
            continue
        if value.call is not None:
            return True
        if value.op is not None:
            for t in value.op.ins:
                if t not in seen:
                    seen.add(t)
                    queue.append(t)
    return False


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
    return near or [t for t in sides if _has_call(trace, t)]


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
        if op is None or not value.floating or not (op.name in _NEAR or op.name in SELECTIONS or op.name in _CUTS):
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


def _affine(trace: Trace, token: int) -> tuple[int | None, bool, bool, float | None, bool]:
    """Read a value as (graph-free part) + number * mask * f(module output): (token of f's end, only selections on the
    way, something was added, the number, a mask was multiplied in)."""
    selection, plus, masked = True, False, False
    discount: float | None = None
    for _ in range(60):
        value = trace.values.get(token)
        if value is None:
            return None, False, plus, discount, masked
        if value.call is not None:
            return token, selection, plus, discount, masked
        op = value.op
        if op is None or not op.ins:
            return None, False, plus, discount, masked
        if op.name in ("add", "sub", "rsub") and op.operands:
            sides = [int(o) for o in op.operands if is_ref(o)]
            with_call = _sides_with_call(trace, sides)
            if not with_call:
                return None, False, plus, discount, masked
            if len(with_call) == 1 and len(op.operands) == 2:
                plus = True
            selection = False
            token = with_call[0]
        elif op.name in ("mul", "div") and op.operands:
            numbers = [float(o) for o in op.operands if isinstance(o, (int, float)) and not is_ref(o)]
            sides = [int(o) for o in op.operands if is_ref(o)]
            with_call = _sides_with_call(trace, sides)
            if not with_call:
                return None, False, plus, discount, masked
            for n in numbers:
                discount = (1.0 if discount is None else discount) * (n if op.name == "mul" else 1 / n if n else 0.0)
            masked = masked or len(with_call) < len(sides)
            for side in sides:
                inside = _plain_factor(trace, side) if side not in with_call else None
                if inside is not None:
                    discount = (1.0 if discount is None else discount) * inside
            selection = False
            token = with_call[0]
        elif (
            op.name in SELECTIONS
            or op.name in _CUTS
            or op.name in ("where", "masked_fill", "clamp", "neg", "mean", "sum")
        ):
            selection = selection and (op.name in SELECTIONS or op.name in _CUTS)
            with_call = [t for t in op.ins if _has_call(trace, t)]
            if not with_call:
                return None, False, plus, discount, masked
            token = with_call[0]
        else:
            selection = False
            with_call = [t for t in op.ins if _has_call(trace, t)]
            if not with_call or plus:
                return (token if with_call else None), False, plus, discount, masked
            token = with_call[0]
    return None, False, plus, discount, masked


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


def _strip(trace: Trace, token: int) -> tuple[int, bool]:
    detached = False
    for _ in range(20):
        value = trace.values.get(token)
        if value is None or value.op is None or len(value.op.ins) != 1 or value.op.inplace:
            break
        if value.op.name in _CUTS:
            detached = True
        elif value.op.name not in VIEWS and value.op.name not in ("clone", "to"):
            break
        token = value.op.ins[0]
    return token, detached


def _content(trace: Trace, token: int) -> tuple[int, bool, bool]:
    """The value with the same elements in the same order: its token; was it detached, was it copied on the way."""
    detached = copied = False
    for _ in range(20):
        value = trace.values.get(token)
        if value is None or value.op is None or len(value.op.ins) != 1 or value.op.inplace:
            break
        if value.op.name in _CUTS:
            detached = True
        elif value.op.name in ("clone", "to"):
            copied = True
        elif value.op.name not in _SAME_ELEMENTS:
            break
        token = value.op.ins[0]
    return token, detached, copied


def _is_detached_alias(trace: Trace, token: int, other: int) -> bool:
    mine, detached, copied = _content(trace, token)
    theirs, _, _ = _content(trace, other)
    a, b, base = trace.values.get(token), trace.values.get(other), trace.values.get(mine)
    if not detached or mine != theirs or a is None or b is None or base is None or a.shape != b.shape:
        return False
    return not (copied and base.leaf is not None)  # a copy of a parameter keeps what it was before the steps since


def is_equal_by_construction(trace: Trace, token: int, other: int, logs: bool = False) -> bool:
    """Whether a graph-free value was made from the same output as `other`, by the same operations: equal to it always.

    Softmax of detached logits against softmax of the logits.  Values that come from two calls of a module differ.
    """
    mine, theirs = trace.values.get(token), trace.values.get(other)
    if mine is None or theirs is None or mine.graph or not theirs.graph:
        return False
    if logs:
        token, other = _content(trace, token)[0], _content(trace, other)[0]
        mine, theirs = trace.values.get(token), trace.values.get(other)
        if mine is None or theirs is None or mine.op is None or theirs.op is None or not mine.op.ins:
            return False
        if mine.op.name == "exp":
            return _same(trace, mine.op.ins[0], other, [64])
        names = (mine.op.name, theirs.op.name)
        return names == ("softmax", "log_softmax") and _same(trace, mine.op.ins[0], theirs.op.ins[0], [64])
    return _same(trace, token, other, [64])


def _same(trace: Trace, a: int, b: int, left: list[int]) -> bool:
    (a, _, one), (b, _, two) = _content(trace, a), _content(trace, b)
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
        or x.op.name in _RANDOM | _PARTS
        or x.op.inplace
        or y.op.inplace
        or "_untold" in x.op.options
    ):
        return False
    if not x.op.ins or len(x.op.ins) != len(y.op.ins) or _numbers(x.op) != _numbers(y.op):
        return False
    return all(_same(trace, s, t, left) for s, t in zip(x.op.ins, y.op.ins, strict=True))


def _numbers(op: Op) -> tuple[object, ...]:
    plain = tuple(None if is_ref(o) else o for o in op.operands)
    return (*plain, *sorted((k, str(v)) for k, v in op.options.items() if k != "_zero"))


def leaf_behind(trace: Trace, token: int) -> int | None:
    """The followed leaf that a value is a view, slice or stack of, if any."""
    for _ in range(20):
        value = trace.values.get(token)
        if value is None:
            return None
        if value.leaf is not None and value.graph:
            return value.leaf
        if value.op is None or not value.op.ins or not value.graph:
            return None
        if value.op.name not in _THROUGH and value.op.name not in ("index_select", "gather", "cat", "stack"):
            return None
        token = value.op.ins[0]
    return None


def followed(trace: Trace, tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """Numbers of tensors, given new ones where needed."""
    return tuple(trace.recorder.tensor_id(t) for t in tensors)
