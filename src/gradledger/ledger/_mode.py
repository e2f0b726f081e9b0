"""The mode that sees torch functions: calls each exactly once, then tells the trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from gradledger.ledger._naming import raw_name

if TYPE_CHECKING:
    from gradledger.ledger._trace import Trace


MAX_OPS = 20_000  # an iteration with more operations than this is watched no further
_WATCHED_READS = frozenset({"grad", "data", "T", "mT", "real", "imag", "H"})


class Mode(TorchFunctionMode):
    """Calls the function, then tells the trace.  Nothing it does can change or raise."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        trace = self._trace
        if kwargs is None:
            kwargs = {}
        # torch has set the mode aside until this returns: nobody may move it meanwhile, watched or not
        trace.inside += 1
        try:
            if not trace.wanted or trace.ops > MAX_OPS or not trace.recorder.detail:
                return func(*args, **kwargs)
            return self._watched(trace, func, args, kwargs)
        finally:
            trace.inside -= 1

    def _watched(self, trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
        name = raw_name(func)
        if name == "__get__":
            out = func(*args, **kwargs)
            attribute = func.__self__.__name__
            if attribute in _WATCHED_READS:
                try:
                    with torch._C.DisableTorchFunction():
                        trace.got(attribute, args[0], out, sys._getframe(2))
                except Exception as error:
                    trace.recorder.fail("trace read", error)
            return out
        if name == "__set__":
            attribute = func.__self__.__name__
            before = None
            if attribute == "requires_grad":
                with torch._C.DisableTorchFunction():
                    before = args[0].requires_grad
            out = func(*args, **kwargs)
            try:
                with torch._C.DisableTorchFunction():
                    trace.was_set(attribute, args[0], args[1], before)
            except Exception as error:
                trace.recorder.fail("trace write", error)
            return out
        if name == "requires_grad_" and args:
            with torch._C.DisableTorchFunction():
                before = args[0].requires_grad
            out = func(*args, **kwargs)
            try:
                with torch._C.DisableTorchFunction():
                    trace.was_set("requires_grad", args[0], out.requires_grad, before)
            except Exception as error:
                trace.recorder.fail("trace write", error)
            return out
        out = func(*args, **kwargs)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return out  # inside vmap/grad transforms tensors are wrappers: not looked at
        if trace.optimizer_running and not torch.is_grad_enabled():
            return out  # the optimizer's own arithmetic
        try:
            with torch._C.DisableTorchFunction():
                trace.saw(func, args, kwargs, out)
        except Exception as error:  # our mistakes are counted, never raised
            trace.recorder.fail(f"trace {name}", error)
        return out
