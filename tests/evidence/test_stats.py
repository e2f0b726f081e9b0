"""Statistics against scipy, and intervals against what they promise: coverage on simulated bursts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as oracle

from gradledger.evidence import stats
from gradledger.evidence._normal import binomial_cdf, normal_cdf, normal_quantile, t_quantile
from gradledger.evidence.errors import StatisticsError

REPLICATES = 4000
# Two bootstraps of 4000 replicates each: their ends scatter by some per cent of the width.
SCATTER = 0.06


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 30, 101])
def test_iqm_is_the_trimmed_mean(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    assert stats.iqm(values) == pytest.approx(oracle.trim_mean(values, 0.25), rel=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 199, 200, 5000])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.995])
def test_quantiles_of_t(freedom: int, probability: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(oracle.t.ppf(probability, freedom), rel=1e-6)


def test_normal_and_binomial() -> None:
    for x in (-6.0, -1.0, 0.0, 2.5):
        assert normal_cdf(x) == pytest.approx(oracle.norm.cdf(x), rel=1e-12)
    assert normal_quantile(0.975) == pytest.approx(oracle.norm.ppf(0.975), rel=1e-12)
    for k, n, p in ((0, 5, 0.5), (950, 1000, 0.95), (940, 1000, 0.95), (999, 1000, 0.99), (5, 5, 0.1), (-1, 5, 0.1)):
        assert binomial_cdf(k, n, p) == pytest.approx(oracle.binom.cdf(k, n, p), rel=1e-9)


@pytest.mark.parametrize("n", [3, 5, 12])
def test_the_interval_over_seeds_is_the_percentile_interval_of_scipy_at_the_widened_level(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    ours = stats.over_seeds(values, replicates=REPLICATES)
    tail = oracle.norm.cdf(-math.sqrt(n / (n - 1)) * oracle.t.ppf(0.975, n - 1))
    theirs = oracle.bootstrap(
        (values,), np.mean, n_resamples=REPLICATES, confidence_level=1 - 2 * tail, method="percentile", rng=1
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=SCATTER * width)
    assert ours.high == pytest.approx(theirs.high, abs=SCATTER * width)


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_seeds_have_no_interval_and_say_so(n: int) -> None:
    summary = stats.summarise([0.5] * n)
    assert (summary.interval.low, summary.interval.high) == (None, None)
    assert summary.interval.why == f"{n} seed{'s' if n > 1 else ''}: no interval below 3"
    assert summary.record()["interval"]["why"] == summary.interval.why
    both = stats.over_seeds_and_groups({seed: np.arange(10.0) for seed in range(n)}, [*range(10)])
    assert both.low is None
    assert "no interval below 3" in both.why


def test_too_few_groups_have_no_interval() -> None:
    assert stats.over_groups([1.0, 2.0, 3.0], ["a", "b", "b"]).why == "2 groups: no interval below 5"
    rows = {seed: np.arange(8.0) for seed in range(3)}
    assert stats.over_seeds_and_groups(rows, [0, 0, 1, 1, 2, 2, 3, 3]).why == "4 groups: no interval below 5"


def test_the_summary_tells_every_seed_apart() -> None:
    found = stats.summarise([3.0, 1.0, 2.0, 10.0])
    assert (found.n, found.mean, found.iqm, found.minimum, found.maximum) == (4, 4.0, 2.5, 1.0, 10.0)
    assert found.interval.low is not None
    assert found.interval.low < 4.0 < found.interval.high


def bursts(rng: np.random.Generator, groups: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a burst share most of what they are: standard deviation 1 between bursts, 0.5 within. Mean 0."""
    of = np.repeat(np.arange(groups), rows)
    return rng.normal(size=groups)[of] + 0.5 * rng.normal(size=groups * rows), of


def test_coverage_on_bursts_groups_hold_what_rows_only_promise() -> None:
    rng, runs = np.random.default_rng(0), 300
    hits = {"groups": 0, "rows": 0}
    for run in range(runs):
        values, of = bursts(rng, groups=20, rows=8)
        for name, interval in (
            ("groups", stats.over_groups(values, of.tolist(), replicates=400, rng_seed=run)),
            ("rows", stats.over_rows(values, replicates=400, rng_seed=run)),
        ):
            assert interval.low is not None
            assert interval.high is not None
            hits[name] += interval.low <= 0.0 <= interval.high
    coverage = {name: hit / runs for name, hit in hits.items()}
    print(f"coverage at nominal 95 %: {coverage}")  # shown with -s
    assert 0.90 <= coverage["groups"] <= 0.99
    assert coverage["rows"] < 0.70


def test_coverage_over_seeds_and_groups() -> None:
    rng, runs, hits, seeds_only = np.random.default_rng(1), 300, 0, 0
    for run in range(runs):
        shared, of = bursts(rng, groups=15, rows=4)
        rows = {seed: shared + 0.5 * rng.normal() + 0.3 * rng.normal(size=len(shared)) for seed in range(5)}
        both = stats.over_seeds_and_groups(rows, of.tolist(), replicates=400, rng_seed=run)
        alone = stats.over_seeds([row.mean() for row in rows.values()], replicates=400, rng_seed=run)
        assert both.low is not None
        assert alone.low is not None
        hits += both.low <= 0.0 <= both.high
        seeds_only += alone.low <= 0.0 <= alone.high
    print(f"coverage at nominal 95 %: seeds and groups {hits / runs}, seeds alone {seeds_only / runs}")
    assert hits / runs >= 0.90
    assert hits > seeds_only


def test_paired_differences_against_scipy() -> None:
    rng = np.random.default_rng(3)
    first = {seed: float(value) for seed, value in enumerate(rng.normal(1.0, 1.0, size=8))}
    second = {seed: value - 0.7 + 0.3 * float(rng.normal()) for seed, value in first.items()}
    found = stats.paired({**first, 20: 1.0}, {**second, 21: 1.0, 22: 1.0})
    assert (found.only_first, found.only_second) == ((20,), (21, 22))
    assert found.differences == {seed: pytest.approx(first[seed] - second[seed]) for seed in first}
    theirs = oracle.permutation_test(
        (np.array(list(found.differences.values())),), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-12)


def test_the_smallest_p_of_a_few_seeds() -> None:
    assert stats.sign_exchange([1.0, 1.0, 1.0]) == 0.25
    assert stats.paired({0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0}).p is None
    many = np.random.default_rng(0).normal(0.5, 1.0, size=40)
    assert stats.sign_exchange(many) == pytest.approx(oracle.ttest_1samp(many, 0.0).pvalue, abs=0.01)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(StatisticsError, match="not finite, the first at 1"):
        stats.summarise([1.0, math.nan])
    with pytest.raises(StatisticsError, match=r"shape \(0,\)"):
        stats.iqm([])
    with pytest.raises(StatisticsError, match="3 groups for 2 rows"):
        stats.over_groups([1.0, 2.0], ["a", "b", "c"])
    with pytest.raises(StatisticsError, match="seeds in common"):
        stats.paired({0: 1.0}, {1: 1.0})
    with pytest.raises(StatisticsError, match="level=95"):
        stats.over_seeds([1.0, 2.0, 3.0], level=95)
