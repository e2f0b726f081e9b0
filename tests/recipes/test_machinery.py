"""What recipes share beside the screen: threads by measurement, stopping, names of games, what a machine is."""

from __future__ import annotations

import os
import platform
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gradledger.core.errors import UsageError
from gradledger.core.files import usual_mode
from gradledger.recipes import _games, _machine
from gradledger.recipes._checks import check_device, check_numbers
from gradledger.recipes._dqn_begin import calibrated
from gradledger.recipes._stop import Stopped, StopWish
from gradledger.recipes._threads import calibrate
from gradledger.recipes.dqn_atari import Args, Run

# ------------------------------------------------------------------------------------------------------------- Threads


class Machine:
    """A clock that an update moves on, by seconds that depend on torch's number of threads."""

    def __init__(self, costs: dict[int, float]) -> None:
        self.now, self.costs, self.tried = 0.0, costs, []

    def update(self) -> None:
        self.tried.append(torch.get_num_threads())
        self.now += self.costs[self.tried[-1]]

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [
        ({1: 0.030, 2: 0.018, 3: 0.016, 4: 0.016}, 3),
        ({1: 0.030, 2: 0.900}, 1),  # a second thread beside other work
        ({1: 0.0300, 2: 0.0290}, 1),  # not worth it
        ({1: 3.0, 2: 1.0}, 2),  # an update longer than the budget
        ({1: 0.03}, 1),
    ],
)
def test_the_fewest_threads_near_the_fastest_are_chosen(costs: dict[int, float], chosen: int) -> None:
    before = torch.get_num_threads()
    machine = Machine(costs)
    found = calibrate(machine.update, most=max(costs), clock=machine.clock)
    assert found.chosen == chosen
    assert found.seconds == pytest.approx(costs)
    assert torch.get_num_threads() == before
    rounds = len(machine.tried) // len(costs)
    assert machine.tried == list(costs) * rounds  # they alternate
    assert rounds >= 3
    assert found.record()["median_seconds_per_update"]["1"] == pytest.approx(costs[1])
    assert str(found).startswith(f"{chosen} thread")


def test_of_many_cores_only_some_are_tried() -> None:
    machine = Machine(dict.fromkeys(range(1, 13), 0.1))
    assert set(calibrate(machine.update, most=12, clock=machine.clock).seconds) == {1, 2, 3, 4, 8, 12}


def test_an_update_that_fails_leaves_the_number_of_threads() -> None:
    before = torch.get_num_threads()

    def update() -> None:
        torch.set_num_threads(before + 1)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        calibrate(update, most=2)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_calibration_leaves_every_random_state(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_machine, "usable_cores", lambda: 1)
    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    monkeypatch.setattr("gradledger.recipes._dqn_begin.calibrate", lambda update, most: [update(), most])
    assert calibrated(Run, Args(env="CartPole-v1", precision=precision, out=tmp_path / "run"))[1] == 1  # type: ignore[arg-type, index]
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------------ Stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_and_the_second_acts(number: signal.Signals) -> None:
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    with StopWish() as wish:
        wish.raise_if_any()
        os.kill(os.getpid(), number)
        assert wish.signal_number == number
        assert {one: signal.getsignal(one) for one in before} == before
        with pytest.raises(Stopped, match=number.name) as caught:
            wish.raise_if_any()
    assert caught.value.signal_number == number
    assert isinstance(caught.value, KeyboardInterrupt)
    assert {one: signal.getsignal(one) for one in before} == before


def test_handlers_of_others_and_other_threads_are_left_alone() -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with StopWish():
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
    seen = []

    def elsewhere() -> None:
        with StopWish():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


# --------------------------------------------------------------------------------------------------------------- Games


