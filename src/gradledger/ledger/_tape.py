"""The oracle's tape: the operations of an iteration that carry a graph, and copies of everything else they were given.

A value that needs no gradient is copied as it is when an operation uses it, a leaf likewise; a value with a graph is
known by its number alone.  So nothing of the program is kept alive, and whatever it does to its tensors afterwards, the
tape can be run again.  An operation that would not come out the same (random numbers, a write in place, a value whose
making was not seen) is written down with the reason: only a loss that depends on it cannot be recomputed.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._provenance import RANDOM
from gradledger.ledger._trace import Trace

MAX_ENTRIES = 20_000
MAX_COPIED = 20_000_000  # elements that are copied, in one iteration and the one before

# Draw random numbers when they train (or when their probability is above zero): which argument says so.
_SWITCHED: dict[str, tuple[str, ...]] = {
    "dropout": ("training", "train"), "alpha_dropout": ("training", "train"), "feature_dropout": ("training", "train"),
    "feature_alpha_dropout": ("training", "train"), "dropout1d": ("training",), "dropout2d": ("training",),
    "dropout3d": ("training",), "rrelu": ("training",), "native_dropout": ("train",),
    "multi_head_attention_forward": ("training",), "lstm": ("train",), "gru": ("train",), "rnn_tanh": ("train",),
    "rnn_relu": ("train",), "scaled_dot_product_attention": (),
}  # fmt: skip
_PROBABILITY = ("p", "dropout_p", "dropout", "lower")
_ALWAYS_RANDOM = (RANDOM - _SWITCHED.keys()) | {
    "poisson", "binomial", "fractional_max_pool2d", "fractional_max_pool3d", "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d_with_indices", "rand_like", "randn_like",
}  # fmt: skip
# Positions of (probability, switch) in builtins that tell no signature.
_BUILTIN = {"dropout": (1, 2), "alpha_dropout": (1, 2), "feature_dropout": (1, 2), "feature_alpha_dropout": (1, 2)}
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_PLAIN = (
    type(None), bool, int, float, complex, str, type(Ellipsis), torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Size, np.generic, range,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something cannot be recomputed: `code` (see `OracleAbstained`), in words, and the line that prevents it."""

    code: str
    what: str
    site: Site = NOWHERE


@dataclass(frozen=True, slots=True)
class Made:
    """An argument: the result of an operation on the tape."""

    token: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """An argument: a leaf that requires grad, as it was then.  `number`: of the followed leaf."""

    number: int
    copy: torch.Tensor


@dataclass(slots=True)
class Entry:
    """One operation.  `args`, `kwargs`: with every tensor replaced by `Made`, `Leaf` or a copy; `outs`: tokens of its
    tensors, in order; `needs`: the results it was given."""

    order: int
    iteration: int
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int, ...]
    needs: tuple[int, ...]
    copied: int


class _Refused(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.what)
        self.reason = reason


