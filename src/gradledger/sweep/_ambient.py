"""What surrounds a run without being its argument: autocast and grad mode, set alike for a run and its repetition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar

import torch


class Modes:
    """Grad mode, autocast and saved-tensor hooks of this thread, to be put back after an interrupt.

    A signal that raises while a context manager of Python's is being left can keep it from leaving; a plain backward
    runs in C++, where signals wait.
    """

    __slots__ = ("autocast", "cached", "grad", "hooks")

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.hooks = _top_hooks()
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        self.autocast = [(k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds]
        self.cached = torch.is_autocast_cache_enabled()

    def put_back(self) -> None:
        """As they were."""
        torch.set_grad_enabled(self.grad)
        for kind, on, dtype in self.autocast:
            torch.set_autocast_enabled(kind, on)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self.cached)
        while (top := _top_hooks()) is not None and top != self.hooks:
            torch._C._autograd._pop_saved_tensors_default_hooks()


def _top_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


P = ParamSpec("P")
R = TypeVar("R")


def modes_kept(call: Callable[P, R]) -> Callable[P, R]:
    """A call that leaves the modes as they were also when it raises, at whatever moment."""

    @functools.wraps(call)
    def kept(*args: P.args, **kwargs: P.kwargs) -> R:
        modes = Modes()
        try:
            return call(*args, **kwargs)
        except BaseException:
            modes.put_back()
            raise

    return kept


class Ambient:
    """Autocast as it stood when the forward pass began, per kind of device."""

    __slots__ = ("autocast", "cached")

    def __init__(self) -> None:
        kinds = ["cpu"]
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is not None and accelerator.type not in kinds:
            kinds.append(accelerator.type)
        self.autocast = tuple(
            (kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)
        )
        self.cached = bool(self.autocast) and torch.is_autocast_cache_enabled()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """As it was; the cache of cast weights is emptied between blocks.

        A cast that two blocks share would tie their local graphs together; and a cast cached while nothing is recorded
        has no gradient at all (torch/amp/autocast_mode.py caches by grad mode of the first use).
        """
        with ExitStack() as stack:
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.cached))
            yield

    @contextmanager
    def one_block(self) -> Iterator[None]:
        """Around one block: a weight that it uses several times is cast once, as without us."""
        if not self.cached:
            yield
            return
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()

    @contextmanager
    def reverse(self) -> Iterator[None]:
        """No autocast: as a backward pass is meant to run."""
        with ExitStack() as stack:
            for kind, _ in self.autocast:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
