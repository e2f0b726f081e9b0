"""The loop is the canonical order and nothing else: equal to the hand-written one to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradledger.sweep import Sweep
from gradledger.train import LoopError, PlainBackward, Shadow, steps
from gradledger.train.loop import clear, clip, samples_of


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


def data(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 3, generator=rng, dtype=dtype), torch.randn(n, 1, generator=rng, dtype=dtype)) for n in sizes
    ]


ENGINES = {"plain": PlainBackward, "sweep": lambda model, loss: Sweep(model, loss)}


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_the_loop_that_people_write(engine: str) -> None:
    mine, theirs = net(), net()
    ema, other_ema = Shadow(mine), Shadow(theirs)
    first, second = torch.optim.Adam(mine.parameters(), 0.01), torch.optim.Adam(theirs.parameters(), 0.01)
    one = torch.optim.lr_scheduler.StepLR(first, 3, 0.5)
    two = torch.optim.lr_scheduler.StepLR(second, 3, 0.5)
    said = steps(
        ENGINES[engine](mine, nn.functional.mse_loss),
        first,
        data((4,) * 8),
        limit=0.1,
        scheduler=one,
        after_step=[lambda: ema.blend(0.1)],
    )
    for number, ((x, y), told) in enumerate(zip(data((4,) * 8), said, strict=True), 1):
        second.zero_grad()
        loss = nn.functional.mse_loss(theirs(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        second.step()
        two.step()
        other_ema.blend(0.1)
        assert (told.number, told.samples, told.taken) == (number, 4, True)
        assert torch.equal(told.loss, loss.detach())
        assert told.norm is not None
        assert torch.equal(told.norm, norm)
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    assert first.param_groups[0]["lr"] == second.param_groups[0]["lr"] == 0.01 * 0.25
    assert all(torch.equal(a, b) for a, b in zip(ema.model.parameters(), other_ema.model.parameters(), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_micro_batches_weigh_by_their_samples(engine: str) -> None:
    """Against one backward over everything, float64; the last step takes what is left."""
    mine, theirs = net(torch.float64), net(torch.float64)
    first, second = torch.optim.SGD(mine.parameters(), 0.1), torch.optim.SGD(theirs.parameters(), 0.1)
    batches = data((5, 5, 2, 4, 3), torch.float64)
    told = list(steps(ENGINES[engine](mine, nn.functional.mse_loss), first, batches, accumulate=3))
    for part, one in zip((batches[:3], batches[3:]), told, strict=True):
        second.zero_grad()
        loss = nn.functional.mse_loss(theirs(torch.cat([x for x, _ in part])), torch.cat([y for _, y in part]))
        loss.backward()
        second.step()
        assert float(one.loss) == pytest.approx(float(loss.detach()), rel=1e-12)
    assert [one.samples for one in told] == [12, 7]
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_gradients_can_be_looked_at_between_steps_and_are_cleared_before_the_next() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    seen = []
    for _ in steps(PlainBackward(model, nn.functional.mse_loss), optimizer, data((4, 4))):
        assert model[0].weight.grad is not None
        seen.append(model[0].weight.grad.clone())
    (x, y) = data((4, 4))[1]
    clear(optimizer)
    assert model[0].weight.grad is None
    nn.functional.mse_loss(model(x), y).backward()
    assert torch.equal(seen[1], model[0].weight.grad)


def poisoned() -> list[tuple[Tensor, Tensor]]:
    batches = data((4, 4, 4))
    batches[1][0][0, 0] = torch.nan
    return batches


def test_gradients_that_are_not_finite_are_an_error_by_default() -> None:
    model = net()
    loop = steps(
        PlainBackward(model, nn.functional.mse_loss), torch.optim.SGD(model.parameters(), 0.1), poisoned(), limit=1.0
    )
    next(loop)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(LoopError, match=r"a gradient norm of nan at step 2 \(loss nan\)"):
        next(loop)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_skipping_leaves_out_the_step_its_schedule_and_what_follows_it() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    calls: list[int] = []
    told = list(
        steps(
            PlainBackward(model, nn.functional.mse_loss),
            optimizer,
            poisoned(),
            limit=1.0,
            scheduler=scheduler,
            non_finite="skip",
            after_step=[lambda: calls.append(1)],
        )
    )
    assert [one.taken for one in told] == [True, False, True]
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.25
    assert len(calls) == 2
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_scaler_scales_and_the_clip_sees_what_is_not_scaled(engine: str) -> None:
    mine, theirs = net(), net()
    first, second = torch.optim.SGD(mine.parameters(), 0.1), torch.optim.SGD(theirs.parameters(), 0.1)
    one = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    two = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    batches = poisoned() + data((4, 4))
    taken = []
    loop = steps(ENGINES[engine](mine, nn.functional.mse_loss), first, batches, limit=0.05, scaler=one)
    for (x, y), told in zip(batches, loop, strict=True):
        second.zero_grad()
        two.scale(nn.functional.mse_loss(theirs(x), y)).backward()
        two.unscale_(second)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        two.step(second)
        two.update()
        taken.append(told.taken)
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert taken == [True, False, True, True, True]
    assert one.state_dict() == two.state_dict()


def test_leaving_early_leaves_the_stream_where_it_is() -> None:
    model = net()
    stream: Iterator[Any] = iter(data((4,) * 5))
    for told in steps(PlainBackward(model, nn.functional.mse_loss), torch.optim.SGD(model.parameters(), 0.1), stream):
        if told.number == 2:
            break
    assert len(list(stream)) == 3


def test_the_clip_is_the_one_of_torch() -> None:
    model = net()
    x, y = data((4,))[0]
    nn.functional.mse_loss(model(x), y).backward()
    kept = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    norm = clip(torch.optim.SGD(model.parameters(), 0.1), 0.3)
    clipped = [p.grad for p in model.parameters() if p.grad is not None]
    for parameter, gradient in zip(model.parameters(), kept, strict=True):
        parameter.grad = gradient
    assert torch.equal(norm, nn.utils.clip_grad_norm_(model.parameters(), 0.3))
    assert float(norm) > 0.3
    assert all(torch.equal(a, p.grad) for a, p in zip(clipped, model.parameters(), strict=True))  # type: ignore[arg-type]


def test_samples_of_nested_batches() -> None:
    assert samples_of({"scale": torch.ones(()), "parts": [torch.ones(7, 2), torch.ones(3)]}) == 7
    with pytest.raises(LoopError, match="pass samples="):
        samples_of({"a": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0.0}, "limit=0.0"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"non_finite": "ignore"}, "non_finite='ignore'"),
        ({"non_finite": "skip"}, "without a limit"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    model = net()
    with pytest.raises(LoopError, match=message):
        next(
            steps(
                PlainBackward(model, nn.functional.mse_loss),
                torch.optim.SGD(model.parameters(), 0.1),
                data((4,)),
                **options,
            )
        )
