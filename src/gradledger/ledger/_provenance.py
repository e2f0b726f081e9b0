"""Where a value came from: followed back through the trace, past detaches, numpy round trips and no_grad blocks."""

from __future__ import annotations

from collections import deque

from gradledger.core.events import CallRef, Cut
from gradledger.ledger._naming import LIKENESSES, OVERWRITES, VIEWS
from gradledger.ledger._operations import Call, Op, Value, is_ref
from gradledger.ledger._trace import Trace

THROUGH = VIEWS | {"to", "clone", "double", "type", "half", "bfloat16", "positive", "type_as", "cpu", "cuda"}
CUTS = frozenset({"detach", "data", "detach_", "numpy"})
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
# Which part they give is not recorded: two of them may differ.
PARTS = frozenset({"getitem", "select", "narrow", "chunk", "split", "split_with_sizes", "unbind", "diagonal", "unfold"})
RANDOM = frozenset(
    {"dropout", "alpha_dropout", "feature_dropout", "rrelu", "bernoulli", "multinomial", "normal", "gumbel_softmax"}
)
MAX_VISITS = 4000


def depends_on(trace: Trace, token: int, trained: set[int]) -> tuple[tuple[int, ...], Cut | None, bool]:
    """Trained tensors that a graph-free value depends on, the nearest cut on the way, and whether a result of
    autograd.grad without create_graph lies on it."""
    found: dict[int, None] = {}
    nearest: Cut | None = None
    penalty: Cut | None = None
    queue: deque[tuple[int, bool]] = deque([(token, False)])
    seen = {token}
    while queue and len(seen) < MAX_VISITS:
        at, updated = queue.popleft()
        value = trace.values.get(at)
        if value is None:
            continue
        if value.leaf is not None and value.leaf in trained:
            found[value.leaf] = None
        op = value.op
        # a gradient that an update by hand (`p -= rate * p.grad`) has put into a leaf is no part of this value
        updated = updated or value.leaf is not None
        if value.grad_input and penalty is None and op is not None and not updated:
            penalty = Cut("autograd_grad", op.site)
        if op is None or op.name in LIKENESSES:
            continue
        ins = op.ins[1:] if op.name in OVERWRITES else op.ins
        if not value.graph and nearest is None:
            inputs = [trace.values.get(t) for t in ins]
            if any(v is not None and v.graph for v in inputs):
                how = (
                    op.name
                    if op.name in CUTS
                    else "no_grad"
                    if not op.grad_on
                    else "integer"
                    if not value.floating
                    else op.name
                )
                nearest = Cut(how, op.site)
        for t in ins:
            if t not in seen:
                seen.add(t)
                queue.append((t, updated))
    if penalty is not None:
        return tuple(found), penalty, True
    return tuple(found), nearest, False


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


def strip(trace: Trace, token: int) -> tuple[int, bool]:
    detached = False
    for _ in range(20):
        value = trace.values.get(token)
        if value is None or value.op is None or len(value.op.ins) != 1 or value.op.inplace:
            break
        if value.op.name in CUTS:
            detached = True
        elif value.op.name not in VIEWS and value.op.name not in ("clone", "to"):
            break
        token = value.op.ins[0]
    return token, detached


def content(trace: Trace, token: int) -> tuple[int, bool, bool]:
    """The value with the same elements in the same order: its token; was it detached, was it copied on the way."""
    detached = copied = False
    for _ in range(20):
        value = trace.values.get(token)
        if value is None or value.op is None or len(value.op.ins) != 1 or value.op.inplace:
            break
        if value.op.name in CUTS:
            detached = True
        elif value.op.name in ("clone", "to"):
            copied = True
        elif value.op.name not in _SAME_ELEMENTS:
            break
        token = value.op.ins[0]
    return token, detached, copied


def used_after(trace: Trace, token: int, order: int, *, beside: bool = True) -> bool:
    """Whether an operation with a graph took a value after the `order`-th operation; `beside`: or another view of its
    memory."""
    base = token
    for _ in range(20 if beside else 0):
        value = trace.values.get(base)
        if value is None or value.op is None or value.op.name not in VIEWS or not value.op.ins:
            break
        base = value.op.ins[0]
    memory = {base, token}
    for value in list(trace.values.values()):  # in the order in which they were made
        op = value.op
        if op is None or not memory.intersection(op.ins):
            continue
        if op.name in VIEWS and op.ins[0] in memory:
            memory.add(value.token)
        elif value.graph and op.order > order:
            return True
    return False


_NOTES = ("_zero", "_zeros")  # what we read off the values, told by the tensors themselves


def plain_numbers(op: Op) -> tuple[object, ...]:
    plain = tuple(None if is_ref(o) else o for o in op.operands)
    return (*plain, *sorted((k, str(v)) for k, v in op.options.items() if k not in _NOTES))


def is_detached_alias(trace: Trace, token: int, other: int) -> bool:
    mine, detached, copied = content(trace, token)
    theirs, _, _ = content(trace, other)
    a, b, base = trace.values.get(token), trace.values.get(other), trace.values.get(mine)
    if not detached or mine != theirs or a is None or b is None or base is None or a.shape != b.shape:
        return False
    return not (copied and base.leaf is not None)  # a copy of a parameter keeps what it was before the steps since


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
        if value.op.name not in THROUGH and value.op.name not in ("index_select", "gather", "cat", "stack"):
            return None
        token = value.op.ins[0]
    return None



def call_ref(call: Call, graph: bool) -> CallRef:
    """The event form of a call."""
    return CallRef(call.number, call.module, call.site, graph, call.grad_on, call.training)


def calls_below(trace: Trace, start: Value) -> tuple[tuple[CallRef, ...], tuple[str, ...], Cut | None]:
    """Module calls that a value was made from, the operations up to them, and where its graph was cut on the way."""
    calls: dict[int, CallRef] = {}
    names: dict[str, None] = {}
    cut: Cut | None = None
    queue: deque[tuple[int, bool]] = deque([(start.token, start.graph)])
    seen: set[tuple[int, bool]] = set()
    while queue and len(seen) < MAX_VISITS:
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
                cut = Cut(op.name if op.name in CUTS else "no_grad" if not op.grad_on else op.name, op.site)
        for t in op.ins:
            v = trace.values.get(t)
            queue.append((t, flow and v is not None and v.graph))
    return tuple(calls.values()), tuple(names), cut


def calls_behind(trace: Trace, calls: tuple[CallRef, ...]) -> tuple[CallRef, ...]:
    """Calls of other modules whose outputs went into these: a policy that chooses what a critic is asked."""
    asked = {ref.module for ref in calls}
    found: dict[int, CallRef] = {}
    for ref in calls:
        call = trace.calls.get(ref.call)
        for token in call.given if call is not None else ():
            value = trace.values.get(token)
            if value is not None:
                deeper, _, _ = calls_below(trace, value)
                found.update((d.call, d) for d in deeper if d.module not in asked)
    return tuple(found.values())


def has_call(trace: Trace, token: int) -> bool:
    """Whether a value depends on a module call."""
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
