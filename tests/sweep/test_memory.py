"""The peak that is measured, against cases whose bytes are known by arithmetic, and against the process's own peak."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from gradledger.core.errors import GradledgerError
from gradledger.sweep._memory import MemoryWatch, MemoryWatchError, Span, peak_of

KB = 1024  # bytes of a float32 tensor with 256 elements


def ones(kilobytes: int = 1) -> torch.Tensor:
    return torch.ones(256 * kilobytes)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_result_counts_and_comes_back() -> None:
    peak = peak_of(lambda: ones(3))
    assert peak.bytes == 3 * KB
    assert torch.equal(peak.result, torch.ones(768))


def test_temporary_counts_while_it_lives() -> None:
    assert peak_of(lambda: ones() + ones()).bytes == 3 * KB


def test_released_before_the_next_is_made() -> None:
    def work() -> torch.Tensor:
        x = ones(5)
        del x
        return ones(2)

    assert peak_of(work).bytes == 5 * KB


def test_in_place_allocates_nothing() -> None:
    x = ones()
    assert peak_of(lambda: x.mul_(x).relu_()).bytes == 0


def test_views_allocate_nothing() -> None:
    assert peak_of(lambda: ones(4).view(16, 64).t()[3:].unsqueeze(0)).bytes == 4 * KB


def test_growing_storage() -> None:
    """Both the old and the new memory are there while the contents move."""
    assert peak_of(lambda: torch.empty(256).resize_(2560)).bytes == 11 * KB


@pytest.mark.parametrize("count", [1, 2])
def test_scratch_memory_inside_a_kernel(count: int) -> None:
    """The convolution without oneDNN unfolds every image: 9 values for each input value, and the output."""
    conv = nn.Conv2d(8, 4, 3, padding=1, bias=False)
    images = torch.ones(2, 8, 16, 16)
    with threads(count), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        peak = peak_of(lambda: conv(images))
    unfolded, output = 2 * 8 * 9 * 16 * 16 * 4, 2 * 4 * 16 * 16 * 4
    assert peak.bytes == unfolded + output


def test_what_autograd_keeps() -> None:
    """Forward of x.sin().exp() keeps its x and its result; the rest is one cotangent at a time."""
    x = ones().requires_grad_()
    with MemoryWatch() as watch:
        y = x.sin().exp()
        watch.mark("reverse")
        y.backward(torch.ones_like(y))
        del y
        watch.mark("over")
    forward, reverse, over = watch.spans
    assert (forward.peak, forward.after) == (2 * KB, KB)  # sin(x), exp(sin(x)); the former is not saved
    assert (reverse.before, reverse.after) == (KB, KB)  # the gradient of x is what stays
    assert over == Span("over", KB, KB, KB)
    assert watch.peak == reverse.peak == 5 * KB  # y, its cotangent, that of sin(x), cos(x), and the gradient of x


def test_shared_storage_counts_once() -> None:
    def work() -> list[torch.Tensor]:
        x = ones()
        return [x, x.view(16, 16), x[:3], x.detach()]

    assert peak_of(work).bytes == KB


def test_marks_divide_the_time() -> None:
    with MemoryWatch() as watch:
        first = ones()
        watch.mark("a")
        second = first + ones()
        watch.mark("b")
        del first
        watch.mark("c")
        del second
    assert watch.spans == (
        Span("start", 0, KB, KB),
        Span("a", KB, 3 * KB, 2 * KB),
        Span("b", 2 * KB, 2 * KB, KB),
        Span("c", KB, KB, 0),
    )
    assert (watch.peak, watch.level) == (3 * KB, 0)
    assert [span.rise for span in watch.spans] == [KB, 2 * KB, 0, 0]


def test_a_mark_allocates_nothing() -> None:
    with MemoryWatch() as watch:
        for k in range(200):
            watch.mark(f"block {k}")
    assert watch.spans == (Span("start", 0, 0, 0), *(Span(f"block {k}", 0, 0, 0) for k in range(200)))


def test_marks_inside_recorded_functions_of_the_user() -> None:
    with MemoryWatch() as watch:
        with record_function("theirs"):
            x = ones()
            watch.mark("inner")
            y = ones(2)
        watch.mark("outer")
        del x, y
    assert [(s.before, s.peak, s.after) for s in watch.spans] == [
        (0, KB, KB),
        (KB, 3 * KB, 3 * KB),
        (3 * KB, 3 * KB, 0),
    ]


def test_watches_one_after_the_other_do_not_drift() -> None:
    """Made inside, released outside: the profiler's own running total keeps such a tensor for ever."""
    for _ in range(5):
        peak = peak_of(lambda: ones(7))
        assert peak.bytes == 7 * KB
        del peak


