"""What a network is asked, compared by value with what it was trained on before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from harness import Watched, watching
from torch.utils.data import DataLoader, SequentialSampler, SubsetRandomSampler, TensorDataset

from gradledger.core.events import BatchesCompared, RowsMet, RowsShared, TargetsExchanged
from gradledger.ledger import _regress
from gradledger.ledger._related import related
from gradledger.ledger.probes import backward, batches, calls, fits, loaders, met, splits

Table = np.ndarray


def train(net: torch.nn.Module, x: Table, y: Table, epochs: int = 1, size: int = 20) -> None:
    """As a program does whose split torch never sees: rows are picked with numpy."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(epochs):
        for rows in np.array_split(np.random.default_rng(1).permutation(len(x)), len(x) // size):
            loss = torch.nn.functional.mse_loss(net(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def ask(net: torch.nn.Module, x: Table) -> None:
    with torch.no_grad():
        net(torch.from_numpy(x))


def met_after(body: Callable[[torch.nn.Module, Watched], None], columns: int = 6) -> list[RowsMet]:
    torch.manual_seed(0)
    net = torch.nn.Linear(columns, 1)
    with watching(calls, backward, met) as watch:
        body(net, watch)
    return watch.all(RowsMet)


def tables(rows: int, columns: int = 6) -> tuple[Table, Table]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(rows, columns)).astype("f4"), draw.normal(size=(rows, 1)).astype("f4")


def test_rows_that_were_trained_on_and_asked_for() -> None:
    x, y = tables(300)

    def body(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x[:200], y[:200])
        ask(net, x[150:250])

    (event,) = met_after(body)
    assert (event.how, event.held, event.shared, event.repeated) == ("same", 100, 0.5, 0.0)
    assert event.rows == 200
    assert event.site.function == "ask"
    assert event.train_site.function == "train"


@pytest.mark.parametrize("epochs", [1, 9])
def test_a_row_counts_once_however_many_the_epochs(epochs: int) -> None:
    x, y = tables(100)

    def body(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x, y, epochs, size=50)
        ask(net, x[40:60])

    (event,) = met_after(body)
    assert (event.how, event.held, event.shared) == ("same", 20, 1.0)


def test_two_questions_on_one_line_are_two() -> None:
    """The rows of training say nothing; those beside them, which are their relatives, are told to stand beside them."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(30, 6))
    x = (centres[:, None] + 0.001 * draw.normal(size=(30, 10, 6))).reshape(300, 6).astype("f4")
    y = draw.normal(size=(300, 1)).astype("f4")
    order = draw.permutation(300)

    def body(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x[order[:240]], y[order[:240]])
        assert (ask(net, x[order[:240]]), ask(net, x[order[240:]])) == (None, None)

    (event,) = met_after(body)
    assert (event.how, event.held, event.beside) == ("groups", 60, True)


def test_rows_of_its_own_are_no_news() -> None:
    x, y = tables(300)

    def body(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x[:200], y[:200])
        ask(net, x[200:])

    assert met_after(body) == []


def test_only_what_was_trained_on_before_counts_and_only_by_the_same_network() -> None:
    x, y = tables(300)

    def before(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x[:100], y[:100])
        ask(net, x[200:])
        train(net, x[200:], y[200:])

    def another(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x[:200], y[:200])
        other = torch.nn.Linear(6, 1)
        train(other, x[200:], y[200:])
        ask(other, x[:100])

    assert met_after(before) == []
    assert met_after(another) == []


def test_targets_of_a_loss_are_no_evaluation() -> None:
    """A bootstrap asks for the values of rows that are trained on."""
    x, _ = tables(200)

    def body(net: torch.nn.Module, watch: Watched) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for first in range(0, 200, 20):
            seen = torch.from_numpy(x[first : first + 20])
            with torch.no_grad():
                wanted = 0.9 * net(seen)
            loss = torch.nn.functional.mse_loss(net(seen), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert met_after(body) == []


@pytest.mark.parametrize("apart", [False, True])
def test_groups_by_value(apart: bool) -> None:
    draw = np.random.default_rng(2)
    group = np.repeat(np.arange(30), 10)
    x = (draw.normal(size=(30, 8))[group] + 0.02 * draw.normal(size=(300, 8))).astype("f4")
    y = draw.normal(size=(30, 1))[group].astype("f4")
    held = np.isin(group, [1, 5, 9, 20, 22, 28]) if apart else draw.permutation(300) < 60

    def body(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x[~held], y[~held])
        ask(net, x[held])

    (event,) = met_after(body, 8)
    assert (event.how, event.groups, event.shared) == ("groups", 30, 0.0 if apart else 1.0)


def test_groups_that_are_the_classes_of_the_targets_are_none() -> None:
    draw = np.random.default_rng(2)
    group = np.repeat(np.arange(12), 25)
    x = (3 * draw.normal(size=(12, 8))[group] + 0.02 * draw.normal(size=(300, 8))).astype("f4")
    held = draw.permutation(300) < 60

    def body(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x[~held], group[~held, None].astype("f4"))
        ask(net, x[held])

    assert met_after(body, 8) == []


def test_windows_over_one_series_channels_first() -> None:
    draw = np.random.default_rng(3)
    series = np.cumsum(draw.normal(size=(2, 600)), 1).astype("f4")
    items = np.stack([series[:, s : s + 24] for s in range(0, 570, 3)])
    rows = draw.permutation(len(items))
    found = related(items, [draw.normal(size=(len(items), 1))], np.sort(rows[:140]), np.sort(rows[140:]))
    assert found is not None
    assert (found.how, found.shared) == ("windows", 1.0)
    apart = related(items, [], np.arange(140), np.arange(150, len(items)))
    assert apart is None or apart.how != "windows"


def test_tokens_count_as_the_same_row_only_where_there_are_many_words() -> None:
    draw = np.random.default_rng(4)
    assert met._telling(draw.integers(0, 30, (300, 10)))
    assert not met._telling(draw.integers(0, 2, (300, 6)))
    assert met._telling(draw.normal(size=(300, 3)))
    assert not met._telling(np.round(draw.normal(size=(300, 3))))


def test_rows_of_a_small_language_meet_by_chance() -> None:
    draw = np.random.default_rng(7)
    few = [draw.integers(0, 30, (200, 10))[draw.integers(0, 200, 32)] for _ in range(30)]
    many = [draw.integers(0, 30, (32, 10)) for _ in range(30)]
    assert met._by_chance(few, 200) == pytest.approx(1.0, rel=0.3), "two hundred sentences, all of them seen"
    assert met._by_chance(many, 960) == pytest.approx(960 * 3 / (30 * 496))


def test_rows_trained_on_after_the_question_are_no_relatives() -> None:
    x, y = tables(300)

    def body(net: torch.nn.Module, watch: Watched) -> None:
        train(net, x[:100], y[:100])
        ask(net, x[200:240])
        train(net, x[200:], y[200:])
        ask(net, x[100:140])

    assert met_after(body) == []


# ------------------------------------------------------------------ targets that are exchanged


def test_targets_exchanged_in_each_pass() -> None:
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(200, 3)), draw.normal(size=(200, 1))
    orders = [draw.permutation(200) for _ in range(3)]
    again, apart = _regress.exchanged(np.concatenate([x[o] for o in orders]), np.concatenate([y, y, y]))
    assert again == 400
    assert apart == pytest.approx(1.0, abs=0.15), "as far apart as any two rows"
    kept = _regress.exchanged(np.concatenate([x[o] for o in orders]), np.concatenate([y[o] for o in orders]))
    assert kept == (0, 0.0)


def test_targets_that_may_well_differ() -> None:
    draw = np.random.default_rng(6)
    x, y = draw.normal(size=(200, 3)), draw.normal(size=(200, 1))
    twice = np.concatenate([x, x])
    assert _regress.exchanged(twice, draw.normal(size=(400, 1))) == (0, 0.0), "noise that is drawn anew"
    pairs = np.concatenate([y, y[::-1]])
    both = _regress.exchanged(np.concatenate([twice, twice]), np.concatenate([pairs, pairs]))
    assert both == (0, 0.0), "a row with two targets for good"
    few = draw.integers(0, 4, (400, 1)).astype(float)
    assert _regress.exchanged(few, np.concatenate([y, y[::-1]])) == (0, 0.0), "a few states over and over"


def test_exchanged_targets_are_told_by_the_probe() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(100, 3), torch.randn(100, 1)
    with watching(calls, backward, fits) as watch:
        for _ in range(4):
            order = torch.randperm(100)
            for first in range(0, 100, 25):
                loss = torch.nn.functional.mse_loss(net(x[order[first : first + 25]]), y[first : first + 25])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    event = watch.one(TargetsExchanged)
    assert event.apart > 0.7
    assert event.again >= 200


# ------------------------------------------------------------------ samplers


def test_a_sampler_says_which_rows_are_trained_on() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(120, 4), torch.randn(120, 1)
    rows = torch.randperm(120).tolist()
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for sampler in (SubsetRandomSampler(rows[:90]), rows[:90]):
        with watching(calls, backward, loaders, splits) as watch:
            data = TensorDataset(x, y)
            held = torch.utils.data.Subset(data, rows[90:])
            for seen, wanted in DataLoader(data, batch_size=30, sampler=sampler):
                loss = (net(seen) - wanted).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                for seen, _ in DataLoader(held, batch_size=30):
                    net(seen)
        assert [e for e in watch.all(RowsShared) if e.how == "same"] == []


class Window(torch.utils.data.Sampler[int]):
    """Shuffles within a window."""

    def __init__(self, count: int, width: int) -> None:
        self.count, self.width = count, width

    def __len__(self) -> int:
        return self.count

    def __iter__(self):  # type: ignore[no-untyped-def]
        for first in range(0, self.count, self.width):
            yield from (first + torch.randperm(min(self.width, self.count - first))).tolist()


@pytest.mark.parametrize("width", [16, 320])
def test_a_sampler_of_ones_own_is_looked_at(width: int) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.linspace(0, 1, 320)[:, None], torch.zeros(320, 1))
    with watching(loaders, batches) as watch:
        for _ in DataLoader(data, batch_size=16, sampler=Window(320, width)):
            pass
        for _ in DataLoader(data, batch_size=16, sampler=list(range(320))):
            pass
        for _ in DataLoader(data, batch_size=16, sampler=SequentialSampler(data)):
            pass
    found = watch.all(BatchesCompared)
    assert [e.between > 0.9 for e in found] == [True] * (3 if width == 16 else 2)
    if width == 16:
        assert found[0].order_site.function == "__iter__"
        assert found[0].order_site.file == __file__
