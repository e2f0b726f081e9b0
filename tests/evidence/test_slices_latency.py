"""Slices, worst cases and latency against closed testing, scipy and a clock whose every tick is known."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from scipy import stats as oracle

from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.latency import measure, quantile, timing
from gradledger.evidence.slices import by_slice, holm, worse_than_rest, worst


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_holm_is_the_closed_test_with_bonferroni(n: int) -> None:
    p = np.random.default_rng(n).uniform(0, 0.2, size=n).tolist()
    subsets = list(chain.from_iterable(combinations(range(n), size) for size in range(1, n + 1)))
    closed = [max(min(1.0, len(s) * min(p[i] for i in s)) for s in subsets if at in s) for at in range(n)]
    assert holm(p) == pytest.approx(closed, rel=1e-12)


def rows(effect: float, *, rng_seed: int = 0, groups: int = 30) -> tuple[np.ndarray, list[str], list[int]]:
    """Bursts of 6 rows in three slices of ten bursts; `dark` is worse by `effect`."""
    rng = np.random.default_rng(rng_seed)
    of = np.repeat(np.arange(groups), 6)
    names = [("bright", "dark", "mixed")[group % 3] for group in of]
    losses = 1.0 + 0.3 * rng.normal(size=groups)[of] + 0.1 * rng.normal(size=len(of))
    return losses + effect * (np.array(names) == "dark"), names, of.tolist()


def test_a_slice_that_is_worse_is_found_and_small_ones_are_not_judged() -> None:
    losses, names, groups = rows(0.6)
    names[:6], names[18:24] = ["rare"] * 6, ["rare"] * 6
    found = {one.name: one for one in by_slice(losses, names, groups)}
    assert list(found) == ["bright", "dark", "mixed", "rare"]
    dark, rare = found["dark"], found["rare"]
    assert (dark.n, dark.groups, dark.worse, found["bright"].worse) == (60, 10, True, False)
    assert dark.interval.low is not None
    assert dark.interval.low < dark.mean < dark.interval.high  # type: ignore[operator]
    assert dark.p is not None
    assert dark.p_holm == pytest.approx(3 * dark.p)
    assert (rare.n, rare.groups, rare.p, rare.p_holm, rare.worse) == (12, 2, None, None, None)
    assert (rare.support.startswith("insufficient support"), rare.interval.why) == (True, "insufficient support")


def test_false_alarms_stay_below_the_level_on_bursts() -> None:
    alarms = naive = 0
    for run in range(150):
        losses, names, groups = rows(0.0, rng_seed=run)
        alarms += any(one.worse for one in by_slice(losses, names, groups, replicates=300, rng_seed=run))
        dark = np.array(names) == "dark"
        naive += oracle.ttest_ind(losses[dark], losses[~dark], alternative="greater").pvalue < 0.05
    print(f"a slice is falsely called worse: {alarms / 150:.3f}; one slice by rows: {naive / 150:.3f}")
    assert alarms / 150 <= 0.10
    assert naive > alarms  # what taking rows for independent would have claimed


def test_p_agrees_with_welch_on_group_means() -> None:
    losses, names, groups = rows(0.2)
    inside = np.array(names) == "dark"
    means = np.array([losses[np.array(groups) == g].mean() for g in range(30)])
    dark = np.arange(30) % 3 == 1
    theirs = oracle.ttest_ind(means[dark], means[~dark], equal_var=False, alternative="greater").pvalue
    assert worse_than_rest(losses, inside, groups, replicates=4000) == pytest.approx(theirs, abs=0.04)


def test_the_worst_rows_with_their_ids() -> None:
    found = worst([1.0, 5.0, float("nan"), 5.0], ["a", "c", "d", "b"], [0, 0, 1, 1], k=3)
    assert [(one.rank, one.id, one.at, one.group) for one in found] == [
        (1, "d", 2, "1"),
        (2, "b", 3, "1"),
        (3, "c", 1, "0"),
    ]
    with pytest.raises(StatisticsError, match="k=0"):
        worst([1.0], ["a"], [0], k=0)


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(StatisticsError, match="2 slices, 1 groups"):
        by_slice([1.0], ["a", "b"], [0])
    with pytest.raises(StatisticsError, match="1 losses that are not finite"):
        by_slice([float("inf")], ["a"], [0])


# ----------------------------------------------------------------------------------------------------------- latency


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("n", [1000, 2500])
def test_quantiles_and_their_intervals_against_scipy(q: float, n: int) -> None:
    times = np.random.default_rng(n).lognormal(size=n)
    ours = quantile(times, q)
    theirs = oracle.quantile_test(times, p=q, q=float(np.median(times))).confidence_interval(0.95)
    assert ours.value_ms == np.quantile(times, q, method="inverted_cdf")
    ordered = np.sort(times).tolist()
    assert abs(ordered.index(ours.low_ms) - ordered.index(theirs.low)) <= 1
    assert abs(ordered.index(ours.high_ms) - ordered.index(theirs.high)) <= 1


def test_the_interval_of_a_quantile_covers_it() -> None:
    rng, truth = np.random.default_rng(0), float(oracle.lognorm.ppf(0.99, 1.0))
    hits = 0
    for _ in range(120):
        found = quantile(rng.lognormal(size=1000), 0.99)
        hits += found.low_ms is not None and found.high_ms is not None and found.low_ms <= truth <= found.high_ms
    assert hits / 120 >= 0.91


def test_few_calls_have_no_upper_bound_of_their_tail() -> None:
    found = quantile(np.arange(100.0), 0.99)
    assert (found.value_ms, found.high_ms) == (98.0, None)


class Ticking:
    """A clock that moves only when a stage says so."""

    def __init__(self) -> None:
        self.now, self.waited = 0, 0

    def __call__(self) -> int:
        return self.now

    def spend(self, nanoseconds: int) -> None:
        self.now += nanoseconds


def test_every_call_is_timed_whole_and_by_stage_and_the_first_apart() -> None:
    clock, seen = Ticking(), []

    def decode(value: int) -> int:
        seen.append(value)
        clock.spend(1_000_000 if len(seen) > 1 else 50_000_000)
        return value

    def model(value: int) -> int:
        clock.spend(4_000_000 if value == 0 else 2_000_000)  # one input of ten is slow
        return value

    found = measure(
        [("decode", decode), ("model", model)],
        range(10),
        calls=1000,
        clock=clock,
        synchronise=lambda: clock.spend(500_000),
    )
    assert found.whole.first_ms in (53.0, 55.0)
    assert found.stages["decode"].quantiles["p99"].value_ms == 1.5
    assert (found.whole.quantiles["p50"].value_ms, found.whole.quantiles["p95"].value_ms) == (4.0, 6.0)
    assert found.whole.maximum_ms == 6.0
    curves = found.record()["distribution_ms"]
    assert list(curves) == ["whole", "decode", "model"]
    # one call of ten is slow: 0 to 89 per cent are fast, the hundredth is the maximum
    assert (curves["whole"][0], curves["whole"][89], curves["whole"][95], curves["whole"][100]) == (4.0, 4.0, 6.0, 6.0)
    assert (found.whole.calls, found.times_ns.shape) == (1000, (1000, 3))
    assert (found.times_ns[:, 0] == found.times_ns[:, 1:].sum(axis=1)).all()
    assert {seen.count(value) for value in range(10)} == {100, 101}
    assert seen[:10] != sorted(seen[:10])
    assert found.record()["stages"]["model"]["quantiles"]["p50"]["value_ms"] == 2.5


def test_block_means_would_hide_the_tail_that_single_calls_show() -> None:
    times = np.full(2001, 1_000_000)
    times[::20] = 5_000_000  # one call of twenty
    single = timing(times).quantiles["p99"].value_ms
    blocks = np.quantile(times[1:].reshape(-1, 100).mean(axis=1) / 1e6, 0.99)
    assert (single, blocks) == (5.0, pytest.approx(1.2))


def test_calls_that_depend_on_each_other_are_told() -> None:
    rng = np.random.default_rng(0)
    assert abs(timing(rng.integers(100, 200, size=2001)).together) < 0.1
    assert timing(np.repeat(rng.integers(100, 200, size=201), 10)).together > 0.8


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(StatisticsError, match="999 calls"):
        measure([("all", lambda x: x)], [1], calls=999)
    with pytest.raises(StatisticsError, match="0 inputs"):
        measure([("all", lambda x: x)], [])
