"""What a run shows: progress on a terminal and in a log, pictures, TensorBoard's scalars."""

from __future__ import annotations

import io
import math
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from gradledger.core.errors import UsageError
from gradledger.recipes import _folder, _pictures
from gradledger.recipes._pictures import Episode
from gradledger.recipes._progress import Pace, Progress, Status, duration, picture
from gradledger.recipes._tensorboard import Scalars


def status(env_step: int = 123_456, **changes: Any) -> Status:
    facts = {"return_20": -20.45, "return_100": -19.8, "loss": 0.0123, "epsilon": 0.5, "seconds": 1800.0}
    return Status(env_step=env_step, optimizer_step=9, episode=31, **{**facts, **changes})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# ------------------------------------------------------------------------------------------------------------ Progress


def test_the_pace_is_that_of_the_last_half_minute() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert math.isnan(pace.rate())
    assert math.isnan(pace.left(10))
    for second in range(101):
        now[0] = float(second)
        pace.note(1_000 * min(second, 50) + 50 * max(second - 50, 0))  # quick at first, then twenty times slower
    assert pace.rate() == pytest.approx(50.0)
    assert pace.left(5_000) == pytest.approx(100.0)
    assert pace.left(-3) == 0.0


@pytest.mark.parametrize("width", [60, 80, 120])
def test_two_lines_fit_the_terminal(width: int) -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.note(0)
    now[0] = 10.0
    pace.note(1_310)
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(picture("montezuma_revenge, seed 1", status(), 400_000, pace))
    first, second = console.file.getvalue().rstrip("\n").split("\n")  # type: ignore[attr-defined]
    assert max(len(first), len(second)) <= width
    assert "-20.45" in second
    if width >= 80:
        assert "123,456/400,000 steps" in first
        assert "131/s" in first
        assert "35:11 left" in first
        assert second.rstrip() == "return of the last 20: -20.45, 100: -19.80  loss 0.0123  epsilon 0.50"


def test_numbers_that_are_not_there_yet_are_a_dash() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(picture("pong", status(8, return_20=math.nan, return_100=math.nan, loss=math.nan), 400_000, Pace()))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "nan" not in said
    assert "return of the last 20: -, 100: -  loss -" in said
    assert "? left" in said


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "0:05"), (425, "7:05"), (11_225, "3:07:05"), (1e6, "12 days"), (math.nan, "?")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_terminal_gets_the_lines_and_a_log_gets_plain_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Terminal()
    with Progress("pong", total=400_000, stderr=screen) as progress:
        for step in range(0, 4_000, 8):
            progress.tick(step, lambda step=step: status(step))  # type: ignore[misc]
        progress.log(status(4_000))  # stdout is no terminal: it gets its line although the screen is drawn
    assert "0/400,000 steps" in screen.getvalue()
    assert "return of the last 20: -20.45" in screen.getvalue()
    assert capsys.readouterr().out.startswith("    4000 steps        9 updates     31 episodes  return of the last 20")

    asked: list[int] = []
    log = io.StringIO()
    with Progress("pong", total=400_000, stderr=log) as progress:
        progress.tick(8, lambda: asked.append(1) or status())  # type: ignore[func-returns-value]
        progress.log(status())
    assert (log.getvalue(), asked) == ("", [])
    assert "123456 steps" in capsys.readouterr().out

    monkeypatch.setenv("TERM", "dumb")
    dumb = Terminal()
    with Progress("pong", total=400_000, stderr=dumb) as progress:
        progress.tick(8, status)
    assert dumb.getvalue() == ""


def test_the_time_left_waits_for_the_first_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("gradledger.recipes._progress._REDRAW_S", 0.0)
    now, shown = [0.0], []
    pace = Pace(lambda: now[0])
    with Progress("pong", total=10_000, pace=pace, stderr=Terminal()) as progress:
        for second, (step, updates) in enumerate([(0, 0), (3_000, 0), (6_000, 1), (6_020, 20), (6_040, 40)]):
            now[0] = float(second)
            here = replace(status(step), optimizer_step=updates)
            progress.tick(step, lambda here=here: here)  # type: ignore[misc]
            console = Console(file=io.StringIO(), width=80, color_system=None)
            console.print(picture("pong", here, 10_000, pace))
            shown.append(console.file.getvalue().split("steps ")[1].splitlines()[0].split())  # type: ignore[attr-defined]
    assert shown == [
        ["-/s", "?", "left"],
        ["3,000/s", "?", "left"],
        ["-/s", "?", "left"],
        ["20/s", "3:19", "left"],
        ["20/s", "3:18", "left"],
    ]


def test_drawing_is_rare_however_often_it_is_asked_for() -> None:
    asked: list[int] = []
    with Progress("pong", total=10, stderr=Terminal()) as progress:
        for _ in range(2_000):
            progress.tick(1, lambda: asked.append(1) or status(1))  # type: ignore[func-returns-value]
    assert 1 <= len(asked) <= 10


# ------------------------------------------------------------------------------------------------------------ Pictures


def episode(steps: int) -> Episode:
    """A bright column that wanders to the right by one pixel a step."""
    frames = np.zeros((steps, 84, 84), dtype=np.uint8)
    for step in range(steps):
        frames[step, :, step % 84] = 255
    return Episode(frames, 4, f"wandering, {steps} steps")


