"""Forward calls: the trace and the global module hooks are on while the recorder wants detail.

Only calls that the program makes itself (not those inside another module's forward) become `Call`s; layers with running
statistics are reported to the mode probe at any depth.  A module that was seen to return nothing but losses is a
training step written as a `forward`: what it calls and computes counts as the program's own from its second call on.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from gradledger.core.events import GradientsRead, ModuleCalled, ModuleUsed
from gradledger.core.site import Site
from gradledger.ledger import _provenance, _site
from gradledger.ledger._graph import mark
from gradledger.ledger._moody import Moody
from gradledger.ledger._naming import ELEMENTWISE
from gradledger.ledger._operations import Call, Op, Value
from gradledger.ledger._patch import Undo
from gradledger.ledger._registry import Registry
from gradledger.ledger._session import Session
from gradledger.ledger.probes import modes, modules

SCANS = 3  # first calls of each module before which its attributes are looked at
MAX_INPUTS = 8  # of a call whose origin is kept: a critic is given few, a module of many tensors is no critic
MAX_OUTPUTS = 16
MAX_LINES = 512  # whose last results are remembered
SHAPED = 6  # operations between an output and what cuts it off
MANY_CALLS = 256  # waiting calls at which those whose graph is gone are settled, even when no iteration passes
CHECKED_ITERATIONS = 20  # in these the inputs of calls are looked at for values that are not finite
MAX_CHECKED = 1_000_000  # elements
# In eval mode these choose a fused path only when no torch function mode is active: ours steps aside for the call.
_FAST_PATH = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer)


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.trace = session.trace
        self.handles: list[RemovableHandle] = []
        self.leaving: RemovableHandle | None = None
        self.aside: list[int] = []
        self.numbers = 0
        self.entered: list[tuple[weakref.ref[torch.nn.Module], Call | None]] = []
        self.scanned: dict[int, int] = {}
        self.give_losses: set[int] = set()  # modules whose forward is a training step
        self.used: set[int] = set()
        self.fed_back: dict[tuple[str, int], tuple[int, ...]] = {}  # nodes of the results of each line's last call
        self.reads: dict[tuple[str, int], tuple[int, set[int]]] = {}

    # ------------------------------------------------------------------ on and off

    def switch(self, on: bool) -> None:
        if on and not self.handles:
            self.trace.on()
            self.entered.clear()
            self.trace.depth = 0
            self.handles = [
                register_module_forward_pre_hook(self.before),
                register_module_forward_hook(self.after, always_call=True),
            ]
        elif not on and self.handles:
            for handle in self.handles:
                handle.remove()
            self.handles = []
            self.trace.off()
            self.entered.clear()
            self.aside.clear()
            if self.trace.inserted and self.leaving is None:
                # we are inside an operation of which torch has set our mode aside: the next call can take it out
                self.leaving = register_module_forward_pre_hook(self._leave)

    def _leave(self, module: torch.nn.Module, inputs: Any) -> None:
        with self.recorder.guard("call"):
            self.trace.settle()
            if self.leaving is not None and not (self.trace.inserted and not self.handles):
                self.leaving.remove()
                self.leaving = None

    def undo(self) -> None:
        self.switch(False)
        self.trace.off()
        if self.leaving is not None:
            self.leaving.remove()
            self.leaving = None

    # ------------------------------------------------------------------ hooks

    def before(self, module: torch.nn.Module, inputs: Any) -> None:
        if not self.recorder.enabled:
            return
        with self.recorder.guard("call"):
            call = None
            self.trace.settle()
            known = self.recorder.modules.find(module)
            through = not self.entered and known in self.give_losses
            if through:
                self._scan(known, module)
            elif not self.entered and not self.trace.reversing:
                call = self._begin(module, inputs)
                known = call.module
            if known is not None and known not in self.used:
                self.used.add(known)
                self.recorder.emit(ModuleUsed, _site.here(1), module=known)
                root = self.entered[0][0]() if self.entered else None
                if root is not None and not self.recorder.part(Registry).parents.get(known):
                    # it came into the tree past the registration hooks: `Sequential.insert`, a table written by hand
                    modules.scan_tree(self.session, root)
            if through:
                return
            self.entered.append((weakref.ref(module), call))
            self.trace.depth = len(self.entered)
            if isinstance(module, _FAST_PATH) and not module.training and not self.aside:
                self.aside.append(id(module))
                self.trace.off()

    def after(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if not self.recorder.enabled:
            return
        with self.recorder.guard("call end"):
            if self.aside and self.aside[-1] == id(module):
                self.aside.pop()
                self.trace.on()
            call = None
            while self.entered:
                ref, entered_call = self.entered.pop()
                if ref() is module:
                    call = entered_call
                    break
            self.trace.depth = len(self.entered)
            root = self.entered[0][0]() if self.entered else module
            if root is not None and getattr(module, "running_mean", None) is not None and module.training:
                modes.statistics(self.session, module, root)
            if call is not None and output is not None:
                self._end(call, module, output)

    def _begin(self, module: torch.nn.Module, inputs: Any) -> Call:
        site = _site.here(2)
        number = self.recorder.module_id(module, site)
        fresh = self._scan(number, module)
        self.numbers += 1
        call = Call(
            self.numbers,
            number,
            site,
            module.training,
            torch.is_grad_enabled(),
            self.recorder.iteration,
            self.trace.order,
            gap=self.recorder.backwards,
        )
        call.moody, call.active = self.recorder.part(Moody).count(number, module, fresh)
        own = self.fed_back.get(site.key(), ())
        given = _flat(inputs)
        if self.trace.active:
            known = [self.trace.tokens.find(t) for t in given[:MAX_INPUTS]]
            call.given = tuple(token for token in known if token is not None)
        for t in given:
            if t.requires_grad and not t.is_leaf:
                call.inputs_need_grad = True
                # a state that the line's own last call gave is no graph from elsewhere
                call.carries = call.carries or not own or t.grad_fn is None or t.grad_fn._sequence_nr() not in own
            call.batch = call.batch or (t.shape[0] if t.dim() else 1)
            if self.recorder.iteration < CHECKED_ITERATIONS and _not_finite(t):
                self.session.bad_input = (self.recorder.iteration, site)
            if t.requires_grad and self.trace.active:
                leaf = _provenance.leaf_behind(self.trace, self.trace.token_of(t))
                if leaf is not None:
                    self.session.fed[leaf].add(number)
        if torch._C._functorch.peek_interpreter_stack() is None:  # inside vmap and the like tensors have no values
            for look in self.session.at_call:
                look(call, module, inputs)
        return call

    def _scan(self, number: int | None, module: torch.nn.Module) -> bool:
        """Look at what a module holds, at its first calls and now and then; whether this was such a call.

        What holds it may never be called itself (`agent.loss(batch)`): it is looked at with its parts.
        """
        if number is None:
            return False
        scans = self.scanned.get(number, 0)
        fresh = scans < SCANS or self.recorder.calls % 64 == 0
        if fresh:
            # what forward itself hangs on a module shows at the next call
            self.scanned[number] = scans + 1
            outer = self.recorder.part(Registry).ancestors(number)[-1]
            looked = self.scanned.get(outer, 0)
            holder = self.recorder.modules.get(outer) if outer != number and looked < SCANS else None
            if holder is not None:
                self.scanned[outer] = looked + 1
            modules.scan_tree(self.session, module if holder is None else holder)
        return fresh

    def _end(self, call: Call, module: torch.nn.Module, output: Any) -> None:
        tensors = _flat(output)[:MAX_OUTPUTS]
        if tensors and call.grad_on and _is_training_step(module, tensors):
            self.give_losses.add(call.module)
        # under no_grad a parameter that is handed out requires a gradient still, and so does a view in inference mode
        call.output_has_graph = any(t.requires_grad and (call.grad_on or t.grad_fn is not None) for t in tensors)
        if self.trace.active:
            tokens = []
            for t in tensors:
                value = self.trace.values[self.trace.token_of(t)]
                if value.call is None and value.leaf is None:
                    value.call = call
                    tokens.append(value.token)
                    known = self.trace.value_of(t)
                    if known is not value and known.call is None:
                        known.call = call
            call.outputs = tuple(tokens)
        made = [t.grad_fn for t in tensors if t.requires_grad and t.grad_fn is not None]
        call.nodes = tuple(node._sequence_nr() for node in made)
        call.marks = tuple(mark(node) for node in made)
        if call.carries or len(self.fed_back) > MAX_LINES:
            self.fed_back.pop(call.site.key(), None)
        elif call.nodes:
            self.fed_back[call.site.key()] = call.nodes
        call.elements = sum(t.numel() for t in tensors)
        self.trace.calls[call.number] = call
        self.recorder.emit(
            ModuleCalled,
            call.site,
            call=call.number,
            module=call.module,
            training=call.training,
            grad_on=call.grad_on,
            output_has_graph=call.output_has_graph,
            inputs_need_grad=call.inputs_need_grad,
            batch=call.batch,
            moody=call.moody,
            active=call.active,
        )
        if len(self.trace.calls) >= MANY_CALLS and call.number % 64 == 0:
            self.session.many_calls()
        self.recorder.call_done()

    def differentiated(self) -> None:
        """A reverse pass has run; within a forward (forces from an energy) it needs the graph whatever comes after."""
        for _, call in self.entered[:1]:
            if call is not None:
                call.differentiates = True

    # ------------------------------------------------------------------ listeners of the trace

    def op_seen(self, op: Op, results: list[Value], args: Any) -> None:
        """Remember where free leaves are made, and what the program first does with a module's output."""
        for value in results:
            if value.is_leaf and value.graph and value.leaf is not None:
                self.session.leaf_sites.setdefault(value.leaf, op.site)
        if len(op.ins) == 2 and op.name in ELEMENTWISE:
            self._beside_an_answer(op)
        if op.ins:
            first = self.trace.values.get(op.ins[0])
            if op.name in ("detach", "detach_", "data") and first is not None and first.call is None:
                first = self._answer_behind(first)
            if first is not None and first.call is not None and not first.call.then and first.call.output_has_graph:
                if op.name in ("detach", "data", "argmax", "detach_") or not any(v.graph for v in results):
                    first.call.then, first.call.then_site = op.name, op.site

    def _answer_behind(self, value: Value) -> Value | None:
        """The module's output that a value was made from alone: `(net(x) / t).softmax(-1)`."""
        for _ in range(SHAPED):
            if value.call is not None:
                return value
            if value.op is None or len(value.op.ins) != 1 or value.op.inplace:
                return None
            below = self.trace.values.get(value.op.ins[0])
            if below is None:
                return None
            value = below
        return None

    def _beside_an_answer(self, op: Op) -> None:
        """A free leaf of the very shape of a computed value, one to one with it: data of this batch, a target."""
        values = [self.trace.values.get(t) for t in op.ins]
        for one, other in (values, values[::-1]):
            if one is None or other is None or one.leaf is None or not one.graph or not one.is_leaf:
                continue
            computed = other.graph and not other.is_leaf and other.shape == one.shape and len(one.shape) > 1
            if computed and not one.is_parameter and not op.in_forward:
                self.session.leaves_in_loss.add(one.leaf)

    def flag_set(self, tensor: torch.Tensor, new: bool, before: bool) -> None:
        """A tensor was made to require grad by hand: that line is where the leaf was made."""
        if new and not before and tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter):
            number = self.recorder.tensor_id(tensor)
            self.session.leaf_sites.setdefault(number, _site.here(1))
            token = self.trace.tokens.find(tensor)
            value = self.trace.values.get(token) if token is not None else None
            if value is not None:
                value.graph, value.leaf = True, number

    def grad_read(self, tensor: torch.Tensor, grad: Any, frame: Any) -> None:
        """The program read `.grad` itself."""
        number = self.session.lifecycle.was_read(tensor)
        if number is not None or not tensor.is_leaf:
            where = (frame.f_code.co_filename, frame.f_lineno)
            _, tensors = self.reads.setdefault(where, (self.session.lifecycle.latest, set()))
            if number is not None:
                tensors.add(number)

    def flush_reads(self, *_: Any) -> None:
        reads, self.reads = self.reads, {}
        for (file, line), (backward, tensors) in reads.items():
            site = Site(file, line, "")
            self.recorder.emit(GradientsRead, site, tensors=tuple(sorted(tensors)), backward=backward)

    def flush_without_steps(self) -> None:
        """A program without an optimizer has no steps at which its reads could be told."""
        if not self.recorder.optimizers:
            self.flush_reads()


