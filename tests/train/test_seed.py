"""Random streams: what is captured comes back, each stream by itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradledger.train import seed
from gradledger.train.seed import SeedError

OWN = {
    kind.__name__: np.random.Generator(kind(5))
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937)
}
TORCH = {"loader": torch.Generator().manual_seed(3)}

# Odd numbers of Gaussians: half of a pair stays cached in three of these streams.
STREAMS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "python gauss": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.random()),
    "numpy gauss": lambda: float(np.random.standard_normal()),
    "torch": lambda: float(torch.rand(())),
    "torch gauss": lambda: float(torch.randn(())),
    "a generator of torch": lambda: float(torch.rand((), generator=TORCH["loader"])),
    **{name: own.random for name, own in OWN.items()},
    **{f"{name}, 32 bits": (lambda own=own: float(own.integers(0, 99, dtype=np.int32))) for name, own in OWN.items()},
}


def draw() -> dict[str, list[float]]:
    return {name: [stream() for _ in range(3)] for name, stream in STREAMS.items()}


def test_every_stream_goes_on_where_it_was_through_json_and_tensors() -> None:
    draw()
    tensors, facts = seed.capture(OWN, TORCH)
    facts = json.loads(json.dumps(facts, allow_nan=False))
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    after = draw()
    assert draw() != after
    for _ in range(2):
        seed.restore(tensors, facts, OWN, TORCH)
        assert draw() == after


def test_one_seed_decides_all_global_streams() -> None:
    names = [name for name in STREAMS if name.startswith(("python", "numpy", "torch"))]

    def after(rng_seed: int) -> dict[str, float]:
        seed.seed_all(rng_seed)
        return {name: STREAMS[name]() for name in names}

    assert after(1) == after(1)
    assert all(value != after(2)[name] for name, value in after(1).items())


def test_streams_of_one_run_are_unrelated_and_do_not_move_with_the_machine() -> None:
    assert seed.derived(0, "actions") == 5_899_313_069_948_600_840
    assert len({seed.derived(s, name) for s in range(50) for name in ("replay", "actions")}) == 100
    one, two = seed.generator(0, "replay"), seed.generator(0, "actions")
    assert abs(np.corrcoef(one.random(2000), two.random(2000))[0, 1]) < 0.1
    assert seed.generator(3, "replay").random() == seed.generator(3, "replay").random()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"replay": np.random.default_rng(0)}, r"got generators \['replay'\] here, and \['actions'\] saved"),
        ({"actions": np.random.Generator(np.random.Philox(0))}, "generator actions is a Philox here, and was a PCG64"),
    ],
)
def test_other_streams_are_refused_and_nothing_moves(own: dict[str, np.random.Generator], message: str) -> None:
    tensors, facts = seed.capture({"actions": np.random.default_rng(0)})
    random.random()
    state = random.getstate()
    with pytest.raises(SeedError, match=message):
        seed.restore(tensors, facts, own)
    assert random.getstate() == state


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(SeedError, match="rng_seed=-1"):
        seed.seed_all(-1)
