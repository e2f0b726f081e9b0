"""What the program's own objects carry beside a state: found again by class and place, and told when it was not put
back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gradledger.ledger._carried import around, lost


class Meter:
    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self) -> Any:
        return self.value


def state_dict(net: torch.nn.Module) -> Any:
    """Stands where torch's own function would be: what is around is seen from the line that calls it."""
    return around(net)


class Trainer:
    def __init__(self, value: Any) -> None:
        self.net = torch.nn.Linear(2, 1)
        self.meter = Meter(value)

    def look(self) -> Any:
        return state_dict(self.net)


def left(was: Any, now: Any, then: Any = None) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """What a new trainer that holds `now` lacks of one that held `was`; `then`: what it is given afterwards."""
    old, new = Trainer(was), Trainer(now)
    found = list(lost(old.look(), new.look()))
    if then is not None:
        new.meter.value = then
    return [(one.carried.cls, *one.still()[:2]) for one in found]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (3, 0),
        (0.5, 0.25),
        (np.arange(3.0), np.zeros(3)),
        (torch.ones(2), torch.zeros(2)),
        ([torch.ones(2), torch.ones(1)], [torch.ones(2), torch.zeros(1)]),
        ({"a": torch.ones(2)}, {"a": torch.zeros(2)}),
    ],
    ids=["int", "float", "array", "tensor", "list of tensors", "dict of tensors"],
)
def test_a_value_that_differs_is_told_until_it_is_given_back(was: Any, now: Any) -> None:
    assert left(was, now) == [("Meter", ("value",), ())]
    assert left(was, was) == []
    assert left(was, now, then=was) == [("Meter", (), ())]


def test_a_value_that_moved_on_without_being_given_back_is_told_apart() -> None:
    assert left(3, 0, then=1) == [("Meter", (), ("value",))]
    assert left(torch.ones(2), torch.zeros(2), then=torch.full((2,), 0.5)) == [("Meter", (), ("value",))]


class Scaled(torch.nn.Module):
    def __init__(self, ready: Any) -> None:
        super().__init__()
        self.ready = ready

    def begin(self) -> None:
        self.ready = True


@pytest.mark.parametrize("make", [bool, torch.tensor], ids=["plain", "tensor"])
def test_a_flag_of_a_module_that_was_put_on_again_is_told_and_one_that_was_given_back_too(make: Any) -> None:
    old, new = Scaled(make(True)), Scaled(make(False))
    (one,) = lost(state_dict(old), state_dict(new))
    assert one.still() == (("ready",), (), ())
    new.ready = make(True)  # by whom, the values do not say
    assert one.still() == ((), (), ("ready",))
    assert list(lost(state_dict(old), state_dict(Scaled(make(True))))) == []
    (off,) = lost(state_dict(Scaled(make(False))), state_dict(again := Scaled(make(True))))
    again.ready = make(False)
    assert off.still() == ((), (), ())  # on in a new one and off in the old: nothing is done once


@pytest.mark.parametrize(
    "made",
    [lambda: torch.Generator().manual_seed(4), lambda: np.random.default_rng(4), lambda: random.Random(4)],
    ids=["torch", "numpy", "python"],
)
def test_a_generator_that_begins_again_is_told(made: Callable[[], Any]) -> None:
    def drawn() -> Any:
        one = made()
        for _ in range(3):
            torch.rand(2, generator=one) if isinstance(one, torch.Generator) else one.random()
        return one

    assert left(drawn(), made()) == [("Meter", ("value",), ())]
    assert left(drawn(), drawn()) == []
    assert left(drawn(), made(), then=drawn()) == [("Meter", (), ())]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("a name", "another"),
        ({"a": 1}, {"a": 2}),
        ([1, 2], [1, 3]),
        ([torch.ones(2), 1], [torch.zeros(2), 1]),
        (torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)),
    ],
    ids=["str", "dict of numbers", "list of numbers", "list of both", "leaf"],
)
def test_what_is_no_number_nor_tensor_is_not_followed(was: Any, now: Any) -> None:
    assert left(was, now) == []


def test_the_same_object_is_not_compared_with_itself() -> None:
    one = Trainer(1)
    before = one.look()
    one.meter.value = 2
    assert list(lost(before, one.look())) == []
