"""Tracebacks, stacks and warnings of code that runs under frames like ours, against the same code without them.

The frames are made by code compiled under a file name inside the package, which is how frames of ours are told apart.
"""

from __future__ import annotations

import inspect
import io
import logging
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as modules

from gradledger.ledger import _frames, _warnings

OURS = """
import functools
from torch.overrides import TorchFunctionMode

class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.inner_step(func, args, kwargs or {})

    def inner_step(self, func, args, kwargs):
        return func(*args, **kwargs)

def wrap(original):
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return original(*args, **kwargs)
    return wrapper

def hook(module, *rest):
    return None
"""
names: dict[str, Any] = {"__name__": "gradledger.ledger._imitation"}
exec(compile(OURS, str(Path(_frames.__file__).with_name("_imitation.py")), "exec"), names)


class Watching:
    """What the real probes do to the stack: a mode, a wrapper, module hooks; and the view that hides them."""

    def __init__(self, *, view: bool = True) -> None:
        self.view = view

    def __enter__(self) -> None:
        self.undo: list[Callable[[], Any]] = [_frames.install(), _warnings.install()] if self.view else []
        self.undo.append(modules.register_module_forward_pre_hook(names["hook"]).remove)
        self.undo.append(modules.register_module_forward_hook(names["hook"]).remove)
        backward = torch.autograd.backward
        torch.autograd.backward = names["wrap"](backward)
        self.undo.append(lambda: setattr(torch.autograd, "backward", backward))
        self.mode = names["Mode"]()
        self.mode.__enter__()

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)
        for undo in reversed(self.undo):
            undo()


