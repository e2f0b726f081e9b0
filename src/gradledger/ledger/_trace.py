"""The trace: every torch operation of the watched iterations, as values and the operations that made them.

A TorchFunctionMode sees the calls that a program makes on tensors (not what torch does inside them).  Each tensor value
gets a token; an in-place write gives the same tensor a new token.  Values know the operation that made them, so a
number in a loss can be followed back through detaches, numpy round trips and no_grad blocks to the parameters it came
from, which the autograd graph alone cannot tell.  Only numbers and strings are kept, of the last few iterations;
tensors are held by weak references alone.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from types import FrameType
from typing import Any

import torch
from torch import overrides
from torch.nn.parameter import is_lazy
from torch.utils._device import DeviceContext

from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site, _writes
from gradledger.ledger._identity import WeakTable
from gradledger.ledger._mode import Mode
from gradledger.ledger._naming import ELEMENTWISE, EXITS, FACTORIES, canonical, is_inplace
from gradledger.ledger._operations import (
    SIMPLE,
    Alias,
    AliasWrite,
    ArrayAlias,
    Call,
    Exit,
    Listeners,
    Op,
    Origin,
    Token,
    Value,
    all_told,
    node_number,
    note_numbers,
    tensors_of,
)
from gradledger.ledger._recorder import Recorder, unseen

# Python API of torch for its mode stack, without type annotations
_stack_height: Callable[[], int] = vars(overrides)["_len_torch_function_stack"]
_pop: Callable[[], Any] = vars(overrides)["_pop_mode"]
_push: Callable[[Any], None] = vars(overrides)["_push_mode"]

KEPT_ITERATIONS = 2  # older values are forgotten


class Trace:
    """Values and operations of the last iterations; on and off with the recorder's detail."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.listeners = Listeners()
        self.tokens: WeakTable[torch.Tensor] = WeakTable()
        self.first_token = 0  # of this iteration: what has a smaller one is older
        self.values: dict[int, Value] = {}
        self.by_node: dict[int, int] = {}
        self.exits: list[Exit] = []
        self.aliases: dict[int, Alias] = {}
        self.param_aliases: dict[int, weakref.ref[torch.Tensor]] = {}
        self.alias_writes: list[AliasWrite] = []
        self.arrays: list[ArrayAlias] = []
        self.calls: dict[int, Call] = {}
        self.depth = 0
        self.inside = 0
        self.wanted = False
        self.reversing = False  # a reverse pass runs: forwards inside it are recomputations
        self.swept = False  # a sweep walks it: older gradients are set aside meanwhile, which is no clear
        self.optimizer_running = 0
        self.ops = 0
        self.order = 0
        self._by_iteration: defaultdict[int, list[int]] = defaultdict(list)
        self._mode: Mode | None = None
        self._mode_thread = 0  # the stack of modes belongs to a thread
        self._frames_seen: set[int] = set()
        recorder.on_iteration.append(self._new_iteration)

    # ------------------------------------------------------------------ on and off

    def on(self) -> None:
        """Put our mode at the bottom of the mode stack, under any mode of the program (but for a default device)."""
        self.wanted = True
        if self._mode is not None or self.inside:
            return
        self._mode = Mode(self)
        self._mode_thread = threading.get_ident()
        above = [_pop() for _ in range(_stack_height())]
        if above and isinstance(above[-1], DeviceContext):
            _push(above.pop())  # torch wants the default device at the very bottom
        _push(self._mode)
        for mode in reversed(above):
            _push(mode)

    def off(self) -> None:
        """Take our mode out, wherever it is in the stack.

        While one of our own handlers runs, the stack must stay as it is: then the mode only lets everything pass, and
        `settle()` takes it out at the next safe moment.
        """
        self.wanted = False
        self.depth = 0
        self._take_out()

    def rest(self) -> None:
        """Take our mode out while torch works for the program (a step, a clip): there is nothing to see for us.

        `settle()`, which runs at every call of a module and at the end of every iteration, puts it back.
        """
        self._take_out()

    def _take_out(self) -> None:
        if self._mode is None or self.inside or threading.get_ident() != self._mode_thread:
            return
        above = []
        while _stack_height():
            mode = _pop()
            if mode is self._mode:
                break
            above.append(mode)
        for mode in reversed(above):
            _push(mode)
        self._mode = None

    def settle(self) -> None:
        """Bring the mode stack to what was last asked for."""
        if not self.inside and self.wanted != (self._mode is not None):
            if self.wanted:
                self.on()
            else:
                self.off()

    @property
    def inserted(self) -> bool:
        """Whether our mode stands in the stack, wanted or not."""
        return self._mode is not None

    @property
    def active(self) -> bool:
        """Whether operations are being recorded now."""
        return self.wanted and self._mode is not None

    def _new_iteration(self, iteration: int) -> None:
        self.settle()
        self.ops = 0
        self.first_token = self.tokens.following
        self._frames_seen.clear()
        old = [i for i in self._by_iteration if i < iteration - KEPT_ITERATIONS]
        for i in old:
            for token in self._by_iteration.pop(i):
                value = self.values.pop(token, None)
                if value is not None and self.by_node.get(value.node) == token:
                    del self.by_node[value.node]
                self.aliases.pop(token, None)
                self.param_aliases.pop(token, None)
        if old:
            horizon = min((v for v in self._by_iteration), default=iteration)
            self.calls = {k: c for k, c in self.calls.items() if c.iteration >= horizon or not c.walked}
            if len(self.calls) > 4096:
                self.calls = dict(list(self.calls.items())[-2048:])
        self.exits = self.exits[-256:]
        self.alias_writes = self.alias_writes[-64:]
        self.arrays.clear()

    # ------------------------------------------------------------------ look-ups

    def token_of(self, tensor: torch.Tensor, *, written: bool = False) -> int:
        """Token of the tensor's present value; unknown tensors enter as values without an operation.

        `written`: an operation has just written into it, so that a graph may be the one of what was written."""
        token = self.tokens.find(tensor)
        if token is None or token not in self.values:
            token = self.tokens.number(tensor) if token is None else token
            self._enter(token, tensor, None)
        elif written or self.values[token].graph or not tensor.requires_grad:
            return token
        elif not (tensor._is_view() or tensor.is_leaf):
            return self._came_out(token, tensor)
        return token

    def _came_out(self, token: int, tensor: torch.Tensor) -> int:
        """A value without a graph has one now: it was made inside an `autograd.Function`, which gave it out."""
        made = self.values[token].op
        site = made.site if made is not None else NOWHERE
        op = self._op("function", site, (token,), (), {}, True)
        return self._enter(self.tokens.renumber(tensor), tensor, op).token

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value record of a tensor.  A tensor that came out of an untraced call is found by its autograd node."""
        value = self.values[self.token_of(tensor)]
        if value.op is None and value.graph and value.leaf is None:
            known = self.by_node.get(value.node)
            if known is not None and known in self.values:
                return self.values[known]
        return value

    def newest(self, tensor: torch.Tensor) -> int | None:
        """The value of the same shape that was made last, at the line that runs: what `nn.Parameter(...)` was given.

        Making a Parameter is no operation that the mode sees.
        """
        here = _site.here(1).key()
        for token in reversed(self._by_iteration[self.recorder.iteration][-4:]):
            value = self.values.get(token)
            if value is not None and value.op is not None and value.op.site.key() == here:
                return token if value.shape == tuple(tensor.shape) else None
        return None

    def origin(self, tensor: torch.Tensor) -> Origin | None:
        """Which operation made a tensor, and where; None when it was made before or outside the watched iterations."""
        token = self.tokens.find(tensor)
        value = self.values.get(token) if token is not None else None
        if value is None or value.op is None:
            return None
        op = value.op
        return Origin(
            op.name,
            op.site,
            op.site.in_init or op.site.function == "__init__",
            op.in_forward,
            self._from_parameter(value),
        )

    def _from_parameter(self, value: Value) -> bool:
        for _ in range(8):
            if value.is_parameter:
                return True
            if value.op is None or len(value.op.ins) != 1:
                return False
            parent = self.values.get(value.op.ins[0])
            if parent is None:
                return False
            value = parent
        return False

    def only_parameters(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made in a constructor, or from Parameters and no other tensor at all."""
        token = self.tokens.find(tensor)
        first = self.values.get(token) if token is not None else None
        if first is None or first.op is None:
            return False
        if first.op.site.in_init or first.op.site.function == "__init__":
            return True
        queue = [first]
        for value in queue:
            if value.is_parameter:
                continue
            ins = [self.values.get(t) for t in value.op.ins] if value.op is not None else []
            known = [v for v in ins if v is not None]
            if not known or len(known) < len(ins) or len(queue) > 64:
                return False
            queue += known
        return True

    # ------------------------------------------------------------------ recording

    def _enter(self, token: int, tensor: torch.Tensor, op: Op | None) -> Value:
        graph = tensor.requires_grad
        node = 0
        leaf = self.recorder.tensors.find(tensor)
        is_leaf = True
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        if graph:
            # after an in-place write into a view even `is_leaf` would build its grad_fn anew: leave that to the program
            written = op is not None and op.inplace and tensor._is_view()
            is_leaf = not written and tensor.is_leaf
            if is_leaf:
                if leaf is None and _is_part_of_leaf(tensor):
                    graph = False
                elif leaf is None:
                    leaf = self.recorder.tensor_id(tensor)
            elif not written:
                node = node_number(tensor)
                if node:
                    self.by_node.setdefault(node, token)
        elif is_parameter and leaf is None:
            leaf = self.recorder.tensor_id(tensor)
        value = Value(
            token,
            op,
            () if is_parameter and is_lazy(tensor) else tuple(tensor.shape),
            graph,
            node,
            self.recorder.iteration,
            leaf,
            tensor.is_floating_point(),
            is_parameter=is_parameter,
            is_leaf=is_leaf,
        )
        self.values[token] = value
        self._by_iteration[self.recorder.iteration].append(token)
        return value

    def enter_results(
        self, tensors: list[torch.Tensor], name: str, ins: list[torch.Tensor], site: Site, **options: Any
    ) -> list[Value]:
        """Record an operation that torch functions do not show (autograd.grad, a custom Function)."""
        op = self._op(name, site, tuple(self.token_of(t) for t in ins), (), dict(options), torch.is_grad_enabled())
        return [self._enter(self.tokens.renumber(t), t, op) for t in tensors]

    def _op(
        self,
        name: str,
        site: Site,
        ins: tuple[int, ...],
        operands: tuple[Any, ...],
        options: dict[str, Any],
        grad_on: bool,
    ) -> Op:
        self.order += 1
        self.ops += 1
        return Op(name, site, ins, operands, options, grad_on, self.order, self.depth > 0)

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """One torch function has run."""
        name = canonical(func)
        ins: list[torch.Tensor] = []
        for a in args:
            if isinstance(a, torch.Tensor):
                ins.append(a)
            elif isinstance(a, (list, tuple)):
                ins.extend(x for x in a if isinstance(x, torch.Tensor))
        if kwargs:
            ins += [a for a in kwargs.values() if isinstance(a, torch.Tensor)]
        if name in EXITS:
            if ins:
                self.order += 1
                leaving = self.token_of(ins[0])
                self.exits.append(Exit(name, leaving, _site.here(2), self.order))
                if name == "numpy" and leaving in self.aliases:
                    _writes.note_array(self, out, self.aliases[leaving])
            return
        outs = tensors_of(out)
        if not outs:
            if name == "setitem" and ins:
                outs = [ins[0]]
            else:
                return
        if name in ("backward", "size", "dim", "requires_grad_", "register_hook", "retain_grad"):
            return
        given = kwargs.get("out")
        inplace = is_inplace(func) or given is not None
        frame = _site.user_frame(2)
        site = NOWHERE if frame is None else _site.of(frame)
        into = {id(t) for t in outs} if inplace else ()
        tokens = tuple([self.token_of(t, written=id(t) in into) for t in ins])
        operands: tuple[Any, ...] = ()
        if name in ELEMENTWISE:
            told = dict(zip(map(id, ins), tokens, strict=True))
            operands = tuple(
                Token(told[id(a)]) if isinstance(a, torch.Tensor) else a if isinstance(a, (int, float)) else None
                for a in args[:2]
            )
        options: dict[str, Any] = {k: v for k, v in kwargs.items() if isinstance(v, SIMPLE)} if kwargs else {}
        numbers = tuple([a for a in args if isinstance(a, SIMPLE) or a is None])
        if numbers and not operands:
            options["_args"] = numbers
        if not all_told((*args, *kwargs.values())):
            options["_untold"] = True
        if name in FACTORIES and not ins and outs[0].device.type == "cpu":
            note_numbers(options, args, outs[0].detach())
        op = self._op(name, site, tokens, operands, options, torch.is_grad_enabled())
        op.inplace = inplace
        results: list[Value] = []
        for t in outs:
            token = self.tokens.find(t)
            fresh = token is None or inplace
            if not fresh and token is not None and token in self.values:
                # the function returned one of its inputs (contiguous(), to() without effect): the same value
                results.append(self.values[token])
                continue
            results.append(self._enter(self.tokens.renumber(t), t, op))
        if given is not None:  # what is written into is `out`, wherever it stands among the arguments
            both = list(zip(ins, tokens, strict=True)) if isinstance(given, torch.Tensor) else []
            both.sort(key=lambda pair: pair[0] is not given)
            ins, tokens = [t for t, _ in both], tuple(n for _, n in both)
        _writes.note_aliases(self, op, name, ins, tokens, outs, results)
        if inplace and ins:
            if name.startswith("_foreach_"):
                _writes.note_writes(self, op, args)
            else:
                _writes.note_write(self, op, ins, tokens, outs)
        with unseen():
            for listener in self.listeners.op:
                listener(op, results, args)
            for look_at in self.listeners.made:
                look_at(op, results, args, outs)
            for ran in self.listeners.ran:
                ran(func, args, kwargs, op, results)
        if frame is not None and frame.f_code.co_argcount and id(frame) not in self._frames_seen:
            self._frames_seen.add(id(frame))
            for look in self.listeners.user_frame:
                look(frame)

    # ------------------------------------------------------------------ attribute access

    def got(self, attribute: str, tensor: torch.Tensor, out: Any, caller: FrameType) -> None:
        """A tensor attribute was read."""
        if attribute == "grad":
            if isinstance(out, torch.Tensor) and _site.is_user_code(caller.f_code):
                for listener in self.listeners.grad_read:
                    listener(tensor, out, caller)
                if not out.requires_grad:  # a gradient that backward left: what is made of it is a constant
                    op = self._op("autograd_grad", _site.here(2), (), (), {}, True)
                    self._enter(self.tokens.renumber(out), out, op).grad_input = True
        elif isinstance(out, torch.Tensor) and attribute in ("data", "T", "mT", "real", "imag", "H"):
            op = self._op(attribute, _site.here(2), (self.token_of(tensor),), (), {}, torch.is_grad_enabled())
            result = (
                self._enter(self.tokens.renumber(out), out, op) if self.tokens.find(out) is None else self.value_of(out)
            )
            _writes.note_aliases(self, op, attribute, [tensor], op.ins, [out], [result])
            with unseen():
                for ran in self.listeners.ran:
                    ran(attrgetter(attribute), (tensor,), {}, op, [result])

    def was_set(self, attribute: str, tensor: torch.Tensor, new: Any, before: Any) -> None:
        """A tensor attribute was written by the program."""
        if self.optimizer_running:
            return
        if attribute == "grad":
            if not (self.swept and new is None):
                for on_grad in self.listeners.grad_set:
                    on_grad(tensor, new)
        elif attribute == "requires_grad":
            for on_flag in self.listeners.flag_set:
                on_flag(tensor, bool(new), bool(before))
        elif attribute == "data" and isinstance(new, torch.Tensor):
            token = self.token_of(new)
            source, tau = _writes.blend_source(self, (token,), tensor, _writes.place_of((new,)))
            number = self.recorder.tensors.find(source) if source is not None else None
            for on_data in self.listeners.data_set:
                on_data(tensor, new, number, tau)
            if self.recorder.tensors.find(tensor) is None:
                self._enter(
                    self.tokens.renumber(tensor), tensor, self._op("data", _site.here(2), (token,), (), {}, True)
                )


def _is_part_of_leaf(tensor: torch.Tensor) -> bool:
    """A view, made under no_grad, of what requires grad: torch calls it a leaf that does too, and it is neither."""
    base = tensor._base if tensor._is_view() else None
    return base is not None and base.requires_grad
