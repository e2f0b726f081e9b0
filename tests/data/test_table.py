"""Files: read equal, or refused with the reason; never half."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from data.build import arm_batch
from gradledger.data.errors import DataError
from gradledger.data.schema import Declared
from gradledger.data.table import read

ARRAYS: dict[str, Any] = {
    "pose": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32),
    "label": np.arange(40) % 3,
}
SUFFIXES = (".npz", ".npy", ".csv", ".parquet", ".safetensors")


def write(folder: Path, suffix: str) -> Path:
    path = folder / f"pose{suffix}"
    if suffix == ".npz":
        np.savez(path, **ARRAYS)
    elif suffix == ".npy":
        np.save(path, ARRAYS["pose"])
    elif suffix == ".safetensors":
        save_file(ARRAYS, path, metadata={"pose.unit": "m", "pose.frame": "base", "of": "nothing"})
    elif suffix == ".csv":
        lines = [
            "x,label",
            *(f"{x!r},{y}" for x, y in zip(ARRAYS["pose"][:, 0].tolist(), ARRAYS["label"], strict=True)),
        ]
        path.write_text("\n".join(lines) + "\n")
    else:
        columns = {"pose": pa.FixedSizeListArray.from_arrays(ARRAYS["pose"].reshape(-1), 3), "label": ARRAYS["label"]}
        pq.write_table(pa.table(columns).replace_schema_metadata({"pose.unit": "m"}), path)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    table = read(write(tmp_path, suffix))
    assert table.rows() == 40
    got = table.arrays
    if suffix == ".csv":
        np.testing.assert_array_equal(got["x"].astype(np.float32), ARRAYS["pose"][:, 0])
    else:
        np.testing.assert_array_equal(got["pose"], ARRAYS["pose"])
    if suffix != ".npy":
        np.testing.assert_array_equal(got["label"], ARRAYS["label"])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str, share: float) -> None:
    path = write(tmp_path, suffix)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match="wanted a whole file of named arrays") as caught:
        read(path).rows()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".npz"])
def test_changed_bytes_are_refused_where_the_form_has_a_checksum(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix)
    whole = path.read_bytes()
    rng = random.Random(0)
    payload = range(200, 480)  # inside the first array
    for at in rng.sample(payload, 20):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DataError):
            read(path)


def test_other_refusals(tmp_path: Path) -> None:
    cases: dict[str, bytes] = {
        "text.npz": b"not an archive",
        "twice.csv": b"a,a\n1,2\n",
        "ragged.csv": b"a,b\n1,2\n3\n",
        "cut.csv": b"a,b\n1,2\n3,4",
        "nothing.parquet": b"PAR1PAR1",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="pickle"):
        read(tmp_path / "objects.npy")
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "gone.npz")
    (tmp_path / "x.pt").write_bytes(b"x")
    with pytest.raises(DataError, match=r"one of \.npz"):
        read(tmp_path / "x.pt")


def test_parquet_lists(tmp_path: Path) -> None:
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"x": [[[1.0, 2.0]], [[3.0, 4.0]]], "task": ["a", "b"]}), path)
    table = read(path)
    assert table.arrays["x"].shape == (2, 1, 2)
    assert table.arrays["task"].tolist() == ["a", "b"]
    for column, says in (
        ([[1.0], [1.0, 2.0]], "lists of 1 to 2 entries"),
        ([[1.0], None], "1 nulls"),
        ([1, None], "1 nulls"),
    ):
        pq.write_table(pa.table({"x": column}), path)
        with pytest.raises(DataError, match=says):
            read(path)
    pq.write_table(pa.table({"x": pa.array([1.0, None], pa.float32())}), path)
    assert np.isnan(read(path).arrays["x"][1])


def test_what_a_file_says_of_itself(tmp_path: Path) -> None:
    path = write(tmp_path, ".safetensors")
    assert read(path).declared == {"pose": Declared(unit="m", frame="base")}
    beside = path.with_name(path.name + ".declared.json")
    beside.write_text(json.dumps({"pose.unit": "mm", "label.axes": "B"}))
    assert read(path).declared == {"pose": Declared(unit="mm", frame="base"), "label": Declared(axes="B")}
    beside.write_text("[1]")
    with pytest.raises(DataError, match="write a JSON object"):
        read(path)


def test_columns_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(3), b=np.zeros(4))
    table = read(path)
    with pytest.raises(DataError, match="one number of rows"):
        table.rows()
    with pytest.raises(DataError, match=r"got 'c', wanted one of a, b"):
        table.column("c", "--id")
    np.savez(path, **arm_batch())
    assert read(path).rows() == 32
