"""Records: appended, chained, whole or absent; every kind of edit is found and named."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradledger.core.records import RecordError, Records, canonical, digest, field_digests, plain, revive


@pytest.fixture
def chain(tmp_path: Path) -> Records:
    records = Records(tmp_path / "trials.jsonl")
    records.append({"metrics": {"loss": 0.5, "curve": [1.0, 0.5]}, "rng_seed": 0})
    records.append({"metrics": {"loss": math.nan}, "rng_seed": 1})
    records.append({"metrics": {"loss": 0.25}, "rng_seed": 2})
    return records


def edit(chain: Records, line: int, change: Any, *, seal: bool = False) -> None:
    lines = [json.loads(text) for text in chain.path.read_text().splitlines()]
    change(lines[line - 1])
    if seal:
        from gradledger.core import records as module

        lines[line - 1]["fields"] = field_digests(lines[line - 1]["body"])
        lines[line - 1]["sha256"] = module._sealed(lines[line - 1])
    chain.path.write_text("".join(canonical(one).decode() + "\n" for one in lines))


def test_what_was_appended_is_read_back_in_order(chain: Records) -> None:
    found = chain.read()
    assert [one.number for one in found] == [1, 2, 3]
    assert found[0].body == {"metrics": {"loss": 0.5, "curve": [1.0, 0.5]}, "rng_seed": 0}
    assert math.isnan(found[1].body["metrics"]["loss"])
    assert [one.previous for one in found[1:]] == [one.sha256 for one in found[:-1]]
    assert chain.head() == found[-1].sha256
    assert chain.faults() == []


def test_no_file_is_no_records(tmp_path: Path) -> None:
    assert Records(tmp_path / "none").read() == []
    assert Records(tmp_path / "none").head() == "0" * 64


def test_an_edited_value_is_named_by_line_and_field(chain: Records) -> None:
    edit(chain, 3, lambda line: line["body"]["metrics"].update(loss=0.01))
    (fault,) = chain.faults()
    assert (fault.file, fault.field, fault.got) == ("trials.jsonl", "line 3: body.metrics.loss", "0.01")
    with pytest.raises(RecordError, match=r"line 3: body.metrics.loss: 0.01"):
        chain.read()


def test_an_edit_that_hashes_its_own_line_anew_breaks_the_chain(chain: Records) -> None:
    edit(chain, 2, lambda line: line["body"]["metrics"].update(loss=0.01), seal=True)
    assert [fault.field for fault in chain.faults()] == ["line 3: previous"]


def test_an_added_and_a_removed_field_are_named(chain: Records) -> None:
    edit(chain, 1, lambda line: (line["body"].update(extra=1), line["body"].pop("rng_seed")))
    assert [fault.field for fault in chain.faults()] == ["line 1: body.extra", "line 1: body.rng_seed"]


def test_a_lost_line_swapped_lines_and_rubbish_are_found(chain: Records) -> None:
    whole = chain.path.read_text().splitlines(keepends=True)
    chain.path.write_text(whole[0] + whole[2])
    assert {fault.field for fault in chain.faults()} == {"line 2: number", "line 2: previous"}
    chain.path.write_text(whole[1] + whole[0] + whole[2])
    assert any(fault.field == "line 1: number" for fault in chain.faults())
    chain.path.write_text(whole[0] + "rubbish\n" + whole[2])
    assert [fault.field for fault in chain.faults()] == ["line 2"]


def test_an_edited_time_is_found(chain: Records) -> None:
    edit(chain, 2, lambda line: line.update(at="2001-01-01T00:00:00.000000+00:00"))
    assert {fault.field for fault in chain.faults()} == {"line 2: number, at, previous or sha256", "line 2: at"}


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_line_half_written_by_a_dying_process_is_absent_and_is_cut_off(chain: Records, cut: int) -> None:
    data = chain.path.read_bytes()
    chain.path.write_bytes(data[:-cut])
    assert len(chain.read()) == 2
    assert chain.append({"again": True}).number == 3
    assert [one.number for one in chain.read()] == [1, 2, 3]


def test_nothing_is_added_to_an_edited_chain(chain: Records) -> None:
    edit(chain, 3, lambda line: line["body"].update(rng_seed=9))
    with pytest.raises(RecordError, match="was edited"):
        chain.append({})


def _append_many(path: str) -> None:
    for at in range(20):
        Records(Path(path)).append({"at": at})


def test_two_processes_append_without_losing_a_record(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_many, args=(str(path),)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [one.number for one in Records(path).read()] == list(range(1, 41))


def test_numbers_of_numpy_are_numbers_and_arrays_are_refused_with_their_place() -> None:
    assert plain({"a": np.float32(0.5), "n": np.int64(3), "b": np.bool_(True)}) == {"a": 0.5, "n": 3, "b": True}
    with pytest.raises(RecordError, match=r"value.a\[1\]: got a numpy.ndarray"):
        plain({"a": [1, np.zeros(2)]})
    with pytest.raises(RecordError, match="the key 3"):
        plain({3: 1})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_values_survive_and_equal_values_have_equal_digests(value: Any) -> None:
    back = revive(json.loads(canonical(value)))
    assert repr(back) == repr(value) or digest(back) == digest(value)
