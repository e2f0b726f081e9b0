"""Rules without a model, against scikit-learn's estimators of the same name, and what they are there to find."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LinearRegression, Ridge, RidgeCV
from sklearn.metrics import average_precision_score
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from gradledger.evidence import _rules
from gradledger.evidence.baselines import Baseline, Placed, Side, class_names, place, shuffled, table
from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.stats import over_groups

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 4)) * (1.0, 100.0, 0.01, 1.0) + (0.0, 5.0, 3.0, 0.0)
Y = np.stack([X[:, 0] * 2 + X[:, 1] / 50, 1 + np.sin(X[:, 3])], axis=1) + 0.1 * RNG.normal(size=(150, 2))
KINDS = np.where(X[:, 0] + 0.3 * RNG.normal(size=150) > 0.4, "fish", "crab")
TRAIN, HELD = slice(0, 100), slice(100, 150)
GROUPS = [f"burst {at // 5}" for at in range(50)]


def by_name(found: list[Baseline]) -> dict[str, Baseline]:
    return {one.name: one for one in found}


def numbers() -> dict[str, Baseline]:
    return by_name(table(Side(X[TRAIN], Y[TRAIN]), Side(X[HELD], Y[HELD], GROUPS), kind="numbers", zero=True))


def test_rules_of_numbers_are_those_of_scikit_learn() -> None:
    found = numbers()
    alphas = [one * 100 for one in _rules.PENALTIES]
    oracles = {
        "mean of the training targets": DummyRegressor(),
        "zero": DummyRegressor(strategy="constant", constant=np.zeros(2)),
        "nearest neighbour": make_pipeline(StandardScaler(), KNeighborsRegressor(1, algorithm="brute")),
        "linear": make_pipeline(StandardScaler(), RidgeCV(alphas)),
    }
    for name, oracle in oracles.items():
        said = oracle.fit(X[TRAIN], Y[TRAIN]).predict(X[HELD])
        assert found[name].value == pytest.approx(float(((said - Y[HELD]) ** 2).mean()), rel=1e-12), name
    order = np.random.default_rng(0).permutation(100)
    said = oracles["linear"].fit(X[TRAIN], Y[TRAIN][order]).predict(X[HELD])
    assert found["shuffled labels, linear"].value == pytest.approx(float(((said - Y[HELD]) ** 2).mean()), rel=1e-9)
    assert found["linear"].value < found["mean of the training targets"].value < found["zero"].value


@pytest.mark.parametrize("rows", [40, 12])
def test_a_line_without_penalty_is_least_squares_also_with_fewer_rows_than_columns(rows: int) -> None:
    x = RNG.normal(size=(rows, 20))
    y = RNG.normal(size=(rows, 1))
    asked = RNG.normal(size=(7, 20))
    oracle = make_pipeline(StandardScaler(), LinearRegression()).fit(x, y).predict(asked)
    assert np.allclose(_rules.linear(x, y, asked, penalty=0.0), oracle, rtol=0, atol=1e-10)


def test_rules_of_classes_are_those_of_scikit_learn_and_a_metric_of_ones_own_is_used() -> None:
    train, held = Side(X[TRAIN], KINDS[TRAIN]), Side(X[HELD], KINDS[HELD], GROUPS)
    found = by_name(table(train, held, kind="classes"))
    majority = DummyClassifier().fit(X[TRAIN], KINDS[TRAIN]).score(X[HELD], KINDS[HELD])
    assert found["shares of the training classes (majority)"].value == pytest.approx(1 - majority)
    near = make_pipeline(StandardScaler(), KNeighborsClassifier(1)).fit(X[TRAIN], KINDS[TRAIN])
    assert found["nearest neighbour"].value == pytest.approx(1 - near.score(X[HELD], KINDS[HELD]))
    line = make_pipeline(StandardScaler(), RidgeCV([one * 100 for one in _rules.PENALTIES]))
    scores = line.fit(X[TRAIN], KINDS[TRAIN] == "fish").predict(X[HELD])
    assert found["linear"].value == pytest.approx(float(((scores > 0.5) != (KINDS[HELD] == "fish")).mean()))

    assert class_names(train, held) == ["crab", "fish"]
    precise = by_name(
        table(train, held, kind="classes", metric=lambda s, w: average_precision_score(w == 1, s[:, 1]))
    )
    assert precise["linear"].value == pytest.approx(average_precision_score(KINDS[HELD] == "fish", scores))
    assert precise["linear"].interval.why == "the metric is of all rows together"


def test_the_interval_is_over_groups() -> None:
    found = numbers()["nearest neighbour"]
    said = _rules.nearest(X[TRAIN], Y[TRAIN], X[HELD])
    wanted = over_groups(((said - Y[HELD]) ** 2).mean(axis=1), GROUPS)
    assert (found.interval, found.n, found.groups) == (wanted, 50, 10)
    few = table(Side(X[TRAIN], Y[TRAIN]), Side(X[HELD], Y[HELD], ["one"] * 50), kind="numbers")
    assert few[0].interval.why == "1 group: no interval below 5"
    json.dumps([one.record() for one in few])


@pytest.mark.parametrize("columns", [3, 40])
def test_the_penalty_is_chosen_with_whole_groups_left_out(columns: int) -> None:
    """The closed form of what is left out, against lines that were really fitted without the group; groups of one row,
    of a few, and of more rows than there are columns."""
    rng = np.random.default_rng(5)
    sizes = (1, 1, 2, 3, 5, 8, 13)
    groups = [name for name, size in enumerate(sizes) for _ in range(size)]
    x = rng.normal(size=(len(groups), columns))
    x -= x.mean(axis=0)
    y = rng.normal(size=(len(groups), 2)) + x[:, :2]
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    u, s = u[:, s > 1e-9], s[s > 1e-9]
    middle = y.mean(axis=0)
    for penalty in (0.1, 10.0):
        errors = []
        for name in set(groups):
            out = np.array(groups) == name
            within = Ridge(alpha=penalty).fit(x[~out], y[~out])
            errors.append(np.square(within.predict(x[out]) - y[out]))
        wanted = float(np.concatenate(errors).mean())
        rows = list(_rules.members(groups).values())
        got = _rules._left_out(u, s, u.T @ (y - middle), y, middle, penalty, rows)
        assert got == pytest.approx(wanted, rel=1e-9)


def siblings(count: int = 40, each: int = 10) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Bursts whose rows look alike and have one target, which nothing in the input tells of a new burst."""
    rng = np.random.default_rng(1)
    groups = [at // each for at in range(count * each)]
    x = rng.normal(size=(count, 60)).repeat(each, axis=0) + 0.1 * rng.normal(size=(count * each, 60))
    return x, rng.normal(size=count).repeat(each), groups


def test_a_line_that_leaves_rows_out_is_taken_in_by_siblings_and_one_that_leaves_groups_out_is_not() -> None:
    x, y, groups = siblings()
    train, held = slice(0, 200), slice(200, 400)
    asked = Side(x[held], y[held], groups[held])
    rows = by_name(table(Side(x[train], y[train]), asked, kind="numbers"))
    whole = by_name(table(Side(x[train], y[train], groups[train]), asked, kind="numbers"))
    mean = whole["mean of the training targets"].value
    assert rows["linear"].value > 1.4 * mean  # a small penalty: whichever row is left out, its siblings stay
    assert whole["linear"].value < 1.1 * mean
    assert whole["nearest neighbour"] == rows["nearest neighbour"]


def test_groups_on_both_sides_are_counted_and_left_out_by_folds() -> None:
    x, y, groups = siblings()
    order = np.random.default_rng(2).permutation(400)
    names = [[groups[row] for row in at] for at in (order[:300], order[300:])]
    train, held = (Side(x[at], y[at], own) for at, own in zip((order[:300], order[300:]), names, strict=True))
    both = len(set(names[0]) & set(names[1]))
    assert both > 30
    leaked = by_name(table(train, held, kind="numbers"))
    apart = by_name(table(train, held, kind="numbers", folds=5))
    assert (leaked["linear"].shared, apart["linear"].shared) == (both, 0)
    assert leaked["nearest neighbour"].value < 0.01 < 0.5 < apart["nearest neighbour"].value
    assert json.loads(json.dumps(leaked["linear"].record()))["shared"] == both

    everything = Side(x, y, groups, metadata={"burst": groups})
    crossed = by_name(table(everything, everything, kind="numbers", folds=5, zero=True))
    fold = np.empty(400, dtype=int)
    shuffled_names = np.random.default_rng(0).permutation(40)
    for number, name in enumerate(shuffled_names):
        fold[np.array(groups) == name] = number % 5
    for name, oracle in {
        "mean of the training targets": DummyRegressor(),
        "nearest neighbour": make_pipeline(StandardScaler(), KNeighborsRegressor(1, algorithm="brute")),
    }.items():
        said = cross_val_predict(oracle, x, y, groups=fold, cv=LeaveOneGroupOut())
        assert crossed[name].value == pytest.approx(float(((said - y) ** 2).mean()), rel=1e-9), name
    assert crossed["zero"].value == pytest.approx(float((y**2).mean()))
    assert crossed["metadata only, nearest neighbour"].value > 0.5  # the name of a burst tells of no other


def test_metadata_that_give_the_target_away_are_found_and_others_are_not() -> None:
    camera = np.where(KINDS == "fish", "left", "right").astype(object)
    camera[HELD][0] = "never seen in training"
    hour = RNG.integers(0, 24, size=150)

    def sides(**columns: np.ndarray) -> tuple[Side, Side]:
        of = [{name: column[part] for name, column in columns.items()} for part in (TRAIN, HELD)]
        return Side(X[TRAIN], KINDS[TRAIN], metadata=of[0]), Side(X[HELD], KINDS[HELD], metadata=of[1])

    told = by_name(table(*sides(camera=camera, hour=hour), kind="classes"))
    blind = by_name(table(*sides(hour=hour), kind="classes"))
    chance = told["shares of the training classes (majority)"].value
    assert told["metadata only, linear"].value <= 1 / 50 < chance
    assert blind["metadata only, linear"].value == pytest.approx(chance, abs=0.1)
    assert told["shuffled labels, linear"].value > told["linear"].value + 0.1

    ours, theirs = _rules.encoded({"camera": camera[TRAIN]}, {"camera": camera[HELD]})
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(camera[TRAIN].reshape(-1, 1))
    assert np.array_equal(ours, encoder.transform(camera[TRAIN].reshape(-1, 1)))
    assert np.array_equal(theirs, encoder.transform(camera[HELD].reshape(-1, 1)))
    assert theirs[0].tolist() == [0.0, 0.0]


def test_the_last_value_and_rules_of_ones_own_stand_in_the_table() -> None:
    before = np.roll(Y, 1, axis=0)
    held = Side(X[HELD], Y[HELD, 0], last=before[HELD, 0])
    found = by_name(table(Side(X[TRAIN], Y[TRAIN, 0]), held, kind="numbers", also={"half": Y[HELD, 0] / 2}))
    assert found["last value"].value == pytest.approx(float(((before - Y)[HELD, 0] ** 2).mean()))
    assert found["half"].value == pytest.approx(float((Y[HELD, 0] ** 2).mean()) / 4)
    kinds = np.roll(KINDS, 1)
    again = table(Side(X[TRAIN], KINDS[TRAIN]), Side(X[HELD], KINDS[HELD], last=kinds[HELD]), kind="classes")
    assert by_name(again)["last value"].value == pytest.approx(float((kinds != KINDS)[HELD].mean()))


def test_of_equally_near_rows_the_first_answers_and_close_ones_are_told_apart() -> None:
    x = np.array([[1e6], [1e6 + 1e-3], [1e6 + 2e-3], [5.0], [1e6]])
    y = np.arange(5.0)[:, None]
    said = _rules.nearest(x, y, np.array([[1e6 + 0.9e-3], [1e6], [0.0]]), standardise=False)
    assert said.ravel().tolist() == [1.0, 0.0, 3.0]


def test_labels_are_shuffled_over_all_or_within_groups() -> None:
    labels = np.arange(40)
    mixed = shuffled(labels, rng_seed=3)
    assert sorted(mixed) == labels.tolist()
    assert (mixed != labels).mean() > 0.8
    assert np.array_equal(shuffled(labels, rng_seed=3), mixed)
    within = shuffled(labels, rng_seed=3, groups=[at % 4 for at in range(40)])
    assert (within % 4 == labels % 4).all()
    assert (within != labels).any()


def test_a_value_is_shown_with_its_scale() -> None:
    rows = list(numbers().values())
    placed = place("mse", 0.5, rows)
    best = min(rows, key=lambda one: one.value)
    assert (placed.best, placed.ratio) == (best.name, pytest.approx(0.5 / best.value))
    assert set(placed.beaten) | set(placed.not_beaten) == {one.name for one in rows}
    assert all((one.value > 0.5) == (one.name in placed.beaten) for one in rows)
    high = place("accuracy", best.value, rows, better="higher")
    assert best.name in high.not_beaten
    assert high.best == max(rows, key=lambda one: one.value).name
    assert isinstance(json.loads(json.dumps(placed.record())), dict)
    assert isinstance(placed, Placed)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"train": Side(X[TRAIN], Y[HELD])}, r"train: got 100 inputs and 50 targets"),
        ({"held": Side(X[HELD, :2], Y[HELD])}, r"got 4 and 2 columns"),
        ({"held": Side(X[HELD], Y[HELD], GROUPS[:7])}, r"held.groups: got 7 groups for 50 rows"),
        ({"held": Side(X[HELD], np.full((50, 2), np.nan))}, r"held.targets: got 50 rows with NaN or Inf"),
        ({"train": Side(X[TRAIN], Y[TRAIN], metadata={"a": range(100)})}, r"metadata \['a'\] and \[\]"),
        ({"also": {"mine": np.zeros(50)}}, r"predictions of shape \(50, 1\) of 'mine', wanted \(50, 2\)"),
        ({"metric": lambda said, wanted: said}, r"a metric of shape \(50, 2\)"),
        ({"penalty": -1.0}, "penalty=-1"),
        ({"train": Side(X[TRAIN], Y[TRAIN], GROUPS)}, r"train.groups: got 50 groups for 100 rows"),
        ({"held": Side(X[HELD], Y[HELD], last=Y[:7])}, r"predictions of shape \(7, 2\) of 'last value'"),
        ({"folds": 5}, "folds=5, groups of one side or none"),
        ({"folds": 1}, "2 folds or more"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, object], text: str) -> None:
    sides = {"train": Side(X[TRAIN], Y[TRAIN]), "held": Side(X[HELD], Y[HELD])}
    with pytest.raises(StatisticsError, match=text):
        table(**{**sides, **given}, kind="numbers")  # type: ignore[arg-type]


def test_classes_have_no_zero() -> None:
    with pytest.raises(StatisticsError, match="zero=True of classes"):
        table(Side(X[TRAIN], KINDS[TRAIN]), Side(X[HELD], KINDS[HELD]), kind="classes", zero=True)
