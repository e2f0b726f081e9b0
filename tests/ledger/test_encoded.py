"""Columns that are the mean target of a category: over which rows was the mean?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradledger.ledger.probes.encoded import _encodes

ROWS, CATEGORIES = 600, 110


def table(seed: int, whole: bool = False) -> tuple[Any, Any, Any]:
    """(category, target, held out) of rows in categories of many sizes."""
    draws = np.random.default_rng(seed)
    category = draws.integers(CATEGORIES, size=ROWS)
    target = draws.normal(size=CATEGORIES)[category] + draws.normal(size=ROWS)
    held = np.zeros(ROWS, bool)
    held[draws.permutation(ROWS)[:150]] = True
    return category, (target > 0).astype(float) if whole else target, held


def means(category: Any, target: Any, prior: float) -> Any:
    total = np.bincount(category, weights=target, minlength=CATEGORIES)
    count = np.bincount(category, minlength=CATEGORIES)
    encoded = (total + prior * target.mean()) / np.maximum(count + prior, 1)
    return encoded.astype(np.float32).astype(float)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prior", [0.0, 6.0])
def test_means_over_all_rows_hold_those_held_out(prior: float, seed: int) -> None:
    category, target, held = table(seed)
    assert _encodes(3 * means(category, target, prior)[category] - 1, target, held)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prior", [0.0, 6.0])
def test_means_over_the_rows_trained_on_do_not(prior: float, seed: int) -> None:
    category, target, held = table(seed)
    assert not _encodes(means(category[~held], target[~held], prior)[category], target, held)


@pytest.mark.parametrize("seed", range(5))
def test_targets_of_two_classes(seed: int) -> None:
    category, target, held = table(seed, whole=True)
    assert _encodes(means(category, target, 0.0)[category], target, held)
    assert not _encodes(means(category[~held], target[~held], 0.0)[category], target, held)


@pytest.mark.parametrize("seed", range(5))
def test_columns_that_have_nothing_to_do_with_means(seed: int) -> None:
    category, target, held = table(seed)
    draws = np.random.default_rng(seed)
    assert not _encodes(draws.normal(size=CATEGORIES)[category], target, held), "some number for each category"
    assert not _encodes(category.astype(float), 2.0 * category, held), "the target is the column"
    assert not _encodes(draws.normal(size=ROWS), target, held), "numbers that never come again"


def test_the_lines_of_a_grid_whose_sums_are_a_plain_function_of_the_column() -> None:
    x, y = (a.reshape(-1) for a in np.meshgrid(np.linspace(-1, 1, 25), np.linspace(-1, 1, 25)))
    held = np.zeros(625, bool)
    held[np.random.default_rng(0).permutation(625)[:125]] = True
    assert not _encodes(x, 2 * x + np.sin(3 * y), held)
