"""Costs: round trip through JSON, and contradictions named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from gradledger.core.errors import GradledgerError
from gradledger.sweep._cost import CostError, Costs
from sweep.chains import chain, chains


@settings(deadline=None, max_examples=50)
@given(chains())
def test_json_round_trip(costs: Costs) -> None:
    assert Costs.from_json(costs.to_json()) == costs


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 1, "blocks": [{}], "storages": []}']
)
def test_text_that_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(CostError, match=r"here\.json: got text that is no profile"):
        Costs.from_json(text, where="here.json")


def test_another_version_is_refused() -> None:
    stored = json.loads(chain(0, 2).to_json()) | {"version": 99}
    with pytest.raises(CostError, match="got version 99, wanted version 1"):
        Costs.from_json(json.dumps(stored))


def test_a_stored_contradiction_is_named() -> None:
    stored = json.loads(chain(0, 2).to_json())
    stored["blocks"][1]["saved"] = [77]
    with pytest.raises(CostError, match=r"block 1 \(block1\), saved: got storage 77"):
        Costs.from_json(json.dumps(stored))


def test_contradictions_are_named() -> None:
    costs = chain(0, 3)
    with pytest.raises(CostError, match=r"Costs\.blocks: got no blocks"):
        Costs((), (), (frozenset(),), (0,))
    with pytest.raises(CostError, match=r"Costs\.boundaries: got 3 entries, wanted 4"):
        replace(costs, boundaries=costs.boundaries[1:])
    with pytest.raises(CostError, match=r"Costs\.cotangents: got 5 entries"):
        replace(costs, cotangents=(*costs.cotangents, 1))
    with pytest.raises(CostError, match=r"Costs\.boundaries\[0\]: got storages \[0\], wanted none"):
        replace(costs, boundaries=(frozenset({0}), *costs.boundaries[1:]))
    with pytest.raises(CostError, match=r"Costs\.storages\[0\]: got -1 bytes"):
        replace(costs, storages=(-1, *costs.storages[1:]))
    with pytest.raises(CostError, match="forward_s = nan, wanted a finite number"):
        replace(costs, blocks=(replace(costs.blocks[0], forward_s=float("nan")), *costs.blocks[1:]))
    with pytest.raises(CostError, match="grad_bytes = -5"):
        replace(costs, blocks=(replace(costs.blocks[0], grad_bytes=-5), *costs.blocks[1:]))
    assert issubclass(CostError, GradledgerError)


def test_size_counts_a_storage_once_and_forced_leaves_the_loss_out() -> None:
    costs = chain(1, 3)
    assert costs.size([0, 0, 1]) == costs.storages[0] + costs.storages[1]
    blocks = tuple(replace(b, keep_reason=f"because {i}") for i, b in enumerate(costs.blocks))
    assert replace(costs, blocks=blocks).forced == {0: "because 0", 1: "because 1"}
    assert len(costs) == 3
