"""The manifest: reads back equal, refuses every edit, and says what does not hold."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from gradledger.data.errors import SplitError
from gradledger.data.groups import content_hash
from gradledger.data.manifest import Manifest, fingerprint, read, record
from gradledger.data.split import split

KEYS = {
    "episode": [at // 5 for at in range(100)],
    "operator": [["anna", "ben", None][at // 5 % 3] for at in range(100)],
}
EPISODES = {"episode": KEYS["episode"]}


def manifest() -> Manifest:
    made = split(EPISODES, shares={"train": 0.7, "test": 0.3})
    return record(made, [f"s{at:03d}" for at in range(100)], EPISODES, hashes=[content_hash(at) for at in range(100)])


def test_round_trip(tmp_path: Path) -> None:
    path, one = tmp_path / "split.json", manifest()
    one.write(path)
    assert read(path) == one
    document = json.loads(path.read_text())
    assert document["rng_seed"] == 0
    assert document["algorithm"] == "components-search/1"
    assert document["sha256"] == one.sha256
    assert {path.name} == {file.name for file in tmp_path.iterdir()}


def test_every_edit_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    manifest().write(path)
    document = json.loads(path.read_text())
    rng = random.Random(0)
    for name in ("ids", "groups", "sides", "reasons", "hashes", "tolerance", "rng_seed", "algorithm", "shares", "keys"):
        changed = json.loads(json.dumps(document))
        if isinstance(changed[name], list):
            a, b = rng.sample(range(100), 2)
            changed[name][a], changed[name][b] = changed[name][b], changed[name][a]
            if changed[name] == document[name]:
                changed[name][a] = "other" if isinstance(changed[name][a], str) else 7777
        elif isinstance(changed[name], dict):
            changed[name][next(iter(changed[name]))] = 0.71 if name == "shares" else ["1"] * 100
        else:
            changed[name] = 1 if name != "algorithm" else "mine"
        path.write_text(json.dumps(changed))
        with pytest.raises(SplitError, match="it was edited"):
            read(path)
    for text in ("", "{", "[]", '{"format": "other"}', json.dumps({**document, "more": 1})):
        path.write_text(text)
        with pytest.raises(SplitError, match=r"wanted a whole file of format gradledger-split/1"):
            read(path)
    with pytest.raises(SplitError, match="FileNotFoundError"):
        read(tmp_path / "gone.json")


def test_problems() -> None:
    one = manifest()
    assert one.problems() == []
    sides = list(one.sides)
    sides[0] = "test" if sides[0] == "train" else "train"
    moved = replace(one, sides=tuple(sides))
    assert any(
        "values of episode are on two sides, for example 0 on test and train" in text for text in moved.problems()
    )
    assert any("values of group are on two sides" in text for text in moved.problems())
    twice = replace(one, ids=(one.ids[1], *one.ids[1:]))
    assert twice.problems() == ["1 ids are there twice, for example 's001'"]
    train, test = one.indices("train")[0], one.indices("test")[0]
    hashes = list(one.hashes)
    hashes[train] = hashes[test]
    assert any("values of content are on two sides" in text for text in replace(one, hashes=tuple(hashes)).problems())
    assert any("holds 100.0%" in text for text in replace(one, sides=("train",) * 100).problems())
    assert replace(one, ids=one.ids[:-1]).problems() == ["columns of [99, 100] entries, not of one length"]
    assert any("unknown sides x" in text for text in replace(one, sides=("x", *one.sides[1:])).problems())
    with pytest.raises(SplitError, match="never move single samples by hand"):
        moved.require()


def test_an_operator_who_ties_episodes_is_seen_later() -> None:
    """Split by episode only, recorded with both keys: the manifest knows better."""
    made = split(EPISODES, shares={"train": 0.7, "test": 0.3})
    with pytest.raises(SplitError, match="2 values of operator are on two sides"):
        record(made, range(100), KEYS)


def test_against_the_data() -> None:
    one = manifest()
    ids, hashes = list(one.ids), list(one.hashes)
    assert one.problems_with(ids, hashes) == []
    assert one.problems_with(ids[::-1], hashes[::-1]) == []
    assert one.problems_with(ids[1:]) == ["1 samples are missing from the data, for example 's000'"]
    assert one.problems_with([*ids, "new"]) == ["1 samples are not in the split, for example 'new'"]
    assert "other content" in one.problems_with(ids, ["0", *hashes[1:]])[0]
    assert "there twice" in one.problems_with([*ids, ids[0]])[0]


def test_sides() -> None:
    one = manifest()
    train, test = one.indices("train"), one.indices("test")
    assert sorted([*train, *test]) == list(range(100))
    assert one.counts() == {"train": len(train), "test": len(test), "purged": 0}
    assert one.fingerprint("train") == fingerprint([one.ids[at] for at in train[::-1]]) != one.fingerprint("test")
    with pytest.raises(SplitError, match="got 'val', wanted one of train, test"):
        one.indices("val")
