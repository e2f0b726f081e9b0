"""Additive terms of a loss, what they depend on, and comparisons, against sums written out by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import Watched, here, watching
from torch import nn

from gradledger.core.events import Backward, Comparison
from gradledger.ledger import _graph


def last(w: Watched) -> Backward:
    return w.all(Backward)[-1]


def setup(out: int = 2) -> tuple[nn.Linear, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(3, out)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(5, 3), torch.randn(5, out)


def test_factors_signs_and_reductions_are_read_from_the_way() -> None:
    with watching() as w:
        model, _, x, y = setup()
        out = model(x)
        loss = 0.5 * F.mse_loss(out, y) - out.pow(2).sum() / 4 + 2 * (-out.mean())
        loss.backward()
    terms = {t.op: t for t in last(w).terms}
    assert {k: t.factor for k, t in terms.items()} == {"mse_loss": 0.5, "sum": -0.25, "mean": -2.0}
    assert {k: (t.reduction, t.elements, t.batch) for k, t in terms.items()} == {
        "mse_loss": ("mean", 10, 5),
        "sum": ("sum", 10, 5),
        "mean": ("mean", 10, 5),
    }
    assert all(t.has_graph and t.times == 1 and len(t.leaves) == 2 for t in terms.values())


@pytest.mark.parametrize("divisor", ["own", "guarded", "same input", "window", "another's", "number of rows"])
def test_a_masked_sum_is_a_mean_when_its_own_mask_is_counted(divisor: str) -> None:
    with watching() as w:
        model, _, _, _ = setup()
        x = torch.randn(8, 3)
        window = torch.arange(16).reshape(8, 2) % 3 > 0  # 10 of 16; 5 of the first 4 rows' 8
        mask = window[:4]
        each = model(x[:4]).pow(2)
        count = {
            "own": mask.sum(),
            "guarded": mask.sum().clamp(min=1) + 1e-8,
            "same input": (~mask).logical_not().sum(),
            "window": window.sum(),
            "another's": window[4:].sum(),
            "number of rows": torch.tensor(4.0),
        }[divisor]
        (0.5 * ((each * mask).sum() / count)).backward()
    (term,) = last(w).terms
    assert (term.reduction, term.elements, term.factor, term.divided) == ("sum", 8, 0.5, True)
    assert term.own_count == (int(mask.sum()) if divisor in ("own", "guarded", "same input") else 0)


@pytest.mark.parametrize("given", [{}, {"ignore_index": 1}])
def test_targets_that_are_ignored_do_not_count(given: dict[str, int]) -> None:
    with watching() as w:
        model, _, x, _ = setup()
        target = torch.tensor([0, 1, -100, 1, 0] if not given else [0, 1, 0, 1, 0])
        F.cross_entropy(model(x), target, **given).backward()
    (term,) = last(w).terms
    assert (term.reduction, term.elements, term.batch) == ("mean", 3 if given else 4, 5)


@pytest.mark.parametrize("spelling", ["sum of a dict", "stack", "+="])
def test_a_term_that_stands_twice_is_counted_twice(spelling: str) -> None:
    with watching() as w:
        model, _, x, y = setup()
        out = model(x)
        a, b = F.mse_loss(out, y), out.abs().mean()
        if spelling == "sum of a dict":
            loss = sum({"a": a, "b": b, "total": a}.values())
        elif spelling == "stack":
            loss = torch.stack([a, b, a]).sum()
        else:
            loss = a + b
            loss += a
        loss.backward()
    assert {t.op: t.times for t in last(w).terms} == {"mse_loss": 2, "mean": 1}


def test_an_explicit_weight_of_two_is_no_second_term() -> None:
    with watching() as w:
        model, _, x, y = setup()
        (2 * F.mse_loss(model(x), y)).backward()
    (term,) = last(w).terms
    assert (term.times, term.factor) == (1, 2.0)


def test_a_detached_term_names_the_cut_and_what_it_depends_on() -> None:
    with watching() as w:
        model, optimizer, x, y = setup()
        out = model(x)
        penalty = out.pow(2).mean().detach()
        line = here() - 1
        (F.mse_loss(out, y) + penalty).backward()
    term = next(t for t in last(w).terms if not t.has_graph)
    assert term.cut is not None
    assert (term.cut.how, term.cut.site.line) == ("detach", line)
    assert set(term.depends) == {w.tensor(p) for p in model.parameters()}
    assert optimizer is not None


def test_a_number_that_came_through_numpy_names_the_exit() -> None:
    with watching() as w:
        model, optimizer, x, y = setup()
        out = model(x)
        values = out.detach().numpy()
        line = here() - 1
        (F.mse_loss(out, y) + float(np.square(values).mean())).backward()
    term = next(t for t in last(w).terms if t.kind == "number")
    assert term.value == pytest.approx(float(np.square(values).mean()))
    assert term.cut is not None
    assert (term.cut.how, term.cut.site.line) == ("numpy", line)
    assert optimizer is not None


def test_a_penalty_of_a_gradient_without_create_graph_is_told_apart() -> None:
    def penalty(create: bool) -> Backward:
        with watching() as w:
            model, optimizer, x, y = setup(1)
            x = x.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=create)
            (F.mse_loss(model(x), y) + slope.norm(dim=1).mean()).backward()
            assert optimizer is not None
            return last(w)

    without = [t for t in penalty(False).terms if not t.has_graph]
    assert [t.penalty_of_grad for t in without] == [True]
    assert all(t.has_graph for t in penalty(True).terms)


def test_a_frozen_teacher_is_no_dependence() -> None:
    with watching() as w:
        model, optimizer, x, y = setup()
        teacher = copy.deepcopy(model).requires_grad_(False)
        (F.mse_loss(model(x), y) + teacher(x).mean()).backward()
        assert optimizer is not None
    term = next(t for t in last(w).terms if not t.has_graph)
    assert term.depends == ()


def test_a_td_target_is_recognised_by_its_form() -> None:
    with watching() as w:
        torch.manual_seed(0)
        online = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        target = copy.deepcopy(online)
        s, s2, r, done = torch.randn(6, 4), torch.randn(6, 4), torch.randn(6), torch.zeros(6)
        a = torch.randint(0, 3, (6, 1))
        q = online(s).gather(1, a).squeeze(1)
        y = r + 0.9 * (1 - done) * target(s2).max(dim=1).values
        F.smooth_l1_loss(q, y).backward()
    comparison = w.one(Comparison)
    assert comparison.op == "smooth_l1_loss"
    assert comparison.left.selection
    assert not comparison.left.bootstrap
    assert comparison.right.bootstrap
    assert comparison.right.discount == pytest.approx(0.9)
    assert [(c.module, c.graph) for c in comparison.left.calls] == [(w.module(online), True)]
    assert [(c.module, c.graph) for c in comparison.right.calls] == [(w.module(target), True)]


def test_a_detached_target_carries_no_graph_and_names_its_cut() -> None:
    with watching() as w:
        torch.manual_seed(0)
        value = nn.Linear(4, 1)
        s, s2, r = torch.randn(6, 4), torch.randn(6, 4), torch.randn(6, 1)
        F.mse_loss(value(s), r + 0.9 * value(s2).detach()).backward()
    right = w.one(Comparison).right
    assert right.bootstrap
    assert not right.has_graph
    assert [c.graph for c in right.calls] == [False]


def test_a_discount_of_each_sample_bootstraps_also_where_zeros_stand_for_the_end() -> None:
    with watching() as w:
        torch.manual_seed(0)
        value = nn.Linear(4, 1)
        s, s2, r, discount = torch.randn(6, 4), torch.randn(6, 4), torch.randn(6, 1), torch.rand(6, 1)
        with torch.no_grad():
            after = value(s2)
            y = r + torch.where(discount < 0.1, torch.zeros_like(after), discount * after)
        F.mse_loss(value(s), y).backward()
    right = w.one(Comparison).right
    assert right.bootstrap
    assert right.masked
    assert right.discount is None


def test_a_hand_written_square_is_a_comparison_too() -> None:
    with watching() as w:
        model, _, x, y = setup()
        ((model(x) - y) ** 2).mean().backward()
    comparison = w.one(Comparison)
    assert comparison.op == "difference"
    assert comparison.left.selection
    assert comparison.right.calls == ()


def test_a_value_compared_with_itself_detached() -> None:
    with watching() as w:
        model, _, x, _ = setup()
        out = model(x)
        F.mse_loss(out, out.detach()).backward()
    comparison = w.one(Comparison)
    assert comparison.right.alias_of_other
    assert comparison.value == 0.0


def test_a_repeated_and_a_covered_root_are_named() -> None:
    with watching() as w:
        model, _, x, y = setup()
        a, b = F.mse_loss(model(x), y), model(x).abs().mean()
        a.backward(retain_graph=True)
        a.backward(retain_graph=True)
        (a + b).backward()
    events = w.all(Backward)
    assert [e.repeats for e in events] == [None, 1, None]
    assert set(events[2].covers) == {1, 2}


def test_a_root_rebuilt_from_numbers_says_where_they_left() -> None:
    with watching() as w:
        model, optimizer, x, y = setup()
        losses = [F.mse_loss(model(x), y).item() for _ in range(3)]
        line = here() - 1
        torch.tensor(np.mean(losses), requires_grad=True).backward()
        assert optimizer is not None
    event = last(w)
    assert event.root_is_leaf
    assert [(c.how, c.site.line) for c in event.cuts] == [("item", line)]


def test_the_error_of_a_root_without_graph_is_kept_and_reaches_the_program() -> None:
    with watching() as w:
        model, optimizer, x, y = setup()
        with torch.no_grad():
            loss = F.mse_loss(model(x), y)
            line = here() - 1
        with pytest.raises(RuntimeError, match="does not require grad"):
            loss.backward()
        assert optimizer is not None
    event = last(w)
    assert "does not require grad" in event.raised
    assert event.no_grad_site.line == line


def test_a_graph_too_large_to_walk_is_not_taken_for_one_that_was_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_graph, "MAX_NODES", 3)
    with watching() as w:
        model, _, x, y = setup()
        out = model(x)
        for _ in range(6):
            out = out.tanh()
        F.mse_loss(out, y).backward()
    event = last(w)
    assert not event.detailed
    assert event.reached == ()
    assert set(event.leaves) == {w.tensor(p) for p in model.parameters()}
