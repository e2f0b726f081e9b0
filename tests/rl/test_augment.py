"""Shifted states: each against a picture moved by hand, and what the shifts leave alone."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from gradledger.rl.augment import random_shift
from gradledger.rl.errors import ReplayError
from gradledger.rl.transition import Batch


def pictures(batch: int = 64, frames: int = 3, height: int = 9, width: int = 7) -> torch.Tensor:
    return torch.randint(0, 256, (batch, frames, height, width), dtype=torch.uint8)


def moved(picture: np.ndarray, down: int, right: int) -> np.ndarray:
    """(S, H, W), every pixel taken from where it came from, the nearest one where that is outside."""
    height, width = picture.shape[-2:]
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    return picture[:, rows[:, None], columns]


@pytest.mark.parametrize("most", [1, 2, 4])
def test_every_state_is_its_picture_moved_as_a_whole_and_every_move_comes(most: int) -> None:
    states = pictures(400)
    found = random_shift(states, most, np.random.default_rng(0)).numpy()
    steps = range(-most, most + 1)
    seen = set()
    for before, after in zip(states.numpy(), found, strict=True):
        fits = [(down, right) for down in steps for right in steps if np.array_equal(moved(before, down, right), after)]
        assert len(fits) == 1
        seen.update(fits)
    assert len(seen) > 0.9 * len(steps) ** 2
    assert {down for down, _ in seen} == {right for _, right in seen} == set(steps)


def test_nothing_is_drawn_without_a_shift_and_two_numbers_a_state_with_one() -> None:
    states, rng = pictures(5), np.random.default_rng(1)
    assert random_shift(states, 0, rng) is states
    assert rng.bit_generator.state == np.random.default_rng(1).bit_generator.state
    one = random_shift(states, 2, rng)
    assert torch.equal(one, random_shift(states, 2, np.random.default_rng(1)))
    assert one.dtype == torch.uint8
    assert one.is_contiguous()
    other = np.random.default_rng(1)
    other.integers(0, 5, size=(5, 2))
    assert rng.random() == other.random()


def test_one_frame_alone_and_other_dtypes_move_too() -> None:
    frame = torch.arange(20.0).reshape(1, 4, 5)
    shifts = {tuple(random_shift(frame, 1, np.random.default_rng(seed)).flatten().tolist()) for seed in range(60)}
    assert shifts == {tuple(moved(frame.numpy(), d, r).flatten().tolist()) for d in (-1, 0, 1) for r in (-1, 0, 1)}


@pytest.mark.parametrize(("shape", "most"), [((2, 3, 9, 7), 7), ((2, 3, 9, 7), -1), ((2, 9), 1)])
def test_a_shift_across_the_picture_and_states_that_are_none_are_refused(shape: tuple[int, ...], most: int) -> None:
    with pytest.raises(ReplayError, match=rf"got a shift of {most} for states of shape"):
        random_shift(torch.zeros(shape), most, np.random.default_rng(0))


def test_a_shifted_batch_keeps_all_but_its_states_and_moves_the_two_apart() -> None:
    rest = {name: torch.arange(40) for name in (field.name for field in fields(Batch))}
    batch = Batch(**{**rest, "state": pictures(40), "next_state": pictures(40)})
    same = replace(batch, next_state=batch.state).shifted(2, np.random.default_rng(1))
    assert not torch.equal(same.state, same.next_state)  # moved apart, though they were equal
    shifted = batch.shifted(2, np.random.default_rng(1))
    for name, value in vars(batch).items():
        assert torch.equal(getattr(shifted, name), value) == (name not in ("state", "next_state"))