def test_release_of_an_older_tensor_is_never_a_guess() -> None:
    """Its size is unknown, and the profiler may take that of a tensor that lay there in an earlier session."""
    made = peak_of(lambda: ones(400))
    address = made.result.data_ptr()
    del made
    older = [ones(100)]
    for _ in range(50):  # until one lies where the watched one was
        if older[-1].data_ptr() == address:
            break
        older.append(ones(100 + len(older)))
    with MemoryWatch() as watch:
        older.clear()
        watch.mark("second")
        x = ones(2)
    assert (watch.spans[0].after, watch.peak, watch.level) == (0, 2 * KB, 2 * KB)
    del x


def test_released_inside_when_made_before_a_mark() -> None:
    with MemoryWatch() as watch:
        older = ones(10)
        watch.mark("work")
        del older
        x = ones(4)
    assert (watch.spans[1].before, watch.spans[1].peak, watch.spans[1].after) == (10 * KB, 10 * KB, 4 * KB)
    del x


def test_a_backward_inside_a_backward() -> None:
    """Reentrant recompute, deeper than one autograd thread goes: every thread of the engine is seen."""
    x = torch.ones(256, requires_grad=True)
    seen: set[int] = set()

    def level(value: torch.Tensor, depth: int) -> torch.Tensor:
        seen.add(threading.get_ident())
        return value.sin() if depth == 0 else checkpoint(level, value, depth - 1, use_reentrant=True) * 1.0

    with MemoryWatch() as watch:
        level(x, 70).sum().backward()
        watch.mark("over")
        x.grad = None
    assert len(seen) > 1, "the depth was not enough to need a second thread"
    assert watch.spans[0].after == KB  # the gradient
    assert watch.level == 0
    assert watch.peak > 70 * KB  # each level holds a result or a cotangent


def test_other_python_threads_are_not_seen() -> None:
    def work() -> None:
        worker = threading.Thread(target=lambda: ones(100))
        worker.start()
        worker.join()

    assert peak_of(work).bytes == 0


def test_an_error_inside_leaves_the_profiler_off_and_the_spans_there() -> None:
    watch = MemoryWatch()

    def work() -> None:
        with watch:
            kept = ones()
            watch.mark("bad")
            raise RuntimeError(str(kept.numel()))

    with pytest.raises(RuntimeError, match="256"):
        work()
    assert [span.name for span in watch.spans] == ["start", "bad"]
    assert peak_of(ones).bytes == KB


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    peak_of(ones)
    assert capfd.readouterr() == ("", "")


def test_a_profiler_that_is_running() -> None:
    with (
        profile(activities=[ProfilerActivity.CPU]),
        pytest.raises(MemoryWatchError, match=r"already running.*outside of torch\.profiler"),
    ):
        peak_of(ones)
    assert peak_of(ones).bytes == KB


def test_another_device() -> None:
    with pytest.raises(MemoryWatchError, match=r"got device meta, wanted cpu or cuda"):
        peak_of(ones, "meta")


def test_out_of_order() -> None:
    watch = MemoryWatch()
    with pytest.raises(GradledgerError, match=r"mark\('x'\) outside"):
        watch.mark("x")
    with pytest.raises(GradledgerError, match="not over"):
        _ = watch.spans
    with watch:
        pass
    with pytest.raises(GradledgerError, match="used before"), watch:
        pass


class _FakeCuda:
    """The four calls of a CUDA allocator over a level that the test moves by hand."""

    def __init__(self, level: int) -> None:
        self.level = self.top = level

    def go(self, *levels: int) -> None:
        for level in levels:
            self.level = level
            self.top = max(self.top, level)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: setattr(self, "top", self.level))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.level)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.top)


def test_spans_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic around the allocator's statistics, an older tensor's release included."""
    cuda = _FakeCuda(1000)
    cuda.go(9000, 1000)  # a peak of the past
    cuda.install(monkeypatch)
    with MemoryWatch("cuda") as watch:
        cuda.go(1500, 1200)
        watch.mark("a")
        cuda.go(700, 900)
        watch.mark("b")
        cuda.go(2000, 1000)
    assert watch.spans == (Span("start", 0, 500, 200), Span("a", 200, 200, -100), Span("b", -100, 1000, 0))


PROCESS = r"""
import json, pathlib, re, torch
from gradledger.sweep._memory import peak_of
torch.set_num_threads(1)
def step(n):
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(n, n), torch.nn.GELU()) for _ in range(3)])
    x = torch.ones(4 * n, n)
    model(x).square().mean().backward()
def resident(name):
    return int(re.search(name + r":\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024
peak_of(lambda: step(64))  # what is loaded and set up the first time
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
before = resident("VmRSS")
peak = peak_of(lambda: step(2048)).bytes
print(json.dumps([peak, resident("VmHWM") - before]))
"""


def test_against_the_highest_resident_memory_of_the_process() -> None:
    """An independent witness: big tensors are mapped one by one, so the kernel's high-water mark follows them."""
    done = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    peak, resident = json.loads(done.stdout)
    assert peak > 300e6
    assert abs(resident - peak) < 0.04 * peak, (peak, resident)
