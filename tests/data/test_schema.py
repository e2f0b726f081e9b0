"""Schemas: every malformed input refused with what it got, what was wanted and where; correct batches pass."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.build import CASES, arm_batch, arm_schema, bin_batch, bin_schema, seal_batch, seal_schema
from gradledger.data.errors import SchemaError
from gradledger.data.malformed import malformed, require_none, survivors
from gradledger.data.schema import Declared, Field, Schema, from_json, read, require_same_shape

FITTED = {name: make().fitted(batch(512, seed=99)) for name, (make, batch) in CASES.items()}
CORPUS = [(name, case) for name, (_, batch) in CASES.items() for case in malformed(FITTED[name], batch())]


def test_the_corpus_has_at_least_forty_kinds() -> None:
    kinds = {re.sub(r"axes \w and \w|along \w", "axes", case.kind) for _, case in CORPUS}
    assert len(kinds) == 85, sorted(kinds)  # docs/data.md says so; at least 40 are asked for
    assert len(CORPUS) == 449
    assert {name for name, _ in CORPUS} == set(CASES)
    assert len(CASES) == 3


@pytest.mark.parametrize("name", CASES)
def test_no_malformed_input_survives(name: str) -> None:
    """The exported predictor: contract, then a model that answers whatever it is given."""

    def predictor(batch: Any, *, declared: Any) -> float:
        FITTED[name].require(batch, declared=declared)
        return 1.0

    found = survivors(predictor, malformed(FITTED[name], CASES[name][1]()))
    assert found == []
    require_none(found)


def test_each_refusal_says_got_wanted_and_where() -> None:
    for name, case in CORPUS:
        found = FITTED[name].check(case.batch, declared=case.declared)
        assert found, (name, case.kind, case.field)
        assert all(one.got and one.wanted and one.reason and one.field for one in found)
        if case.field in case.batch and case.field != "all fields":
            assert case.field in {one.field for one in found} or case.kind.startswith("one sample"), (case.kind, found)


def test_a_predictor_without_a_contract_leaves_survivors() -> None:
    cases = list(malformed(FITTED["seal"], seal_batch()))
    found = survivors(lambda batch, declared: float(np.asarray(batch["image"]).size), iter(cases))
    assert {one.outcome for one in found} >= {"answered"}
    assert any(one.outcome.startswith("broke with KeyError") for one in found)
    assert len(found) == len(cases)
    with pytest.raises(SchemaError, match="survivors: "):
        require_none(found)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("samples", [1, 3, 8, 32, 200])
def test_correct_batches_pass(name: str, samples: int) -> None:
    make, batch = CASES[name]
    for seed in range(10):
        assert FITTED[name].check(batch(samples, seed)) == ()
        assert make().check(batch(samples, seed)) == ()


@pytest.mark.parametrize("name", CASES)
def test_tensors_are_looked_at_and_not_changed(name: str) -> None:
    batch = {key: torch.from_numpy(np.array(value)) for key, value in CASES[name][1]().items()}
    before = {key: value.clone() for key, value in batch.items()}
    assert FITTED[name].check(batch) == ()
    assert all(torch.equal(torch.nan_to_num(batch[key]), torch.nan_to_num(before[key])) for key in batch)


def only(schema: Schema, batch: Any, **named: Any) -> str:
    found = schema.check(batch, **named)
    assert len(found) == 1, found
    return str(found[0])


def test_b_against_b_1() -> None:
    batch = bin_batch(32)
    text = only(bin_schema(), {**batch, "height": batch["height"][:, None]})
    assert "height: got shape [32, 1], wanted float32 [B]" in text
    assert "broadcasts to [B, B]" in text
    with pytest.raises(SchemaError, match=r"prediction \[32\] and target \[32, 1\].*as \[32, 32\]"):
        require_same_shape(torch.zeros(32), torch.zeros(32, 1))
    with pytest.raises(SchemaError, match="they do not broadcast either"):
        require_same_shape(torch.zeros(32), torch.zeros(31))
    require_same_shape(torch.zeros(3, 2), torch.zeros(3, 2))


def test_eight_by_seven_is_not_seven_by_eight() -> None:
    schema = Schema("history", (Field("h", ("T", "A"), (8, 7)),))
    values = np.random.default_rng(0).normal(size=(7, 8)).astype(np.float32)
    assert "axes T and A look swapped; the element count is the same" in only(schema, {"h": values})


def test_equal_sizes_are_told_apart_by_the_numbers() -> None:
    batch = arm_batch()
    text = only(FITTED["arm"], {**batch, "joints": batch["joints"].swapaxes(1, 2)})
    assert "axes A and T look swapped; both have 6 entries" in text
    assert arm_schema().check({**batch, "joints": batch["joints"].swapaxes(1, 2)}) == ()  # nothing else could tell


def test_images() -> None:
    batch = seal_batch()
    schema = FITTED["seal"]
    text = only(schema, {**batch, "image": np.moveaxis(batch["image"], 1, -1)})
    assert "axes look to be in the order B H W C: channels last, the element count is the same" in text
    assert "BGR (as OpenCV reads) for RGB" in only(schema, {**batch, "image": batch["image"][:, ::-1]})
    bytes_ = np.round(batch["image"] * 255)
    found = schema.check({**batch, "image": bytes_.astype(np.float32)})
    assert "bytes that were read as floats" in found[0].reason
    assert "bytes 0..255 where scaled floats are wanted" in str(
        schema.check({**batch, "image": bytes_.astype(np.uint8)})
    )


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((2, 3, 64, 48), "axes H and W look swapped; the element count is the same (PIL and OpenCV name a size"),
        ((2, 48, 64, 3), "axes look to be in the order B H W C: channels last, the element count is the same"),
        ((2, 64, 48, 3), "axes C and W look swapped; the element count is the same)"),
        ((2, 48, 3, 64), "axes C and H look swapped; the element count is the same)"),
        ((3, 2, 48, 64), "axes B and C look swapped; the element count is the same)"),
        ((2, 64, 3, 48), "axes look to be in the order B W C H; the element count is the same"),
        ((2, 3, 48, 60), "(W is 60, not 64)"),
        ((2, 1, 64, 48), "(C is 1, not 3, H is 64, not 48, W is 48, not 64)"),
        ((2, 3, 48), "3 axes where 4 are named: B C H W"),
        ((3, 48, 64), "axis B is missing: one sample, not a batch"),
    ],
    ids=str,
)
def test_which_axes_are_exchanged(shape: tuple[int, ...], says: str) -> None:
    field = Field("image", ("B", "C", "H", "W"), (None, 3, 48, 64), role="image", channel="C")
    text = only(Schema("s", (field,)), {"image": np.random.default_rng(0).normal(size=shape).astype(np.float32)})
    assert f"got shape {list(shape)}, wanted float32 [B, C=3, H=48, W=64]" in text
    assert says in text


def test_channels_first_where_they_are_last() -> None:
    field = Field("raw", ("B", "H", "W", "C"), (None, 48, 64, 3), "uint8", role="image", channel="C")
    pictures = np.random.default_rng(0).integers(0, 255, (2, 3, 48, 64), np.uint8)
    text = only(Schema("s", (field,)), {"raw": pictures})
    assert "axes look to be in the order B C H W: channels first, the element count is the same" in text
    swapped = np.zeros((2, 64, 48, 3), np.uint8)
    assert "axes H and W look swapped" in only(Schema("s", (field,)), {"raw": swapped})


def test_units() -> None:
    arm, seal, bins = arm_batch(), seal_batch(), bin_batch()
    assert "looks like millimetres" in str(arm_schema().check({**arm, "tool": arm["tool"] * np.float32(1000)}))
    assert "looks like degrees" in str(arm_schema().check({**arm, "joints": arm["joints"] * np.float32(57.29578)}))
    assert "looks like metres" in only(FITTED["seal"], {**seal, "offset": seal["offset"] / np.float32(1000)})
    assert "looks like radians" in only(FITTED["bin"], {**bins, "angle": bins["angle"] / np.float32(57.29578)})
    assert "declares another unit" in only(seal_schema(), seal, declared={"offset": Declared(unit="m")})
    assert "frame 'world', wanted frame 'cap'" in only(
        seal_schema(), seal, declared={"offset": Declared(frame="world")}
    )
    assert "axes 'B H W C'" in only(seal_schema(), seal, declared={"image": Declared(axes="B H W C")})


def test_offending_indices() -> None:
    batch = arm_batch()
    joints = batch["joints"].copy()
    joints[3, 2, 1], joints[7, 0, 5] = np.nan, np.inf
    found = arm_schema().check({**batch, "joints": joints})
    assert [(one.got, one.indices, one.count) for one in found] == [("NaN", ((3, 2, 1),), 1), ("Inf", ((7, 0, 5),), 1)]
    joints[:] = np.nan
    text = str(arm_schema().check({**batch, "joints": joints})[0])
    assert f"and {joints.size - 8} more" in text


def test_missing_by_mask_and_by_nan() -> None:
    arm, bins = arm_batch(), bin_batch()
    force = arm["force"].copy()
    force[np.argwhere(arm["touching"])[0][0], np.argwhere(arm["touching"])[0][1]] = np.nan
    assert "force at" in only(arm_schema(), {**arm, "force": force})
    half = bins["range"].copy()
    half[:20] = np.nan
    assert "missing, wanted at most 50.0%" in only(bin_schema(), {**bins, "range": half})


def test_clocks() -> None:
    batch = arm_batch()
    schema = replace(arm_schema(), fields=(replace(arm_schema().fields[2], low=None),))
    late = {"time": batch["time"]}
    ends = float(batch["time"][:, -1].max())
    assert "stale: the sensor or the queue stood still" in only(schema, late, now=ends + 200)
    fresh = {"time": np.sort(batch["time"] * 0, axis=1) + 0.1 * np.arange(6)}
    assert schema.check(fresh, now=1.0) == ()
    assert "two clocks that do not agree" in only(schema, fresh, now=0.0)
    lost = fresh["time"].copy()
    lost[2, 3:] += 0.4
    text = only(schema, {"time": lost})
    assert "time at [2, 3]: got a gap of 0.5 s, wanted at most 0.15 s (samples were lost)" in text
    single = {"time": (1000 + 0.15 * np.arange(6)).astype(np.float32)[None]}
    assert replace(schema, fields=(replace(schema.fields[0], dtype="float32"),)).check(single) == ()


def test_every_violation_at_once() -> None:
    found = bin_schema().check({"raw": np.zeros((4, 12, 10, 3), np.uint8), "height": np.full(5, -1, np.float64)})
    assert Counter(one.field for one in found) == {"raw": 3, "height": 4, "angle": 1, "range": 1, "success": 1}
    with pytest.raises(SchemaError, match="10 violations") as caught:
        bin_schema().require({"raw": np.zeros((4, 12, 10, 3), np.uint8), "height": np.full(5, -1, np.float64)})
    assert "Next: " in str(caught.value)


def test_json_round_trip(tmp_path: Path) -> None:
    for name, schema in FITTED.items():
        path = tmp_path / f"{name}.json"
        schema.write(path)
        assert read(path) == schema
    document = json.loads(path.read_text())
    with pytest.raises(SchemaError, match=r"schema\.from_json: got ValueError: format 'x'"):
        from_json({**document, "format": "x"})
    with pytest.raises(SchemaError, match="key 'colour' of field 'x', which has name, axes"):
        from_json({**document, "fields": [{"name": "x", "axes": "B", "colour": 1}]})
    assert from_json({**document, "fields": [{"name": "x", "axes": "B T"}]}).fields[0].shape == (None, None)
    (tmp_path / "half.json").write_text(path.read_text()[:50])
    with pytest.raises(SchemaError, match=r"half\.json: got JSONDecodeError"):
        read(tmp_path / "half.json")


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (Field("x", ("B", "T"), (None,)), "do not go together"),
        (Field("x", ("B",), (0,)), "whole numbers of at least 1"),
        (Field("x", ("B",), (None,), dtype="text"), "no dtype of numbers"),
        (Field("x", ("B",), (None,), low=1.0, high=0.0), "is empty"),
        (Field("x", ("B",), (None,), channel="C"), "channel axis 'C'"),
        (Field("x", ("B",), (None,), missing="mask"), "names another field"),
        (Field("x", ("B",), (None,), max_missing=2.0), "is no share"),
        (Field("x", ("B",), (None,), role="colour"), "role 'colour' is not one of"),  # type: ignore[arg-type]
    ],
)
def test_a_schema_that_contradicts_itself(field: Field, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        Schema("s", (field,))


@pytest.mark.parametrize(
    "junk",
    [
        None,
        object(),
        {},
        [],
        "text",
        [None, 1],
        10**400,
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3).to_sparse(),
        torch.zeros(3, device="meta"),
        np.array([1 + 2j]),
        np.array(["2024-01-01"], dtype="datetime64[D]"),
        np.zeros((0, 3, 16, 16), np.float32),
        np.float32(3),
        torch.tensor(1.0),
        [[1, 2], [3]],
        range(4),
    ],
    ids=lambda junk: type(junk).__name__,
)
@pytest.mark.parametrize("name", CASES)
def test_junk_is_a_violation_and_no_accident(name: str, junk: Any) -> None:
    batch = CASES[name][1]()
    for field in FITTED[name].fields:
        found = FITTED[name].check({**batch, field.name: junk})
        assert any(one.field == field.name for one in found)


def test_fitting_wants_enough_samples() -> None:
    with pytest.raises(SchemaError, match="got 8 samples of image, wanted at least 16"):
        seal_schema().fitted(seal_batch(8))
