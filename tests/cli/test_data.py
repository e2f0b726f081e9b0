"""`gradledger data` as a user runs it: exit codes, what is printed, the JSON beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from data.build import bin_batch, bin_schema, seal_batch, seal_schema
from data.test_learnability import planar, six
from gradledger.cli._app import build

APP = build()


def run(*words: Any) -> tuple[int, str]:
    done = CliRunner().invoke(APP, ["data", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    values, label = load_digits(return_X_y=True)
    np.savez(
        tmp_path / "digits.npz", id=np.arange(len(label)), pixels=values, label=label, block=np.arange(len(label)) // 65
    )
    return tmp_path / "digits.npz"


def test_check(tmp_path: Path) -> None:
    bin_schema().write(tmp_path / "schema.json")
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "good.npz", **bin_batch())
    code, text = run("check", data, "--schema", tmp_path / "schema.json")
    assert (code, text) == (0, "1 file checked against 'bin picking', 1 without a violation\n")
    batch = bin_batch()
    np.savez(data / "bad.npz", **{**batch, "height": batch["height"][:, None], "success": batch["success"] + 1})
    (data / "cut.npz").write_bytes((data / "good.npz").read_bytes()[:500])
    code, text = run("check", data, "--schema", tmp_path / "schema.json", "--json", tmp_path / "out.json")
    assert code == 1
    assert "bad.npz: 2 violations" in text
    assert "height: got shape [32, 1], wanted float32 [B]" in text
    assert "cut.npz: got BadZipFile" in text
    assert "3 files checked against 'bin picking', 1 without a violation" in text
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["exit_code"], document["files"], len(document["violations"])) == (1, 3, 2)
    assert run("check", data / "good.npz", "--schema", tmp_path / "schema.json")[0] == 0
    assert run("check", tmp_path / "none", "--schema", tmp_path / "schema.json")[0] == 2
    assert run("check", data, "--schema", tmp_path / "gone.json")[0] == 2


def test_check_of_what_is_no_such_file(tmp_path: Path) -> None:
    bin_schema().write(tmp_path / "schema.json")
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics" / "0.png").write_bytes(b"x")
    given = ("--schema", tmp_path / "schema.json")
    code, text = run("check", tmp_path / "pics", *given)
    assert code == 2
    assert "pics, a folder of .png, wanted a file, or a folder with .npz" in text
    assert "pictures are checked as an array" in text
    code, text = run("check", tmp_path / "gone", *given)
    assert code == 2
    assert "gone, which is not there" in text


def test_many_columns_are_one_line(tmp_path: Path) -> None:
    seal_schema().write(tmp_path / "schema.json")
    extra = {f"p{at}": np.zeros(32) for at in range(64)}
    np.savez(tmp_path / "wide.npz", **seal_batch(), **extra)
    code, text = run("check", tmp_path / "wide.npz", "--schema", tmp_path / "schema.json", "--json", tmp_path / "o")
    assert code == 1
    assert "wide.npz: 64 violations\n  p0, p1, p2 and 61 more: got a field" in text
    assert "allow_extra lets others be there" in text
    assert len(json.loads((tmp_path / "o").read_text())["violations"][str(tmp_path / "wide.npz")]) == 64


def test_columns_by_pattern_and_near_names(tmp_path: Path) -> None:
    pose, q = planar(500)
    columns = {f"pose_{at}": pose[:, at] for at in range(3)} | {f"joint_{at}": q[:, at] for at in range(3)}
    np.savez(tmp_path / "t.npz", **columns, **{f"c{at}": q[:, 0] for at in range(20)})
    given = ("learnable", tmp_path / "t.npz", "--json", tmp_path / "o")
    assert run(*given, "--inputs", "pose_*", "--targets", "joint_*")[0] == 0
    assert set(json.loads((tmp_path / "o").read_text())["floor"]) == {"joint_0", "joint_1", "joint_2"}
    code, text = run(*given, "--inputs", "pose_*", "--targets", "joints_*")
    assert code == 2
    code, text = run(*given, "--inputs", "pose_*", "--targets", "joint0")
    assert "and 14 more" in text
    assert "name a column of the file, such as joint_0" in text


def test_split_and_leaks(digits: Path, tmp_path: Path) -> None:
    target = tmp_path / "split.json"
    code, text = run("split", digits, "--group", "block", "--label", "label", "-o", target)
    assert code == 0, text
    assert "train: " in text
    assert "SHA-256" in text
    code, text = run("leaks", target, "--features", digits, "--columns", "pixels", "--target", "label")
    assert code == 0, text
    assert "bursts: a random split leaks" in text
    assert "leak +0.0" in text
    assert "no leak found: train" in text
    text = run("leaks", target, "--features", digits)[1]
    assert "this split keeps 28 groups whole" in text
    assert "looked at: pixels, label\n" in text  # not the group, which would be kinship by its number
    code, text = run("split", digits, "--group", "block", "--id", "label", "-o", tmp_path / "o.json")
    assert code == 2
    assert "--id label, which has '3' twice (10 values in 1797 rows)" in text
    code, text = run("split", digits, "--group", "label", "--label", "label", "-o", tmp_path / "o.json")
    assert "classes 0, 1, 2, 3, 4 and 5 more have one group each, and 3 sides want them" in text
    code, text = run("split", digits, "--group", "id", "-o", tmp_path / "random.json")
    assert code == 0
    code, text = run("leaks", tmp_path / "random.json", "--features", digits, "--columns", "pixels")
    assert code == 1
    assert "every sample is a group of its own: a random split" in text
    document = json.loads(target.read_text())
    document["sides"][0] = "test"
    target.write_text(json.dumps(document))
    assert run("leaks", target)[0] == 2


def test_split_options(tmp_path: Path) -> None:
    lines = ["id,day,time,x", *(f"s{at},{at // 20},{at + 100 * (at // 10)},{at % 7}" for at in range(100))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    target = tmp_path / "split.json"
    given: tuple[Any, ...] = ("split", tmp_path / "t.csv", "-o", target, "--share", "train=0.6", "--share", "test=0.4")
    assert run(*given, "--group", "day", "--pin", "day=4:test")[0] == 0
    document = json.loads(target.read_text())
    assert set(document["sides"][80:]) == {"test"}
    assert run(*given, "--time", "time", "--gap", "50")[0] == 0
    assert len(set(json.loads(target.read_text())["keys"]["burst"])) == 10
    assert run(*given, "--group", "id", "--time", "time", "--purge", "1.5", "--tolerance", "0.5")[0] in (0, 2)
    code, text = run(*given, "--content", "x", "--tolerance", "0.2")
    assert (code, len(set(json.loads(target.read_text())["hashes"]))) == (0, 7), text
    for more, code in (
        ((), 2),
        (("--gap", "1", "--group", "day"), 2),
        (("--group", "night"), 2),
        (("--group", "day", "--share", "x"), 2),
        (("--group", "day", "--pin", "day"), 2),
        (("--group", "day", "--tolerance", "0.001", "--share", "val=0.1"), 2),
    ):
        assert run(*given, *more)[0] == code


def test_learnable(tmp_path: Path) -> None:
    for name, (pose, q) in {"planar": planar(2000), "six": six(2000)}.items():
        np.savez(tmp_path / f"{name}.npz", pose=pose, q=q, label=np.arange(2000) % 3)
    code, text = run("learnable", tmp_path / "planar.npz", "--inputs", "pose", "--targets", "q", "--angles", "q")
    assert code == 0, text
    assert "the target is a function of the input" in text
    code, text = run("learnable", tmp_path / "six.npz", "--inputs", "pose", "--targets", "q", "--goal", "0.001")
    assert code == 1
    assert "does not follow from the input" in text
    assert "got a goal of MSE 0.001" in text
    code, text = run("learnable", tmp_path / "six.npz", "--inputs", "pose", "--classes", "label")
    assert code == 1
    assert "nearest pairs disagree" in text
    assert run("learnable", tmp_path / "six.npz", "--inputs", "pose")[0] == 2


def test_learnable_of_recordings(digits: Path, tmp_path: Path) -> None:
    given: tuple[Any, ...] = ("learnable", digits, "--inputs", "pixels", "--classes", "label", "--json", tmp_path / "o")
    code, text = run(*given)
    assert code == 1
    assert "as frames of one recording do" in text
    assert json.loads((tmp_path / "o").read_text())["side_by_side"] is True
    code, text = run(*given, "--group", "block")
    assert code == 0, text
    assert "recording" not in text
    assert run(*given, "--group", "night")[0] == 2


def test_lerobot(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", episode=np.arange(30) // 10, action=rng.normal(size=(30, 2)).astype(np.float32))
    given: tuple[Any, ...] = ("lerobot", "convert", tmp_path / "f.npz", tmp_path / "set")
    assert run(*given)[0] == 2
    code, text = run(*given, "--fps", 10, "--task", "pick")
    assert (code, text) == (0, f"{tmp_path / 'set'}: 3 episodes, 30 frames\n")
    assert run("lerobot", "check", tmp_path / "set") == (0, f"{tmp_path / 'set'}: 0 problems\n")
    (tmp_path / "set/meta/stats.json").unlink()
    code, text = run("lerobot", "check", tmp_path / "set", "--no-videos", "--json", tmp_path / "o.json")
    assert code == 1
    assert text == f"meta/stats.json: the file is missing\n{tmp_path / 'set'}: 1 problem\n"
    assert json.loads((tmp_path / "o.json").read_text())["problems"] == ["meta/stats.json: the file is missing"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("split t.csv -o s.json", "gradledger data split: got no group"),
        ("split t.csv -o s.json --group day --time name --gap 3", "got 'name', which holds no numbers, such as 'n0'"),
        ("split t.csv -o s.json --group day --time name --purge 3", "got 'name', which holds no numbers"),
        ("leaks split.json --target x", "gradledger data leaks: got --target without --features"),
        ("leaks split.json --columns x", "gradledger data leaks: got --columns without --features"),
        ("leaks split.json --features t.csv --target y", "--target of t.csv: got 'y'"),
        ("leaks split.json --features t.csv --target x --columns day", "wanted classes: text, or whole numbers"),
        ("learnable t.csv --inputs day,x --targets x", "got x among the inputs and to be predicted"),
        ("learnable t.csv --inputs day* --classes day", "got day among the inputs and to be predicted"),
        ("learnable t.csv --inputs day --targets x --angles day", "--angles day, wanted names among the targets, x."),
        ("learnable t.csv --inputs day --targets x --goal -1", "got --goal -1, wanted an error of at least 0"),
        ("learnable t.csv --inputs day --targets x --classes day", "got both --targets and --classes"),
        ("learnable head.csv --inputs day --targets x", "head.csv: got no rows"),
        ("check t.csv --schema list.json", "got TypeError: a list at the top"),
        ("check t.csv --schema typo.json", "got ValueError: key 'lo' of field 'x', which has name, axes, "),
        ("check t.csv --schema none.json", "none.json: got no such file or directory"),
        ("check t.csv --schema .", "got a folder, wanted a schema as JSON"),
        ("lerobot check none", "gradledger data lerobot check: got none, which is not there"),
        ("lerobot check t.csv", "gradledger data lerobot check: got t.csv, which is a file"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["id,day,name,x", *(f"s{at},{at // 20},n{at % 9},{at / 7}" for at in range(120))]
    Path("t.csv").write_text("\n".join(lines) + "\n")
    Path("head.csv").write_text(lines[0] + "\n")
    Path("list.json").write_text("[]")
    field = {"name": "x", "axes": "B", "lo": 0}
    Path("typo.json").write_text(json.dumps({"format": "gradledger-schema/1", "name": "t", "fields": [field]}))
    if line.startswith("leaks"):
        given = ("split", "t.csv", "-o", "split.json", "--group", "day", "--share", "a=0.5", "--share", "b=0.5")
        assert run(*given)[0] == 0
    code, text = run(*line.split())
    assert code == 2, text
    assert says in text
    assert "Next: " in text
