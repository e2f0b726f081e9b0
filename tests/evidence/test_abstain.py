"""Abstention and conformal intervals: against MAPIE, and what they promise measured on groups held out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mapie.regression import SplitConformalRegressor
from sklearn.dummy import DummyRegressor

from gradledger.evidence.abstain import (
    choose_threshold,
    conformal,
    conformal_by_group,
    covered,
    evaluate,
    evaluate_by_slice,
)
from gradledger.evidence.errors import StatisticsError


@pytest.mark.parametrize(("n", "alpha"), [(19, 0.1), (100, 0.1), (101, 0.05), (57, 0.2)])
def test_split_conformal_is_that_of_mapie(n: int, alpha: float) -> None:
    rng = np.random.default_rng(n)
    x, y = np.zeros((n, 1)), rng.normal(size=n)
    model = DummyRegressor(strategy="constant", constant=0.25).fit(x, y)
    theirs = SplitConformalRegressor(model, confidence_level=1 - alpha, prefit=True).conformalize(x, y)
    _, intervals = theirs.predict_interval(np.zeros((1, 1)))
    ours = conformal(y - 0.25, alpha=alpha)
    assert ours.half_width == pytest.approx((intervals[0, 1, 0] - intervals[0, 0, 0]) / 2, rel=1e-9)


def test_too_few_groups_give_an_infinite_width() -> None:
    assert conformal(np.ones(8), alpha=0.1).half_width == math.inf
    assert conformal(np.ones(9), alpha=0.1).half_width == 1.0
    assert conformal_by_group(np.ones(800), [i // 100 for i in range(800)], alpha=0.1).record()["half_width"] is None


def residuals(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, list[int]]:
    """Groups of very different sizes, each with its own offset; large groups are the easy ones."""
    sizes = rng.integers(1, 40, size=groups)
    of = np.repeat(np.arange(groups), sizes)
    offset = rng.normal(size=groups) * np.where(sizes > 20, 0.3, 1.5)
    return offset[of] + 0.2 * rng.normal(size=len(of)), of.tolist()


def test_coverage_on_held_out_groups() -> None:
    rng, runs = np.random.default_rng(0), 400
    by_group, by_row = [], []
    for _ in range(runs):
        fitted, of = residuals(rng, 30)
        held, of_held = residuals(rng, 40)
        by_group.append(covered(conformal_by_group(fitted, of, alpha=0.1), held, of_held))
        by_row.append(covered(conformal(fitted, alpha=0.1), held, of_held))
    error = 3 * np.std(by_group) / math.sqrt(runs)
    print(f"coverage at 90 %: by groups {np.mean(by_group):.3f}, rows as if independent {np.mean(by_row):.3f}")
    assert 0.90 - error <= np.mean(by_group) <= 0.95
    assert np.mean(by_row) < 0.87


def scored(rng: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Scores that tell: the chance of an error is the score; errors of a group come together."""
    of = np.repeat(np.arange(groups), 10)
    score = rng.uniform(0, 0.5, size=len(of))
    shared = rng.uniform(size=groups)[of]
    own = rng.uniform(size=len(of))
    return score, (np.where(own < 0.5, shared, rng.uniform(size=len(of))) < score).astype(float), of.tolist()


def test_the_threshold_keeps_the_registered_risk_on_new_groups() -> None:
    rng, runs, exceeded, coverage = np.random.default_rng(1), 60, 0, []
    for run in range(runs):
        score, loss, of = scored(rng, 60)
        threshold = choose_threshold(score, loss, of, risk=0.15, replicates=300, rng_seed=run)
        new_score, new_loss, _ = scored(rng, 2000)
        found = evaluate(threshold, new_score, new_loss)
        exceeded += found.risk is not None and found.risk > 0.155
        coverage.append(found.coverage)
    print(f"risk exceeded in {exceeded / runs:.2f} of the runs, coverage {np.mean(coverage):.2f}")
    assert exceeded / runs <= 0.10
    assert np.mean(coverage) > 0.25  # answering everything has risk 0.25; the best for 0.15 is 0.6


def test_a_risk_that_no_threshold_keeps_answers_nothing() -> None:
    score, loss, of = scored(np.random.default_rng(2), 60)
    threshold = choose_threshold(score, np.ones_like(loss), of, risk=0.15)
    assert (threshold.value, threshold.coverage) == (None, 0.0)
    found = evaluate(threshold, score, loss)
    assert (found.answered, found.risk, found.kept) == (0, None, None)


def test_rejected_and_abstained_rows_are_counted_apart_and_by_slice() -> None:
    score, loss, of = scored(np.random.default_rng(3), 60)
    threshold = choose_threshold(score, loss, of, risk=0.2)
    assert threshold.value is not None
    accepted = [i % 10 != 0 for i in range(600)]
    found = evaluate(threshold, score, loss, accepted=accepted)
    assert (found.n, found.rejected, found.rejected + found.abstained + found.answered) == (600, 60, 600)
    answered = (score <= threshold.value) & np.array(accepted)
    assert found.risk == pytest.approx(loss[answered].mean())
    parts = evaluate_by_slice(threshold, score, loss, ["a" if g < 20 else "b" for g in of], accepted=accepted)
    assert (parts["a"].n, parts["b"].n) == (200, 400)
    assert parts["a"].answered + parts["b"].answered == found.answered


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(StatisticsError, match=r"alpha=1\.0"):
        conformal([1.0], alpha=1.0)
    with pytest.raises(StatisticsError, match="not finite"):
        conformal([float("nan")])
    with pytest.raises(StatisticsError, match="2 groups"):
        conformal_by_group([1.0], [0, 1])
