"""Rows followed from tables to calls; whether rows of both sides belong together; functions between tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from harness import here, watching
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from gradledger.core.events import FittedOnAll, RowsShared, TargetExplained
from gradledger.ledger import _regress
from gradledger.ledger._related import Related, fitted_together, related
from gradledger.ledger.probes import backward, calls, fits, splits

DRAW = np.random.default_rng(0)


def halves(count: int, share: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    order = DRAW.permutation(count)
    return np.sort(order[: int(share * count)]), np.sort(order[int(share * count) :])


def grouped(groups: int = 30, each: int = 10, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    group = np.repeat(np.arange(groups), each)
    return DRAW.normal(size=(groups, 12))[group] + noise * DRAW.normal(size=(groups * each, 12)), group


def test_groups_on_both_sides_and_on_one() -> None:
    x, group = grouped()
    answer = DRAW.normal(size=(30, 1))[group]
    found = related(x, [answer, group], *halves(300))
    assert found is not None
    assert (found.how, found.groups, found.shared) == ("groups", 30, 1.0)
    held = np.isin(group, [3, 8, 21, 27])
    apart = related(x, [answer], np.flatnonzero(~held), np.flatnonzero(held))
    assert apart is not None
    assert apart.shared == 0.0
    shuffled = DRAW.permutation(300)
    again = related(x[shuffled], [answer[shuffled]], *halves(300))
    assert again is not None
    assert again.shared == 1.0, "the stored order does not matter"


def test_groups_that_are_the_classes() -> None:
    x, group = grouped(10, 40)
    one_hot = np.eye(10)[group]
    for labels in ([group], [one_hot], [group, DRAW.normal(size=400)], []):
        assert related(x, labels, *halves(400)) is None
    found = related(x, [group % 2], *halves(400))
    assert isinstance(found, Related), "ten groups of two classes are more than classes"


@pytest.mark.parametrize("dimensions", [1, 2, 3, 8, 40])
def test_independent_rows_are_no_relatives(dimensions: int) -> None:
    x = DRAW.normal(size=(800, dimensions))
    assert related(x, [x[:, :1]], *halves(800)) is None
    assert related(DRAW.random((800, dimensions)), [x[:, :1]], *halves(800)) is None
    assert related(np.sort(x, axis=0), [x[:, :1]], *halves(800)) is None


def test_overlapping_windows_and_windows_apart() -> None:
    series = DRAW.normal(size=900).cumsum()
    windows = np.stack([series[i : i + 16] for i in range(800)])
    found = related(windows, [windows[:, :1]], *halves(800))
    assert found is not None
    assert (found.how, found.shared) == ("windows", 1.0)
    in_time = related(windows, [windows[:, :1]], np.arange(600), np.arange(620, 800))
    assert in_time is None or in_time.shared < 0.1
    assert related(windows[::16], [windows[::16, :1]], *halves(50, 0.6)) is None


def test_values_scaled_by_statistics_of_both() -> None:
    raw = DRAW.normal(size=(300, 4)) * 3 + 1
    whole = (raw - raw.mean(0)) / raw.std(0)
    assert fitted_together(whole[:240], [whole[240:]]) == ("standardised", 300)
    own = (raw - raw[:240].mean(0)) / raw[:240].std(0)
    assert fitted_together(own[:240], [own[240:]]) == ("", 0)
    spread = (raw - raw.min(0)) / (raw.max(0) - raw.min(0))
    lost = np.argsort(raw[:, 0])
    assert fitted_together(spread[lost[:240]], [spread[lost[240:]]]) == ("scaled to a range", 300)
    pixels = np.rint(255 * spread) / 255
    words = np.eye(300)[lost]
    for given in (pixels, words):
        assert fitted_together(given[lost[:240]], [given[lost[240:]]]) == ("", 0)


def train(x: torch.Tensor, y: torch.Tensor, net: torch.nn.Module, held: torch.Tensor | None = None) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(2):
        for rows in torch.randperm(len(x)).split(40):
            loss = torch.nn.functional.mse_loss(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
    if held is not None:
        with torch.no_grad():
            net(held)


def test_a_statistic_is_followed_from_the_table_to_both_calls() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    with watching(calls, backward, splits) as watch:
        raw = torch.randn(200, 4)
        middle = raw.mean(0)
        line = here() - 1
        x = (raw - middle) * 2.0
        first, last = x[:160], x[160:]
        train(first, first[:, :1], net, last)
    events = watch.all(FittedOnAll)
    assert {(e.op, e.site.line, e.rows, e.held, e.shared) for e in events} == {("mean", line, 200, 40, 1.0)}
    assert events[-1].evaluated


def test_a_statistic_of_the_training_rows_is_none_of_both() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    with watching(calls, backward, splits) as watch:
        raw = torch.randn(200, 4)
        first, last = raw[:160], raw[160:]
        x, held = first - first.mean(0), last - first.mean(0)
        train(x, x[:, :1], net, held)
    assert watch.all(FittedOnAll) == []
    assert [(e.how, e.shared, e.rows, e.held) for e in watch.all(RowsShared)] == []


def test_subsets_that_share_groups_until_the_held_out_one_is_trained_on() -> None:
    torch.manual_seed(0)
    table, group = grouped()
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(group % 3, dtype=torch.float32)[:, None]
    net = torch.nn.Linear(12, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with watching(calls, backward, splits) as watch:
        data = TensorDataset(x, y)
        order = torch.randperm(300).tolist()
        folds = [Subset(data, order[:240]), Subset(data, order[240:])]
        for fold in folds:
            for seen, wanted in DataLoader(fold, batch_size=40):
                loss = (net(seen) - wanted).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
        events = watch.all(RowsShared)
    assert (events[0].how, events[0].shared, events[0].trained) == ("groups", 1.0, False)
    assert events[-1].trained, "cross-validation trains on every part in turn"


def test_shares_explained_agree_with_what_the_tables_were_made_of() -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(360, 2))
    y = np.c_[np.sin(x[:, 0]), x[:, 1] + 0.5 * draw.normal(size=360), draw.normal(size=360)]
    a, b = _regress.scaled(x), _regress.scaled(y)
    smooth, noisy, nothing = _regress.explained(a, b)
    assert smooth > 0.99
    assert noisy == pytest.approx(1 / 1.25, abs=0.08)
    assert nothing < 0.1
    assert _regress.explained(a[:, :0], b) == (0.0, 0.0, 0.0)
    apart = _regress.near(_regress.scaled(draw.random((1000, 1))), draw.normal(size=(1000, 1)))
    assert apart.close
    assert apart.apart[0] == pytest.approx(1.0, abs=0.35)


@pytest.mark.parametrize("many", [True, False])
def test_targets_that_share_an_input(many: bool) -> None:
    torch.manual_seed(0)
    y = torch.rand(320, 2) * 2 - 1
    x = torch.cat([y.sum(1, keepdim=True), y[:, :1] if not many else y.sum(1, keepdim=True).tanh()], 1)
    net = torch.nn.Linear(2, 2)
    with watching(calls, backward, fits) as watch:
        train(x, y, net)
        for call in watch.session.at_end[:1]:
            call()
        events = watch.all(TargetExplained)
    if not many:
        assert events == []
        return
    (event,) = events
    assert (event.rows, event.inputs, event.targets) == (320, 2, 2)
    # of two uniform numbers, half of the variance remains when their sum is known
    assert event.explained == pytest.approx((0.5, 0.5), abs=0.12)
    assert event.inverse > 0.99
    assert event.without == 0.0


@dataclass
class Stored(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A data class is no key of a dictionary, and asks its arrays whether it equals another."""

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def test_data_sets_of_every_kind_are_asked_without_harm() -> None:
    """The harness asserts that no probe failed."""
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    with watching(splits, calls, backward):
        for data in (Stored(x, y), [(a, b) for a, b in zip(x, y, strict=True)], TensorDataset(x, y)):
            for part in (data, Subset(data, range(32))):  # type: ignore[arg-type]
                assert sum(len(batch[0]) for batch in DataLoader(part, batch_size=16)) in (64, 32)  # type: ignore[arg-type]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("first", [False, True])
def test_windows_over_series_of_several_channels(channels: int, first: bool) -> None:
    """[N, T, channels] as well as [N, channels, T]; windows that do not overlap share no numbers."""
    rng = np.random.default_rng(0)
    series = rng.standard_normal((2000, channels)).astype(np.float32)
    for hop, shared in ((8, True), (32, False)):
        windows = np.stack([series[i : i + 32] for i in range(0, 1900, hop)])
        values = windows.transpose(0, 2, 1) if first else windows
        order = rng.permutation(len(values))
        held, train = np.sort(order[: len(order) // 4]), np.sort(order[len(order) // 4 :])
        found = related(np.ascontiguousarray(values), [np.zeros(len(values))], train, held, stored=False)
        assert (found is not None and found.how == "windows" and found.shared > 0.9) == shared