def test_a_film_shows_every_step_at_the_speed_of_the_game(tmp_path: Path) -> None:
    assert _pictures.film(tmp_path, episode(30)) is None
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.n_frames, film.size) == (30, (168, 168))  # type: ignore[attr-defined]
        for step in (0, 7, 29):
            film.seek(step)
            shown = np.asarray(film.convert("L"))
            assert set(np.nonzero(shown[0] > 128)[0]) == {2 * step, 2 * step + 1}
        film.seek(3)
        assert film.info["duration"] == 70  # 4 frames of 1/60 s are 66.7 ms, and GIF counts in tens
    assert not list(tmp_path.glob("*.tmp"))


def test_a_long_film_is_whole_with_fewer_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pictures, "_MOST_PICTURES", 20)
    assert _pictures.film(tmp_path, episode(70)) is None
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 18  # type: ignore[attr-defined]  # every fourth
        film.seek(1)
        assert film.info["duration"] == 270
        film.seek(17)
        assert np.asarray(film.convert("L"))[0].argmax() == 2 * 68


def test_a_strip_has_the_first_and_the_last_frame(tmp_path: Path) -> None:
    assert _pictures.chosen_steps(30, 12) == [0, 3, 5, 8, 11, 13, 16, 18, 21, 24, 26, 29]
    assert _pictures.chosen_steps(3, 12) == [0, 1, 2]
    assert _pictures.chosen_steps(1, 12) == [0]
    assert _pictures.strip(tmp_path, episode(84)) is None
    with Image.open(tmp_path / "strip.png") as sheet:
        pixels = np.asarray(sheet)
    width, gap = 168, 6
    last = pixels[-100, gap + 5 * (width + gap) : gap + 5 * (width + gap) + width]
    assert set(np.nonzero(last > 128)[0]) == {166, 167}  # step 83
    assert pixels.shape[1] == 6 * (width + gap) + gap


def test_curves_are_drawn_from_the_tables(tmp_path: Path) -> None:
    for step in (500, 1_000, 1_500):
        row = {"env_step": step, "optimizer_step": step - 500, "loss": math.nan if step == 500 else 0.1}
        _folder.append(tmp_path / "metrics.csv", {**row, "gradient_norm": 1.0, "seconds": step / 90})
        _folder.append(tmp_path / "episodes.csv", {"env_step": step, "return": -21.0})
    told = _pictures.draw(tmp_path, title="a run", loss="Huber loss", episode=None)
    assert told == {"curves.png": None, "film.gif": "no episode of frames", "strip.png": "no episode of frames"}
    with Image.open(tmp_path / "curves.png") as sheet:
        assert sheet.size == (1210, 770)
        assert np.asarray(sheet.convert("L")).std() > 10  # no empty sheet


def test_the_speed_is_that_of_rows_with_updates() -> None:
    told = [(2_000, 0, 1.0), (4_000, 0, 2.0), (6_000, 2_000, 102.0), (8_000, 4_000, 182.0), (10_000, 6_000, 182.0)]
    rows = [{"env_step": e, "optimizer_step": o, "seconds": s} for e, o, s in told]
    at, rates = _pictures.speeds(rows)  # type: ignore[arg-type]
    assert at == [6_000, 8_000, 10_000]
    assert rates == pytest.approx([20.0, 25.0, math.nan], nan_ok=True)


def test_running_means_by_brute_force() -> None:
    values = np.random.default_rng(0).normal(size=250).tolist()
    for width in (20, 100):
        brute = [float(np.mean(values[max(0, end - width) : end])) for end in range(1, 251)]
        assert _pictures.running_mean(values, width) == pytest.approx(brute)
    assert _pictures.running_mean([], 20) == []


def test_what_cannot_be_drawn_is_a_reason_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = _pictures.draw(tmp_path / "gone", title="", loss="", episode=episode(3))
    assert all("FileNotFoundError" in str(reason) for reason in told.values())
    monkeypatch.setattr(_pictures.importlib.util, "find_spec", lambda name: None)
    told = _pictures.draw(tmp_path, title="", loss="", episode=episode(3))
    assert set(told.values()) == {"matplotlib is not installed", "Pillow is not installed"}
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------- TensorBoard


class Writer:
    made: list[Writer] = []  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        self.options, self.points, self.closed = options, [], False
        Writer.made.append(self)

    def add_scalar(self, *point: Any) -> None:
        self.points.append(point)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> type[Writer]:
    """A TensorBoard that only listens."""
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.made.clear()
    return Writer


@pytest.mark.usefixtures("tensorboard")
def test_scalars_go_to_tensorboard_and_a_resumed_run_takes_later_ones_off(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path, wanted=None)
    scalars.write({"loss": 0.5, "return/last_20": math.nan}, env_step=40)
    scalars.close()
    (writer,) = Writer.made
    assert writer.options == {"log_dir": str(tmp_path), "purge_step": None}
    assert (writer.points, writer.closed) == ([("loss", 0.5, 40)], True)
    Scalars(tmp_path, wanted=True, env_step=40)
    assert Writer.made[1].options["purge_step"] == 41
    Scalars(tmp_path, wanted=False).write({"loss": 1.0}, env_step=1)
    assert len(Writer.made) == 2


def test_without_tensorboard_nothing_happens_unless_it_is_insisted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    scalars = Scalars(tmp_path, wanted=None)
    scalars.write({"loss": 1.0}, env_step=1)
    scalars.close()
    with pytest.raises(UsageError, match=r"pip install 'gradledger\[tensorboard\]'"):
        Scalars(tmp_path, wanted=True)
    assert list(tmp_path.iterdir()) == []
