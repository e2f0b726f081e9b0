"""A command line out of Args, and the recipes found by a scan: what is read, what is refused and in which words."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from gradledger.core.errors import UsageError
from gradledger.recipes import _main
from gradledger.recipes._command_line import Words, option, parse, seed_list
from gradledger.recipes._registry import Recipe, find, load, recipes

TINY = Recipe(presets={"slow": "takes its time", "fast": "does not"}, default_preset="slow", name="tiny")


@dataclass(frozen=True)
class Args:
    preset: str = "slow"
    game: str = option("pong", "what is played", aliases=("--rom",), metavar="NAME", reader=str.casefold)
    out: Path = field(default=Path("runs/x"), metadata={"help": "run folder"})
    resume: bool = option(False, "go on", or_value_of="out")
    rng_seed: int = option(1, "decides")
    threads: int | Literal["auto"] = option(1, "how many, 100% of them")
    clip: float | None = option(1.0, "none: raw")
    board: bool | None = option(None, "scalars")
    double: bool = option(False, "two networks")


def read(*argv: str) -> Words[Args]:
    return parse(Args, {"slow": {}, "fast": {"double": True, "rng_seed": 5}}, argv, recipe=TINY, description="Tiny.")


def test_the_preset_fills_first_and_the_options_after_it() -> None:
    assert read().args == Args()
    assert read("--preset", "fast").args == Args(preset="fast", double=True, rng_seed=5)
    words = read("--preset", "fast", "--no-double")
    assert words.args == Args(preset="fast", double=False, rng_seed=5)
    assert words.given == {"preset": "fast", "double": False}


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (("--game", "PONG"), "game", "pong"),
        (("--rom", "Breakout"), "game", "breakout"),
        (("--threads", "auto"), "threads", "auto"),
        (("--threads", "3"), "threads", 3),
        (("--clip", "none"), "clip", None),
        (("--clip", "0.5"), "clip", 0.5),
        (("--board",), "board", True),
        (("--no-board",), "board", False),
    ],
)
def test_values(argv: tuple[str, ...], name: str, value: Any) -> None:
    words = read(*argv)
    assert getattr(words.args, name) == value
    assert words.given == {name: value}


@pytest.mark.parametrize(
    "argv", [("--resume", "a/b"), ("--resume", "--out", "a/b"), ("--out", "a/b", "--resume"), ("--resume=a/b",)]
)
def test_resume_takes_the_folder_or_leaves_it_to_out(argv: tuple[str, ...]) -> None:
    words = read(*argv)
    assert (words.args.resume, words.args.out) == (True, Path("a/b"))
    assert words.given == {"resume": True, "out": Path("a/b")}


def test_a_lone_resume_means_the_default_folder() -> None:
    words = read("--resume")
    assert (words.args.resume, words.args.out, words.given) == (True, Path("runs/x"), {"resume": True})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--gaem", "x"), r"unknown: --gaem x \(did you mean --game\?\)"),
        (("stray",), r"unknown: stray"),
        (("--doub",), r"unknown: --doub \(did you mean --double\?\)"),
        (("--threads", "many"), r"argument --threads: invalid int or auto value: 'many'"),
        (("--clip", "soft"), r"invalid float or none value: 'soft'"),
        (("--preset", "medium"), r"choose from '?slow'?, '?fast'?"),
        (("--resume", "a", "--out", "b"), r"--resume a and --out b: two folders"),
        (("--seeds", "1,x"), r"invalid list of seeds \(1,2,3 or 1..3, each once\) value: '1,x'"),
        (("--seeds", "1,1"), r"each once\) value: '1,1'"),
        (("--seeds", "3..1"), r"value: '3\.\.1'"),
        (("--seeds=-1"), r"value: '-1'"),
        (("--seeds", "1..3", "--rng-seed", "2"), r"--seeds beside --rng-seed"),
        (("--out",), r"argument --out: expected one argument"),
    ],
)
def test_mistakes_are_named(argv: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(*([argv] if isinstance(argv, str) else argv))
    assert "--help" in str(caught.value)


@pytest.mark.parametrize("argv", [("--seeds", "1..3"), ("--seeds=1,2",)])
def test_a_recipe_that_runs_no_series_refuses_one(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Ignored, it would pass for three runs."""
    ran: list[Args] = []
    words = {"recipe": TINY, "description": "x"}
    assert _main.simple(Args, {"slow": {}, "fast": {}}, ran.append, argv, **words) == 2  # type: ignore[arg-type]
    assert "--seeds: this recipe runs no series; its seeds come from --rng-seed N" in capsys.readouterr().err
    assert not ran
    assert _main.simple(Args, {"slow": {}, "fast": {}}, ran.append, ("--rng-seed", "3"), **words) == 0  # type: ignore[arg-type]
    assert [one.rng_seed for one in ran] == [3]