def _is_training_step(module: torch.nn.Module, outputs: list[torch.Tensor]) -> bool:
    """Whether all that came out are numbers, one of them with a graph, of a module that holds networks."""
    if not any(t.requires_grad for t in outputs) or any(t.dim() for t in outputs):
        return False
    return any(next(child.parameters(), None) is not None for child in module.children())


def _not_finite(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.numel() > MAX_CHECKED:
        return False
    return tensor.is_floating_point() and not math.isfinite(float(tensor.detach().sum()))


def _flat(value: Any, depth: int = 0) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if depth > 4:
        return []
    if isinstance(value, dict) or (hasattr(value, "values") and hasattr(value, "keys")):
        return [t for v in value.values() for t in _flat(v, depth + 1)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _flat(v, depth + 1)]
    inner = getattr(value, "__dict__", None)
    if inner and depth < 2 and not isinstance(value, torch.nn.Module):
        return [t for v in inner.values() for t in _flat(v, depth + 1)]
    return []


def install(session: Session) -> Undo:
    """Switch trace and hooks on now, and on or off with the recorder's detail."""
    probe = _Probe(session)
    listeners = session.trace.listeners
    session.called = lambda: probe.entered[0][0]() if probe.entered else None
    listeners.op.append(probe.op_seen)
    listeners.flag_set.append(probe.flag_set)
    listeners.grad_read.append(probe.grad_read)
    session.differentiated = probe.differentiated
    session.at_step.append(probe.flush_reads)
    session.at_backward.append(probe.flush_without_steps)
    session.recorder.on_detail_change.append(probe.switch)
    if session.recorder.wants_detail():
        probe.switch(True)
    return probe.undo
