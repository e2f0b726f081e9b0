"""What shares memory behind autograd's back, and what the program writes into followed tensors by way of it."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gradledger.core.site import NOWHERE
from gradledger.ledger import _site
from gradledger.ledger._identity import Ref
from gradledger.ledger._naming import MIXTURES, VIEWS
from gradledger.ledger._operations import Alias, AliasWrite, ArrayAlias, Op, Token, Value, fingerprint, node_number

if TYPE_CHECKING:
    from gradledger.ledger._trace import Trace

MAX_ARRAYS = 16  # arrays over graph values that are looked at in one iteration, and their largest size
MAX_ARRAY = 1_000_000


def note_array(trace: Trace, array: Any, alias: Alias) -> None:
    """An array was made over an alias: writes into it are seen by what they leave behind."""
    if len(trace.arrays) < MAX_ARRAYS and array.size <= MAX_ARRAY and array.dtype.kind == "f":
        trace.arrays.append(ArrayAlias(weakref.ref(array), fingerprint(array), _site.here(3), alias))


def written_arrays(trace: Trace) -> list[AliasWrite]:
    """Writes into graph values by way of arrays, since the arrays were made."""
    found = []
    for array in [a for a in trace.arrays if a.written]:
        trace.arrays.remove(array)
        base = trace.values.get(array.alias.base)
        if base is not None and base.node:
            name, site = (base.op.name, base.op.site) if base.op is not None else ("", NOWHERE)
            alias = Alias(array.alias.base, "numpy", array.site)
            found.append(AliasWrite("array write", array.site, alias, base.node, name, site))
    return found


def note_aliases(
    trace: Trace,
    op: Op,
    name: str,
    ins: list[torch.Tensor],
    tokens: tuple[int, ...],
    outs: list[torch.Tensor],
    results: list[Value],
) -> None:
    """Results that share memory with a graph value or a followed tensor."""
    if not ins:
        return
    source = trace.values.get(tokens[0])
    if source is None:
        return
    if name in ("detach", "data", "detach_"):
        for r in results:
            if source.graph and not source.is_leaf:
                trace.aliases[r.token] = Alias(source.token, name, op.site, Ref(ins[0]))
            if source.leaf is not None:
                trace.param_aliases[r.token] = Ref(ins[0])
            elif source.token in trace.param_aliases:
                trace.param_aliases[r.token] = trace.param_aliases[source.token]
    elif name in VIEWS or op.inplace:
        for t, r in zip(outs, results, strict=True):
            whole = source.leaf is not None and t.numel() == ins[0].numel()
            if whole and not r.graph and r.leaf is None and _shares(t, ins[0]):
                trace.param_aliases[r.token] = Ref(ins[0])  # seen under no_grad
            if tokens[0] in trace.aliases and (op.inplace or _shares(t, ins[0])):
                trace.aliases[r.token] = trace.aliases[tokens[0]]
            if tokens[0] in trace.param_aliases:
                trace.param_aliases[r.token] = trace.param_aliases[tokens[0]]


def note_write(
    trace: Trace, op: Op, ins: list[torch.Tensor], tokens: tuple[int, ...], outs: list[torch.Tensor]
) -> None:
    """One in-place operation: into an alias, or into a followed tensor (listeners are told of which source)."""
    alias = trace.aliases.get(tokens[0])
    if alias is not None:
        base = trace.values.get(alias.base)
        if base is not None and base.node:
            name, site = (base.op.name, base.op.site) if base.op is not None else ("", NOWHERE)
            below, whole = _below(trace, base, alias)
            trace.alias_writes.append(
                AliasWrite(op.name, op.site, alias, base.node, name, site, op.order, below, whole)
            )
    if trace.optimizer_running:
        return
    for tensor, token in zip(ins, tokens, strict=False):  # it may have been registered since it was first seen
        value = trace.values[token]
        if value.leaf is None:
            value.leaf = trace.recorder.tensors.find(tensor)
    target = ins[0] if trace.values[tokens[0]].leaf is not None and _is_followed(ins[0]) else None
    if target is None:
        ref = trace.param_aliases.get(tokens[0])
        target = ref() if ref is not None else None
    if target is None:
        return
    source, tau = blend_source(trace, tokens[1:], target, place_of(ins[1:]))
    raw = op.name
    if raw == "lerp_" and tau is not None:
        weight = op.options.get("weight", (op.options.get("_args") or (None,))[-1])
        tau = float(weight) if isinstance(weight, (int, float)) else None
    elif raw in ("add", "sub") and tau is not None:
        alpha = op.options.get("alpha", 1.0)
        tau = tau * float(alpha)
    for listener in trace.listeners.written:
        listener(target, source, raw, tau, op)


def _below(trace: Trace, value: Value, alias: Alias) -> tuple[int, bool]:
    """The node of what a value is a view of (0: it is none), and whether it shows all of that."""
    source = value
    for _ in range(20):
        op = source.op
        up = trace.values.get(op.ins[0]) if op is not None and op.name in VIEWS and op.ins else None
        if up is None or not up.node:
            break
        source = up
    if source is not value:
        return source.node, math.prod(source.shape) == math.prod(value.shape)
    tensor = alias.tensor() if alias.tensor is not None else None
    base = tensor._base if tensor is not None else None
    if tensor is None or base is None or not base.requires_grad:
        return 0, True
    # some operations end in a view of their own: a linear layer over three axes
    return node_number(base), base.numel() == tensor.numel()


def note_writes(trace: Trace, op: Op, args: tuple[Any, ...]) -> None:
    """An operation on lists of tensors: one write per pair."""
    targets = [t for t in args[0] if isinstance(t, torch.Tensor)]
    lists = [a for a in args[1:] if isinstance(a, (list, tuple)) and len(a) == len(targets)]
    name = op.name.removeprefix("_foreach_")
    name = {"add_": "add", "sub_": "sub", "mul_": "mul"}.get(name, name)
    for i, target in enumerate(targets):
        ins = [target, *(a[i] for a in lists if isinstance(a[i], torch.Tensor))]
        tokens = tuple(trace.token_of(t) for t in ins)
        note_write(trace, replace(op, name=name, ins=tokens), ins, tokens, [target])


def place_of(sources: Sequence[torch.Tensor]) -> int | None:
    """Where in its memory what is written stands, as a part of one flat vector of many tensors does; None when there is
    more than one source."""
    if len(sources) != 1 or sources[0].layout != torch.strided:
        return None
    return int(sources[0].storage_offset())


def blend_source(
    trace: Trace, tokens: tuple[int, ...], target: torch.Tensor, place: int | None = None
) -> tuple[torch.Tensor | None, float | None]:
    """Which other followed tensor flows into a write on `target`, and its weight (product of plain numbers).

    place: where in its memory the source stands (`place_of`).
    """
    own = trace.recorder.tensors.find(target)
    queue: deque[tuple[int, float, int]] = deque((t, 1.0, 0) for t in tokens)
    seen: set[int] = set()
    while queue and len(seen) < 64:
        token, weight, depth = queue.popleft()
        value = trace.values.get(token)
        if value is None or depth > 12 or token in seen:
            continue
        seen.add(token)
        if math.prod(value.shape) == 1 < target.numel():
            continue  # one number made from other weights scales this write: no copy of them
        leaf = value.leaf
        if leaf is None and token in trace.param_aliases:
            held = trace.param_aliases[token]()
            leaf = trace.recorder.tensors.find(held) if held is not None else None
        if leaf is not None:
            if leaf != own:
                return trace.recorder.tensors.get(leaf), weight
            continue
        if value.op is None or value.op.name in MIXTURES or not value.floating:
            continue  # weights that data went through, or that chose something, are no copy of them
        if value.op.name == "cat" and own is not None and any(_views(trace, t, own) for t in value.op.ins):
            continue  # one flat vector of many tensors: the part that comes back is the tensor's own
        part = _part(trace, value.op, place, target.numel()) if value.op.name == "cat" else None
        if part is not None:
            queue.append((part, weight, depth + 1))
            continue
        factor = weight
        for operand in value.op.operands:
            if isinstance(operand, (int, float)) and not isinstance(operand, Token):
                if value.op.name == "mul":
                    factor *= operand
                elif value.op.name == "div" and operand:
                    factor /= operand
        alpha = value.op.options.get("alpha")
        for i, t in enumerate(value.op.ins):
            queue.append((t, factor * alpha if alpha is not None and i == 1 else factor, depth + 1))
    return None, None


def _part(trace: Trace, op: Op, place: int | None, size: int) -> int | None:
    """Of a flat vector made of many tensors, the one that stands at a place and is of a size."""
    at = 0
    for token in op.ins:
        value = trace.values.get(token)
        if value is None or len(value.shape) != 1:
            return None
        if at == place:
            return token if value.shape[0] == size else None
        at += value.shape[0]
    return None


def _views(trace: Trace, token: int, leaf: int) -> bool:
    """Whether a value is a followed tensor, whole, perhaps seen in another shape."""
    for _ in range(8):
        value = trace.values.get(token)
        if value is None or value.leaf is not None:
            return value is not None and value.leaf == leaf
        if token in trace.param_aliases:
            held = trace.param_aliases[token]()
            return held is not None and trace.recorder.tensors.find(held) == leaf
        if value.op is None or value.op.name not in VIEWS or not value.op.ins:
            return False
        token = value.op.ins[0]
    return False


def _is_followed(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, torch.nn.Parameter) or not tensor.requires_grad:
        return True
    return not tensor._is_view() and tensor.is_leaf


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return False