@pytest.mark.parametrize(
    ("text", "seeds"), [("1", (1,)), ("1,2,3", (1, 2, 3)), ("1..3", (1, 2, 3)), ("7, 0..2", (7, 0, 1, 2))]
)
def test_lists_of_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert seed_list(text) == seeds
    words = read("--seeds", text)
    assert words.seeds == seeds
    assert "seeds" not in words.given


def test_the_help_fits_a_screen_and_tells_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        read("--help")
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "how many, 100% of them (default: 1)" in " ".join(said.split())
    assert "scalars (default: auto)" in said
    assert "fast        does not" in said
    assert max(map(len, said.splitlines())) <= 80


# ------------------------------------------------------------------------------------------------------------ Registry


def test_the_scan_finds_the_recipes_without_importing_them() -> None:
    code = (
        "import sys; from gradledger.recipes._registry import recipes; print(*recipes());"
        "print([m for m in ('torch', 'numpy', 'gymnasium', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    names, loaded = done.stdout.splitlines()
    assert "dqn_atari" in names.split()
    assert loaded == "[]"


@pytest.mark.parametrize("name", sorted(recipes()))
def test_each_recipe_keeps_the_contract(name: str) -> None:
    """What the text says is what the module has; its Args are a frozen dataclass of options with help."""
    recipe = recipes()[name]
    module: Any = importlib.import_module(f"gradledger.recipes.{name}")
    assert module.RECIPE.presets == recipe.presets
    # a recipe with one preset that changes nothing needs no table of them
    presets = getattr(module, "PRESETS", None) or {preset: {} for preset in recipe.presets}
    assert set(presets) == set(recipe.presets)
    assert hasattr(module, "PRESETS") or len(presets) == 1
    assert recipe.summary
    assert len(recipe.summary) <= 120
    for preset, values in presets.items():
        args = module.Args(**{**values, "preset": preset})
        getattr(args, "check", lambda: None)()  # a recipe without numbers to refuse has none
    fields = module.Args.__dataclass_fields__
    assert "out" in fields
    assert [one for one, field in fields.items() if not field.metadata.get("help") and one != "preset"] == []


def test_a_recipe_is_found_by_its_name_in_any_spelling() -> None:
    assert find("dqn_atari") == find("DQN-Atari") == find("dqn_atari.py")
    with pytest.raises(UsageError, match="did you mean `gradledger run dqn_atari`"):
        find("dqn")
    with pytest.raises(UsageError, match="--list` describes them"):
        find("zzz")


def test_what_is_no_recipe_is_left_out_and_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "_helper.py").write_text("RECIPE = broken(\n")
    (tmp_path / "plain.py").write_text("x = 1\n")
    (tmp_path / "good.py").write_text('"""Does it."""\nRECIPE = Recipe(presets={"a": "b"}, default_preset="a")\n')
    assert recipes(tmp_path) == {"good": Recipe({"a": "b"}, "a", name="good", summary="Does it.")}
    for text in (
        'RECIPE = Recipe(presets=PRESETS, default_preset="a")\n',
        'RECIPE = Recipe(presets={"a": "b"}, default_preset="c")\n',
        'RECIPE = Recipe({"a": "b"}, "a")\n',
        'RECIPE = Recipe(presets={"a": "b"}, default_preset="a", colour="red")\n',
        'RECIPE = {"a": "b"}\n',
    ):
        (tmp_path / "bad.py").write_text(text)
        with pytest.raises(UsageError, match=r"bad\.py:1: got .*keywords and literals only"):
            recipes(tmp_path)


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'safetensors'", name="safetensors.torch")

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(UsageError, match=r"no module 'safetensors.torch'.*pip install 'gradledger\[rl\]'"):
        load(find("dqn_atari"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workers", "0"), "got --workers 0, wanted 1 or more"),
        (("--resume",), "wanted the folder of a run: it holds plan.lock.jsonl"),
        (("--out", "taken"), "got --out taken, which is a file, wanted a folder, made where it is missing"),
        (("--out", "taken/inside"), "got --out taken/inside, and not a directory, wanted a folder"),
    ],
)
def test_what_a_run_could_not_go_through_with_is_refused_before_a_plan_is_registered(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("a file")
    called: list[Any] = []
    given: dict[str, dict[str, Any]] = {"all": {}}

    @dataclass(frozen=True)
    class OfALab:
        preset: str = "all"
        out: Path = field(default=Path("runs/lab"), metadata={"help": "folder"})
        resume: bool = option(False, "go on", or_value_of="out")
        workers: int = option(1, "at a time")

    lab = Recipe(presets={"all": "everything"}, default_preset="all", name="lab")
    code = _main.simple(OfALab, given, called.append, list(words), recipe=lab, description="A lab.")
    assert (code, called) == (2, [])
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["taken"]