@pytest.mark.parametrize(
    ("given", "rom"),
    [
        ("Pong", "pong"),
        ("PONG", "pong"),
        ("MsPacman", "ms_pacman"),
        ("ms-pacman", "ms_pacman"),
        ("Space Invaders", "space_invaders"),
        ("CartPole-v1", "CartPole-v1"),
    ],
)
def test_games_are_known_by_any_spelling(given: str, rom: str) -> None:
    assert _games.resolve(given) == rom
    assert _games.is_rom(rom) == (rom != "CartPole-v1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Pnog", "--game 'Pnog'.*did you mean pong"),
        ("tic-tac-tow", "tic_tac_toe"),
        ("qqqqqq", r"get_all_rom_ids\(\)\)' lists them"),
        ("ALE/Pong-v5", "Next: --game Pong; add --sticky 0.25"),
        ("BreakoutNoFrameskip-v4", "--game Breakout"),
        ("CartPol-v1", "CartPol-v1.*CartPole"),
    ],
)
def test_games_that_are_none_are_refused_with_a_way_on(given: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _games.resolve(given)


# -------------------------------------------------------------------------------------------------- Machine and checks


def test_the_machine_is_described_and_its_peak_can_begin_anew() -> None:
    told = _machine.hardware("cpu")
    assert told["cpu"]
    assert 1 <= told["usable_cores"] <= told["cores"]
    assert told["memory_bytes"] > 2**28
    assert told["torch_threads"] == torch.get_num_threads()
    big = np.ones(2**26)
    with_it = _machine.peak_bytes()
    del big
    _machine.forget_peak()
    assert with_it - _machine.peak_bytes() > 2**28
    versions = _machine.versions(("ale-py", "no-such-distribution"))
    assert versions["torch"] == torch.__version__
    assert "ale-py" in versions
    assert "no-such-distribution" not in versions


def test_numbers_and_devices_out_of_range_are_named_together() -> None:
    @dataclass
    class Some:
        lanes: int = 0
        threads: str = "auto"
        clip: float = -1.0
        gamma: float = 1.5

    with pytest.raises(UsageError, match=r"got lanes=0, clip=-1\.0, wanted numbers above 0"):
        check_numbers(Some(), counts=("lanes", "threads"), positive=("clip",), shares=("gamma",))
    with pytest.raises(UsageError, match=r"got gamma=1\.5, wanted numbers from 0 to 1"):
        check_numbers(Some(lanes=1, clip=1.0), counts=("lanes", "threads"), positive=("clip",), shares=("gamma",))
    check_device("cpu")
    with pytest.raises(UsageError, match="device=gpu"):
        check_device("gpu")
    with pytest.raises(UsageError, match="device=cuda:99, and torch finds"):
        check_device("cuda:99")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_steps": 3_000}, r"learning_starts=10000 of total_steps=3000: no update.*--learning-starts 300"),
        ({"epsilon_last": 2.0}, r"epsilon_last=2\.0, wanted numbers from 0 to 1"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_the_recipe_refuses_what_cannot_be_meant(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Args(**options).check()  # type: ignore[arg-type]
    Args(threads="auto").check()


# ----------------------------------------------------------------------------------------------------------- File modes


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_a_file_written_by_others_gets_the_mode_that_the_umask_leaves(tmp_path: Path, mask: int, mode: int) -> None:
    """safetensors alone writes 0600: nobody but the owner could read a run's weights."""
    path = tmp_path / "final.safetensors"
    before = os.umask(mask)
    try:
        with usual_mode(path):
            save_file({"w": torch.ones(2)}, path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    path.chmod(0o604)
    with usual_mode(path):
        save_file({"w": torch.zeros(2)}, path)
    assert path.stat().st_mode & 0o777 == 0o604
    with pytest.raises(OSError, match="full"), usual_mode(tmp_path / "other"):
        raise OSError(28, "full")
    assert not (tmp_path / "other").exists()


def test_freed_memory_stays_with_the_process() -> None:
    """Five blocks of 8 MB, freed together: without the call each round pays for 600 pages and more."""
    program = """
import resource, torch
from gradledger.recipes._memory import keep_freed
kept = keep_freed()
def work():
    blocks = [torch.ones(2_000_000) for _ in range(5)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3): work()
before = faults()
for _ in range(10): work()
print(kept, faults() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    assert kept == str(platform.libc_ver()[0] == "glibc")
    assert kept == "False" or int(faults) < 300