class Net(nn.Module):
    def __init__(self, inner: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def loss(x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(x, torch.zeros(7, 3, 5))


def pooled(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, 9)


def reflected(x: torch.Tensor) -> torch.Tensor:
    return 2 - x.reshape(99)


def native(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, torch.zeros(99, 1))


def twice(x: torch.Tensor) -> None:
    root = (x * torch.ones(1, requires_grad=True)).exp().sum()
    root.backward()
    root.backward()


def normed(x: torch.Tensor) -> torch.Tensor:
    return torch.norm(x, dim=9)


def attention(x: torch.Tensor) -> Any:
    return nn.MultiheadAttention(4, 2)(x, x, torch.zeros(2, 2, 2, 2))


FAILURES = [loss, pooled, reflected, native, twice, normed, attention]


def caught(inner: Callable[[torch.Tensor], Any]) -> Exception:
    try:
        nn.Sequential(Net(inner))(torch.ones(2, 4))
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inner", FAILURES, ids=lambda f: f.__name__)
def test_a_traceback_shows_no_frame_of_the_watching(inner: Callable[[torch.Tensor], Any]) -> None:
    bare = "".join(traceback.format_exception(caught(inner)))
    with Watching():
        error = caught(inner)
        watched = "".join(traceback.format_exception(error))
        short = traceback.format_exception(error, limit=-2)
        trace = [(f.function, f.lineno) for f in inspect.getinnerframes(error.__traceback__)]
    assert watched == bare
    assert short == traceback.format_exception(caught(inner), limit=-2)
    assert trace == [(f.function, f.lineno) for f in inspect.getinnerframes(caught(inner).__traceback__)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inner", FAILURES, ids=lambda f: f.__name__)
def test_the_view_is_what_hides_them(inner: Callable[[torch.Tensor], Any]) -> None:
    bare = "".join(traceback.format_exception(caught(inner)))
    with Watching(view=False):
        assert "".join(traceback.format_exception(caught(inner))) != bare


@pytest.mark.filterwarnings("ignore")
def test_causes_contexts_and_groups_are_scrubbed_in_place() -> None:
    def nested() -> BaseException:
        first = caught(loss)
        try:
            try:
                raise ValueError("outer") from first
            except ValueError:
                caught_again = caught(pooled)
                raise ExceptionGroup("both", [caught_again, caught(native)])  # noqa: B904
        except ExceptionGroup as group:
            return group

    bare = nested()
    with Watching():
        watched = nested()
    _frames.scrub(watched)
    printed = [io.StringIO(), io.StringIO()]
    for error, file in zip((bare, watched), printed, strict=True):
        traceback.print_exception(error, file=file)
    assert printed[0].getvalue() == printed[1].getvalue()


@pytest.mark.filterwarnings("ignore")
def test_a_hook_of_the_program_keeps_the_slow_path_visible() -> None:
    def hooked() -> str:
        net = Net(loss)
        net.register_forward_hook(lambda module, args, output: None)
        try:
            net(torch.ones(2, 4))
        except RuntimeError:
            return traceback.format_exc()
        raise AssertionError("it did not fail")

    bare = hooked()
    assert ", in inner" in bare
    with Watching():
        assert hooked() == bare


def stacks(x: torch.Tensor) -> list[Any]:
    record = logging.LogRecord("n", logging.INFO, __file__, 1, "m", (), None)
    stack = [(f.function, f.lineno, f.code_context) for f in inspect.stack()]
    return [stack, traceback.format_stack(), traceback.extract_stack(limit=3), record.lineno]


def test_a_stack_shows_no_frame_of_the_watching() -> None:
    def see() -> Any:
        return Net(lambda x: Net(stacks)(x))(torch.ones(1))

    def look() -> Any:
        return see()

    results = []
    for watch in (False, True):
        if watch:
            with Watching():
                results.append(look())
        else:
            results.append(look())
    bare, watched = results
    here = test_a_stack_shows_no_frame_of_the_watching.__name__
    depth = next(i for i, frame in enumerate(bare[0]) if frame[0] == here)
    assert watched[0][:depth] == bare[0][:depth]
    assert len(watched[0]) == len(bare[0])
    assert watched[1][-depth:] == bare[1][-depth:]
    assert watched[2] == bare[2]


def test_errors_of_threads_are_printed_without_us(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> str:
        def work() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrapped = names["wrap"](loss) if watching else loss
                wrapped(torch.ones(2, 4))

        thread = threading.Thread(target=work, name="worker")
        old, threading.excepthook = threading.excepthook, threading.__excepthook__
        thread.start()
        thread.join()
        threading.excepthook = old
        return capsys.readouterr().err

    watching = False
    bare = run()
    watching = True
    undo = _frames.install()
    watched = run()
    undo()
    assert "RuntimeError" in bare
    assert watched == bare


def warn_here(level: int) -> None:
    warnings.warn(f"level {level}", DeprecationWarning, stacklevel=level)


def mismatch(x: torch.Tensor) -> Any:
    return F.mse_loss(x.sum(), torch.zeros(1))


def resized(x: torch.Tensor) -> Any:
    return torch.add(torch.ones(3), torch.ones(3), out=torch.zeros(2))


def no_dim(x: torch.Tensor) -> Any:
    return F.softmax(x), F.log_softmax(x)


def levels(x: torch.Tensor) -> None:
    for level in (0, 1, 2, 3, 4, 5, 6):
        warn_here(level)


WARNED = [mismatch, resized, no_dim, levels]


def seen(inner: Callable[[torch.Tensor], Any], action: Any) -> list[tuple[Any, ...]]:
    with warnings.catch_warnings(record=True) as records:
        warnings.resetwarnings()
        warnings.simplefilter(action)
        net = Net(inner)
        for _ in range(2):
            net(torch.ones(3))
            net(torch.ones(3))
    return [(r.category, str(r.message), r.filename, r.lineno, r.line, r.source) for r in records]


@pytest.mark.parametrize("action", ["always", "default", "module", "once", "ignore"])
@pytest.mark.parametrize("inner", WARNED, ids=lambda f: f.__name__)
def test_a_warning_stands_where_it_stood(inner: Callable[[torch.Tensor], Any], action: str) -> None:
    bare = seen(inner, action)
    with Watching():
        watched = seen(inner, action)
    assert watched == bare
    assert bool(bare) == (action != "ignore")


@pytest.mark.parametrize("inner", WARNED, ids=lambda f: f.__name__)
def test_the_view_is_what_keeps_warnings_in_place(inner: Callable[[torch.Tensor], Any]) -> None:
    bare = seen(inner, "always")
    with Watching(view=False):
        assert seen(inner, "always") != bare


@pytest.mark.parametrize("inner", [mismatch, resized, no_dim], ids=lambda f: f.__name__)
def test_filters_see_the_module_and_line_of_the_program(inner: Callable[[torch.Tensor], Any]) -> None:
    def errors(**condition: Any) -> str:
        with warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", **condition)
            try:
                inner(torch.ones(3))
            except UserWarning:
                return traceback.format_exc()
        return ""

    line = inspect.getsourcelines(inner)[1] + 1
    for condition in ({"module": __name__.replace(".", r"\.")}, {"lineno": line}, {"module": "gradledger"}, {}):
        bare = errors(**condition)
        with Watching():
            assert errors(**condition) == bare
        assert bool(bare) == (condition.get("module") != "gradledger")


def test_the_programs_filters_are_its_own() -> None:
    with Watching():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert warnings.filters[0][0] == "error"
            assert warnings.filters is vars(warnings)["filters"]
            warnings.filters = mine = []  # type: ignore[assignment]
            assert warnings.filters is mine
        assert type(warnings).__name__ == "module"
        for wrong in ((), ("x", 3), ("x", UserWarning, "2"), ("x", UserWarning, 2, None, 1)):
            with pytest.raises(TypeError) as bare:
                _warnings._original_warn(*wrong)
            with pytest.raises(TypeError) as watched:
                warnings.warn(*wrong)
            assert str(watched.value) == str(bare.value)


def test_everything_is_put_back() -> None:
    def state() -> list[Any]:
        return [
            warnings.warn,
            type(warnings),
            traceback.walk_tb,
            traceback.walk_stack,
            traceback._walk_tb_with_full_positions,  # type: ignore[attr-defined]
            inspect.getinnerframes,
            inspect.getouterframes,
            threading._make_invoke_excepthook,  # type: ignore[attr-defined]
        ]

    before = state()
    outer = [_frames.install(), _warnings.install()]
    inside = state()
    inner = [_frames.install(), _warnings.install()]
    for undo in (*inner, *inner):
        undo()
    assert state() == inside
    assert all(a is not b for a, b in zip(before, inside, strict=True))
    for undo in outer:
        undo()
    assert state() == before


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert _frames._users == _warnings._users == 0