class Tape:
    """Operations of the sampled iteration and of the one before it (a loss may begin there)."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.slots: dict[int, Entry | Reason] = {}
        self.scalars: dict[int, torch.Tensor] = {}
        self.copied = 0
        self.full: Reason | None = None
        self._leaves: dict[tuple[int, int], Leaf] = {}
        self._needs: list[int] = []
        self._fresh = 0
        self._site = NOWHERE

    def turn(self, iteration: int) -> None:
        """An iteration begins: forget all but the one before."""
        self.slots = {t: e for t, e in self.slots.items() if isinstance(e, Entry) and e.iteration >= iteration - 1}
        self.copied = sum({id(e): e.copied for e in self.slots.values() if isinstance(e, Entry)}.values())
        self.scalars, self._leaves, self.full = {}, {}, None

    def clear(self) -> None:
        """Forget everything."""
        self.slots, self.scalars, self._leaves, self.copied, self.full = {}, {}, {}, 0, None

    # ------------------------------------------------------------------ writing

    def ran(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], op: Op, results: list[Value]
    ) -> None:
        """One operation has run: keep it when its result carries a graph."""
        if not any(r.graph and not r.is_leaf for r in results):
            return
        outs = tuple(r.token for r in results)
        written = op.inplace or bool(kwargs.get("inplace")) or kwargs.get("out") is not None
        fresh = outs if written else tuple(token for token in outs if token not in self.slots)
        if not fresh:
            return  # it gave back what it was given
        if self.full is None and (len(self.slots) >= MAX_ENTRIES or self.copied >= MAX_COPIED):
            self.full = Reason("too large", f"the iteration has more than {MAX_COPIED:,} elements to copy", op.site)
        made: Entry | Reason
        try:
            if written:
                raise _Refused(Reason("in-place", f"`{op.name}` writes in place", op.site))
            made = self.full or self._entry(func, args, kwargs, op, outs)
        except _Refused as refused:
            made = refused.reason
        for token in fresh:
            self.slots[token] = made

    def _entry(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], op: Op, outs: tuple[int, ...]
    ) -> Entry:
        if _draws(op.name, func, args, kwargs):
            raise _Refused(Reason("random", f"`{op.name}` draws random numbers", op.site))
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise _Refused(Reason("autocast", "autocast was on", op.site))
        self._needs, self._fresh, self._site = [], 0, op.site
        copied = tuple([self._copy(a) for a in args])
        named = {name: self._copy(a) for name, a in kwargs.items()}
        self.copied += self._fresh
        return Entry(
            op.order, self.trace.recorder.iteration, func, copied, named, outs, tuple(self._needs), self._fresh
        )

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _PLAIN):
            return value
        if type(value) in (list, tuple):
            return type(value)(self._copy(v) for v in value)
        if isinstance(value, slice):
            if any(isinstance(v, torch.Tensor) for v in (value.start, value.stop, value.step)):
                raise _Refused(Reason("argument", "a slice is bounded by tensors", self._site))
            return value
        if isinstance(value, np.ndarray):
            self._fresh += value.size
            return value.copy()
        raise _Refused(Reason("argument", f"an argument is a {type(value).__name__}", self._site))

    def _tensor(self, tensor: torch.Tensor) -> Made | Leaf | torch.Tensor:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise _Refused(Reason("subclass", f"a tensor is a {type(tensor).__name__}", self._site))
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise _Refused(Reason("subclass", "a tensor is sparse, quantized or has no data", self._site))
        value = self.trace.value_of(tensor)
        if not tensor.requires_grad:
            copy = self._clone(tensor)
            if copy.numel() == 1:
                self.scalars[value.token] = copy
            return copy
        known = self.slots.get(value.token)
        if isinstance(known, Reason):
            raise _Refused(known)
        if known is not None:
            self._needs.append(value.token)
            return Made(value.token)
        if not tensor.is_leaf:  # (as it is now: the result of a custom function was recorded before it got its graph)
            if value.op is not None and value.op.name == "autograd_grad":
                raise _Refused(Reason("unseen", "the loss contains a result of `autograd.grad`", self._site))
            raise _Refused(unseen(tensor, self._site))
        number = self.trace.recorder.tensor_id(tensor)
        key = (number, tensor._version)
        leaf = self._leaves.get(key)
        if leaf is None:
            leaf = self._leaves[key] = Leaf(number, self._clone(tensor))
        return leaf

    def _clone(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.copied + self._fresh + tensor.numel() > MAX_COPIED:
            self.full = Reason(
                "too large", f"the iteration has more than {MAX_COPIED:,} elements to copy", self._site
            )  # fmt: skip
            raise _Refused(self.full)
        self._fresh += tensor.numel()
        with torch.no_grad():
            return tensor.detach().clone()

    # ------------------------------------------------------------------ reading

    def below(self, tokens: list[int]) -> list[Entry] | Reason:
        """Every operation that these values depend on, in order; or why one of them cannot be recomputed."""
        found: dict[int, Entry] = {}
        todo = list(tokens)
        while todo:
            made = self.slots.get(todo.pop())
            if made is None:
                return Reason("not recorded", "the loss begins in an iteration that was not recorded")
            if isinstance(made, Reason):
                return made
            if id(made) not in found:
                found[id(made)] = made
                todo.extend(made.needs)
        return sorted(found.values(), key=lambda e: e.order)


def unseen(tensor: torch.Tensor, site: Site) -> Reason:
    """Why a value with a graph is not on the tape, by what made it."""
    node: object = None
    with contextlib.suppress(RuntimeError):  # a view made under no_grad whose base was written since
        node = tensor.grad_fn
    name = type(node).__name__.removesuffix("Backward")
    if name == "BackwardHookFunction":
        return Reason("custom function", "a module has a full backward hook", site)
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return Reason("custom function", f"`{name}` is a custom autograd function", site)
    return Reason("unseen", f"the making of a value was not seen ({type(node).__name__})", site)


def _draws(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation draws random numbers."""
    if any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
        return True
    if name in _ALWAYS_RANDOM:
        return True
    switches = _SWITCHED.get(name)
    if switches is None:
        return False
    if name in _RECURRENT:  # (..., has_biases, num_layers, dropout, train, bidirectional, ...)
        numbers = [a for a in args if isinstance(a, (bool, int, float))]
        return not (len(numbers) >= 4 and (not numbers[2] or not numbers[3]))
    given = dict(kwargs)
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
    except (TypeError, ValueError):  # a builtin
        places = _BUILTIN.get(name)
        if places is not None:
            given |= {n: args[i] for n, i in zip(("p", "train"), places, strict=True) if i < len(args)}
        elif name == "scaled_dot_product_attention":
            given.setdefault("dropout_p", args[4] if len(args) > 4 else 0.0)
    off = any(given.get(s) is False for s in switches)
    never = any(given.get(p) in (0, 0.0) for p in _PROBABILITY if p in given and name != "rrelu")
    return not (off or never)


__all__ = ["Entry", "Leaf", "Made", "Reason", "Tape", "unseen"]
