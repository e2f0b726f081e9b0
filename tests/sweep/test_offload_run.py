"""Moving out for real: the same bits, memory that is free while it is away, nothing left behind, whatever happens."""

from __future__ import annotations

import errno
import functools
import gc
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import problems as P
from alone import alone
from gradledger import sweep
from gradledger.core.errors import SweepError
from gradledger.sweep import _offload, _scratch, _shipment
from gradledger.sweep._action import Action
from gradledger.sweep._chain import Chain
from gradledger.sweep._memory import MemoryWatch
from gradledger.sweep._plan import Plan
from gradledger.sweep._profile import Profiler
from gradledger.sweep._simulate import simulate
from gradledger.sweep._state import equal_bits

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import sweep_models as models

PROBLEMS = [p for p in P.PROBLEMS if p.compiled != "inductor"]
PLACES = ("disk", "host")


@pytest.fixture(autouse=True)
def _everything_moves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Small tensors too, into a folder of the test's own, in which nothing may be left; no open file either."""
    monkeypatch.setattr(_offload, "SMALL", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = _open_files(tmp_path)
    yield
    gc.collect()
    assert [f for f in tmp_path.iterdir() if not f.name.startswith("torchinductor")] == []  # torch makes that one
    assert _open_files(tmp_path) == before


def _open_files(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


# the same bits --------------------------------------------------------------------------------------------------------


@functools.cache
def _free(problem: P.Problem) -> list[bool]:
    """Which blocks may be run twice, as planning finds."""
    chain = problem.make()
    links = Chain(chain.blocks, chain.loss_fn)
    facts = links.facts(links.key(chain.x))
    with problem.context():
        Profiler(links.blocks, facts, links.generators, chain.x, chain.y).check()
    return [not one.keep_reason for one in facts[:-1]]


def _tapes(free: list[bool], place: str) -> str:
    """Every tape is moved out, the loss's too."""
    return " ".join(f"{i}@{place}" for i in range(len(free) + 1))


def _held(free: list[bool], place: str) -> str:
    """Every block is recomputed alone from an input that was away (where it may be; the data stays)."""
    words = [f"({i})" + (f"@{place}" if i else "") if may else f"{i}@{place}" for i, may in enumerate(free)]
    return f"{' '.join(words)} {len(free)}"


def _nested(free: list[bool], place: str) -> str:
    """Segments in segments with moves in all of them; what may not be run again is moved out."""
    words, run = [], []
    for i, may in enumerate([*free, False]):
        if may:
            run.append(i)
            continue
        if run:
            words.append(_segment(run, place))
            run = []
        words.append(f"{i}@{place}" if i < len(free) else str(i))
    return " ".join(words)


def _segment(blocks: list[int], place: str) -> str:
    out = f"@{place}" if blocks[0] else ""
    if len(blocks) < 3:
        return "(" + " ".join(f"{i}@{place}" for i in blocks) + ")" + out
    half = len(blocks) // 2
    rest = " ".join(f"{i}@{place}" if i % 2 else str(i) for i in blocks[half:])
    return f"({_segment(blocks[:half], place)} {rest}){out}"


SHAPES: dict[str, Callable[[list[bool], str], str]] = {"tapes": _tapes, "held": _held, "nested": _nested}


def _twice(backward: Callable[[P.Chain], Any]) -> Callable[[P.Chain], Any]:
    """The first step watches the blocks, the second knows them and adds to what is there."""

    def both(chain: P.Chain) -> Any:
        step = backward(chain)
        step()
        return step()

    return both


def _plain(chain: P.Chain) -> Callable[[], Any]:
    return lambda: P._plain_backward(chain)


@functools.cache
def _wanted(problem: P.Problem) -> P.Outcome:
    return P.outcome(problem, _twice(_plain))


def _moving(problem: P.Problem, shape: str, place: str) -> Callable[[P.Chain], Any]:
    def backward(chain: P.Chain) -> Callable[[], Any]:
        free = [True] * len(chain.blocks) if shape == "tapes" else _free(problem)
        one = sweep.Sweep(chain.blocks, chain.loss_fn, plan=SHAPES[shape](free, place))
        return lambda: one.backward(chain.x, chain.y)

    return backward


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_problem_by_way_of_the_disk(problem: P.Problem, shape: str) -> None:
    got = P.outcome(problem, _twice(_moving(problem, shape, "disk")))
    assert P.differences(got, _wanted(problem)) == []


# The host's memory is another place behind the same moves.
@pytest.mark.parametrize("problem", PROBLEMS[::3], ids=lambda p: p.id)
def test_problems_by_way_of_the_host(problem: P.Problem) -> None:
    got = P.outcome(problem, _twice(_moving(problem, "nested", "host")))
    assert P.differences(got, _wanted(problem)) == []


def test_something_does_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would pass if nothing moved."""
    moved: list[int] = []
    write = _scratch.Scratch.write

    def count(self: _scratch.Scratch, pieces: Any, size: int) -> int:
        moved.append(size)
        return write(self, pieces, size)

    monkeypatch.setattr(_scratch.Scratch, "write", count)
    for problem in PROBLEMS:
        if problem.compiled is None and problem.id not in ("one-block",):
            moved.clear()
            backward = _moving(problem, "tapes", "disk")
            P.outcome(problem, lambda chain, backward=backward: backward(chain)())  # type: ignore[misc]
            assert moved, problem.id


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_step_that_frees_gradients_at_once(clip: float | None) -> None:
    problem = P.BY_ID["q-network"]

    def trained(plan: str | None) -> list[Tensor]:
        chain = problem.make(0)
        everything = nn.ModuleList(P.modules_of(chain.blocks))
        optimizer = torch.optim.SGD(everything.parameters(), lr=0.1)
        for _ in range(3):
            if plan is None:
                optimizer.zero_grad()
                P._plain_backward(chain)
                if clip is not None:
                    nn.utils.clip_grad_norm_(everything.parameters(), clip)
                optimizer.step()
            else:
                text = _tapes([True] * len(chain.blocks), plan)
                one = sweep.Sweep(chain.blocks, chain.loss_fn, plan=text)
                one.step(chain.x, chain.y, optimizer=optimizer, clip=clip)
        return [p.detach() for p in everything.parameters()]

    for place in PLACES:
        assert all(map(equal_bits, trained(place), trained(None)))


def test_a_walk_by_hand_a_loss_of_ones_own_and_a_step_that_is_dropped() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    x, y = torch.randn(4, 8), torch.randn(4, 2)
    nn.functional.mse_loss(net(x), y).backward()
    wanted = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    one = sweep.Sweep(net, nn.functional.mse_loss, plan="0@disk (1)@disk 2@disk 3@disk")
    for way in ("events", "own loss"):
        net.zero_grad()
        if way == "events":
            for _ in one.reverse(x, y):
                pass
        else:
            step = one.forward(x)
            step.backward(nn.functional.mse_loss(step.output, y))
        assert all(equal_bits(p.grad, w) for p, w in zip(net.parameters(), wanted, strict=True) if p.grad is not None)
    del step
    one.forward(x)  # and nobody walks back: the fixture looks for what it left
    walk = one.reverse(x, y)
    next(walk)
    walk.close()


# what is moved --------------------------------------------------------------------------------------------------------


class _Keeps(torch.autograd.Function):
    """Saves three views of one memory and a conjugate; hands back what it got in the reverse pass."""

    seen: ClassVar[list[tuple[Tensor, ...]]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        base = torch.arange(24.0).reshape(4, 6) * x.mean()
        wave = torch.view_as_complex(base.reshape(4, 3, 2)).conj()
        ctx.save_for_backward(base, base.t(), base[1:3, ::2], base.expand(2, 4, 6), wave, base.new_empty(0, 3))
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        _Keeps.seen.append(ctx.saved_tensors)
        return d_out * 2.0


@pytest.mark.parametrize("place", PLACES)
def test_views_of_one_memory_stay_views_and_are_stored_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = [nn.Linear(4, 4), _Keeps.apply, nn.Linear(4, 4)]
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    sizes: list[int] = []
    real = _offload.Shipment.__init__

    def note(self: Any, storages: Any, where: Any, away: Any) -> None:
        sizes.append(sum(s.nbytes() for s in storages))
        real(self, storages, where, away)

    monkeypatch.setattr(_offload.Shipment, "__init__", note)
    _Keeps.seen.clear()
    for plan in (None, f"0 1@{place} 2 3"):
        torch.manual_seed(0)
        sweep.Sweep(net, nn.functional.mse_loss, plan=plan).backward(x, y)
    assert sizes == [24 * 4]
    here, back = _Keeps.seen
    for a, b in zip(here, back, strict=True):
        assert (a.shape, a.stride(), a.storage_offset(), a.dtype) == (b.shape, b.stride(), b.storage_offset(), b.dtype)
        assert a.is_conj() == b.is_conj()
        assert equal_bits(a, b)
    assert len({t.untyped_storage().data_ptr() for t in back if t.numel()}) == 1


def test_parameters_buffers_and_data_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    real = _offload.Shipment.__init__

    def note(self: Any, storages: Any, place: Any, away: Any) -> None:
        moved.extend(s._cdata for s in storages)
        real(self, storages, place, away)

    monkeypatch.setattr(_offload.Shipment, "__init__", note)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 8))
    x, y = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    stay = {t.untyped_storage()._cdata for t in (*net.parameters(), *net.buffers(), x, y)}
    one = sweep.Sweep(net, nn.functional.mse_loss, plan="0@disk 1@disk (2)@disk 3@disk")
    one.backward(x, y)
    one.backward(x, y)
    assert moved
    assert not stay & set(moved)


def test_a_saved_tensor_written_to_is_refused_as_a_plain_backward_does() -> None:
    def writes(x: Tensor) -> Tensor:
        y = x.exp()  # saves y
        return y.mul_(2.0) + x

    def writes_the_weight(x: Tensor) -> Tensor:
        out = nn.functional.linear(x, weight)
        with torch.no_grad():
            weight.add_(1.0)
        return out

    weight = nn.Parameter(torch.randn(4, 4))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for bad in (writes, writes_the_weight):
        for place in PLACES:
            one = sweep.Sweep([nn.Linear(4, 4), bad], nn.functional.mse_loss, plan=f"0@{place} 1@{place} 2")
            with pytest.raises(SweepError, match="written to in place"):
                one.backward(x, y)


# memory ---------------------------------------------------------------------------------------------------------------

PLANS = (
    lambda n: " ".join(f"{i}@disk" for i in range(n)) + f" {n}",
    lambda n: " ".join(f"{i}@disk" if i % 2 else str(i) for i in range(n)) + f" {n}",
    lambda n: (
        "0 " + " ".join(f"({i} {i + 1})@disk" for i in range(1, n - 1, 2)) + ("" if n % 2 else f" {n - 1}") + f" {n}"
    ),
    lambda n: "0 ((1 2)@disk 3@disk) " + " ".join(f"{i}@disk" for i in range(4, n)) + f" {n}",
)


@pytest.mark.parametrize("make", [models.chain39, lambda: models.transformer(layers=4)], ids=["chain39", "transformer"])
def test_memory_is_what_the_simulation_says(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_offload, "SMALL", 1024)
    problem = make()
    costs = sweep.plan(problem.blocks, example=(problem.x, problem.y), loss=problem.loss_fn, repeats=1).costs
    for write in PLANS:
        plan = Plan.parse(write(len(problem.blocks)))
        said = simulate(plan, costs)
        one = sweep.Sweep(problem.blocks, problem.loss_fn, plan=plan)
        for _ in range(2):  # what the first step of a plan learns is not part of it
            problem.clear()
            one.backward(problem.x, problem.y)
        problem.clear()
        walk, _ = one._walk(problem.x, problem.y)
        with MemoryWatch() as watch:
            walk.on_action = lambda action: watch.mark(str(action))
            one._one(walk, plan, problem.x, problem.y, None, None)
        problem.clear()
        assert watch.peak == pytest.approx(said.peak, rel=0.02)
        measured = watch.spans[1:]
        assert [span.name for span in measured] == [str(level.action) for level in said.levels]
        for span, level in zip(measured, said.levels, strict=True):
            assert abs(span.after - level.after) < 0.02 * said.peak, f"{plan}: after {span.name}"


def test_a_tape_on_disk_leaves_nothing_in_memory() -> None:
    """Held outside alone, from the move to the fetch: bytes drop to zero, and come back when they are asked for."""
    walk_away = _offload.Away(())
    with MemoryWatch() as watch:
        saved = _offload.Saved("disk", walk_away, ())
        leaf = torch.ones(1 << 18, requires_grad=True)
        with saved:
            out = leaf.exp().tanh().sum()
        watch.mark("move")
        saved.move()
        watch.mark("away")
        saved.fetch()
        watch.mark("back")
        saved.land()
        watch.mark("reverse")
        out.backward()
        leaf.grad = None
        watch.mark("end")
    walk_away.close()
    levels = {span.name: span.after for span in watch.spans}
    megabyte = 1 << 20
    assert levels["start"] == pytest.approx(3 * megabyte, abs=2048)  # the leaf, exp and tanh
    assert levels["move"] == pytest.approx(megabyte, abs=2048)
    assert levels["away"] == pytest.approx(3 * megabyte, abs=2048)
    assert levels["reverse"] == pytest.approx(megabyte, abs=2048)


def test_room_in_the_file_is_used_again() -> None:
    away = _offload.Away(())
    file = away.file()
    for _ in range(5):
        both = [_offload.Shipment([torch.full((1000,), float(k)).untyped_storage()], "disk", away) for k in range(3)]
        for k in (1, 0, 2):
            (storage,) = both[k].arrive()
            assert torch.empty(0).set_(storage).eq(float(k)).all()
    assert os.fstat(file._file).st_size == 3 * 4000
    assert file._free == []
    away.close()


# beside ---------------------------------------------------------------------------------------------------------------


def _net(n: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(n)))


def test_a_fetch_runs_beside_the_reverse_of_the_block_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read waits until the walk is in the reverse of the block behind: a walk that waited would not get there."""
    net, x, y = _net(), torch.randn(8, 16), torch.randn(8, 16)
    one = sweep.Sweep(net, nn.functional.mse_loss, plan="0@disk 1@disk 2@disk 3@disk 4")
    one.backward(x, y)
    at, reached = [4], threading.Condition()
    names: set[str] = set()
    read = _scratch.Scratch.read
    want = iter((4, 3, 2, 1))  # tape 3 comes while 4 is reversed, and so on

    def slow(self: _scratch.Scratch, pieces: Any, where: int) -> None:
        names.add(threading.current_thread().name)
        block = next(want)
        with reached:
            assert reached.wait_for(lambda: at[0] <= block, timeout=20)
        read(self, pieces, where)

    monkeypatch.setattr(_scratch.Scratch, "read", slow)
    at[0] = 9
    walk, plan = one._walk(x, y)

    def on(action: Action) -> None:
        if action.kind == "reverse":
            with reached:
                at[0] = action.block
                reached.notify_all()

    walk.on_action = on
    one._one(walk, plan, x, y, None, None)
    assert next(want, None) is None
    assert names == {"gradledger-offload_0"}


@alone
def test_a_forked_child_goes_on_with_what_was_away() -> None:
    net, x, y = _net(), torch.randn(8, 16), torch.randn(8, 16)
    one = sweep.Sweep(net, nn.functional.mse_loss, plan="0@disk 1@disk 2@disk 3@disk 4")
    one.backward(x, y)  # the thread is there
    wanted = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    walk = one.reverse(x, y)
    next(walk)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork with threads
        child = os.fork()
    if not child:
        code = 1
        try:
            for _ in walk:
                pass
            code = 0 if all(map(equal_bits, (p.grad for p in net.parameters()), wanted)) else 2  # type: ignore[arg-type]
        finally:
            os._exit(code)
    for _ in walk:
        pass
    assert all(map(equal_bits, (p.grad for p in net.parameters()), wanted))  # type: ignore[arg-type]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# what goes wrong ------------------------------------------------------------------------------------------------------


def _full_after(quota: int) -> Callable[[int, memoryview, int], int]:
    """A disk with room for this many bytes: the last write is a short one, the next is refused."""

    def write(file: int, part: memoryview, at: int) -> int:
        room = quota - at
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(file, part[:room], at)

    return write


def _broken(*_: Any) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _interrupted(*_: Any) -> int:
    raise KeyboardInterrupt


def _short(file: int, part: memoryview, at: int) -> int:
    return 0


FAULTS: dict[str, tuple[str, Any, type[BaseException], str]] = {
    "disk full": (
        "write_at",
        _full_after(1000),
        SweepError,
        r"No space left.*\d+ bytes could not be moved out.*TMPDIR",
    ),
    "write error": ("write_at", _broken, SweepError, "Input/output error.*could not be moved out"),
    "interrupt while writing": ("write_at", _interrupted, KeyboardInterrupt, "^$"),
    "read error": ("read_at", _broken, SweepError, "Input/output error after 0 bytes were read back.*that disk"),
    "file cut short": ("read_at", _short, SweepError, "the file ends too early.*read back"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("plan", ["0@disk 1@disk 2@disk 3", "0 (1 2)@disk 3", "0 ((1)@disk 2@disk) 3", "0 1 2 3@disk"])
def test_faults_leave_everything_as_it_was(
    fault: str, plan: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where, broken, error, match = FAULTS[fault]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
    x, y = torch.randn(32, 16), torch.randn(32, 16)
    one = sweep.Sweep(net, nn.functional.mse_loss, plan=plan)
    for older in (False, True):
        if older:
            one.backward(x, y)  # what the first step learns is known now
        else:
            net.zero_grad()
        before = [*(p.grad if p.grad is None else (p.grad, p.grad.clone()) for p in net.parameters())]
        state = [*(b.clone() for b in net.buffers()), torch.get_rng_state()]
        with monkeypatch.context() as patch:
            patch.setattr(_scratch, where, broken)
            with pytest.raises(error, match=match) as caught:
                one.backward(x, y)
        if error is SweepError:
            assert str(tmp_path) in str(caught.value)
        for p, was in zip(net.parameters(), before, strict=True):
            assert p.grad is was if was is None else p.grad is was[0] and equal_bits(p.grad, was[1])
        assert all(map(equal_bits, (*net.buffers(), torch.get_rng_state()), state))
        del caught
        gc.collect()
        assert _open_files(tmp_path) == []


def test_the_error_of_a_full_disk_counts_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scratch, "write_at", _full_after(1000))
    away = _offload.Away(())
    with pytest.raises(SweepError, match=re.escape("3000 bytes could not be moved out (of 4000)")):
        _offload.Shipment([torch.zeros(1000).untyped_storage()], "disk", away)
    away.close()


def test_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    one = sweep.Sweep(_net(), nn.functional.mse_loss, plan="0@disk 1 2 3 4")
    with pytest.raises(SweepError, match=r"No such file or directory.*gone.*TMPDIR"):
        one.backward(torch.randn(8, 16), torch.randn(8, 16))


def test_a_folder_in_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if not _scratch._in_memory("/dev/shm"):
        pytest.fail("this system has no /dev/shm in memory to try it with")
    assert not _scratch._in_memory("/proc")
    _scratch._warn_of_memory.cache_clear()
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    with pytest.warns(_scratch.OffloadWarning, match="in memory"):
        _scratch.Scratch().close()
    _scratch._warn_of_memory.cache_clear()


# planning -------------------------------------------------------------------------------------------------------------


def test_planning_measures_the_disk_and_keeps_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_offload, "SMALL", 1024)
    problem = models.chain39()
    example = (problem.x, problem.y)
    planned = sweep.plan(
        problem.blocks,
        example=example,
        loss=problem.loss_fn,
        budget="40%",
        planner="offload",
        recompute=False,
        repeats=1,
    )
    assert "@disk" in planned.plan.text
    assert "@host" not in planned.plan.text
    assert planned.bandwidth == {"disk": _shipment.bandwidth("disk", torch.device("cpu"))}
    assert 1e6 < planned.bandwidth["disk"] < 1e12
    one = sweep.Sweep(problem.blocks, problem.loss_fn, plan=planned)
    for _ in range(2):
        problem.clear()
        peak = sweep.peak_of(lambda: one.backward(problem.x, problem.y)).bytes
    problem.clear()
    assert planned.budget is not None
    assert 0.95 * planned.predicted.peak <= peak <= planned.budget


def test_the_host_of_a_cpu_is_refused_by_planning_and_places_by_the_other_engine() -> None:
    net, x, y = _net(), torch.randn(8, 16), torch.randn(8, 16)
    with pytest.raises(SweepError, match=r"in the host's memory already.*leave place out"):
        sweep.plan(net, example=(x, y), loss=nn.functional.mse_loss, budget="50%", planner="offload", place="host")
    with pytest.raises(SweepError, match="autograd"):
        sweep.Sweep(net, nn.functional.mse_loss, plan="0@disk 1 2 3 4", engine="autograd").backward(x, y)
