"""Every random stream of a run: seeded together, captured together, restored together, without pickle."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradledger.core.errors import GradledgerError

Json = Any


class SeedError(GradledgerError):
    """A random state cannot be restored here."""

    slug = "seed"


def seed_all(rng_seed: int) -> None:
    """Seed the global streams: python's `random`, numpy's legacy one, torch on the CPU and on every device.

    Each gets a seed of its own, derived from `rng_seed` (0 or above), so that no two streams are the same numbers.
    """
    if rng_seed < 0:
        raise SeedError(
            got=f"rng_seed={rng_seed}",
            wanted="a whole number of at least 0",
            where="train.seed.seed_all",
            next_step="pass for example 0",
        )
    random.seed(derived(rng_seed, "python"))
    np.random.seed(derived(rng_seed, "numpy") % 2**32)
    torch.manual_seed(derived(rng_seed, "torch"))


def derived(rng_seed: int, name: str) -> int:
    """A seed of 63 bits for the stream `name`: equal for equal arguments on every machine, unrelated for others."""
    digest = hashlib.sha256(f"{rng_seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(rng_seed: int, name: str) -> np.random.Generator:
    """A numpy generator of the run's own for the stream `name` (PCG64)."""
    return np.random.Generator(np.random.PCG64(derived(rng_seed, name)))


def capture(
    generators: Mapping[str, np.random.Generator] | None = None,
    torch_generators: Mapping[str, torch.Generator] | None = None,
) -> tuple[dict[str, torch.Tensor], dict[str, Json]]:
    """The state of the global streams and of the named generators, as (tensors, JSON facts).

    Covers python's `random` and numpy's legacy stream with their cached Gaussians, torch on the CPU and on every CUDA
    device, MPS where it is built. Each rank of a distributed run captures its own.
    """
    version, internal, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    facts: dict[str, Json] = {
        "python": {"version": version, "gauss": _exact(gauss)},
        "numpy": {
            "kind": kind,
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": _exact(float(cached)),
        },
        "generators": {name: _plain(own.bit_generator.state) for name, own in (generators or {}).items()},
        "devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    }
    tensors = {
        "python": torch.tensor(internal, dtype=torch.int64),
        "numpy": torch.from_numpy(np.asarray(key).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    for index in range(facts["devices"]):
        tensors[f"cuda.{index}"] = torch.cuda.get_rng_state(index)
    if torch.backends.mps.is_available():
        tensors["mps"] = torch.mps.get_rng_state()
    for name, one in (torch_generators or {}).items():
        tensors[f"torch.{name}"] = one.get_state()
    return tensors, facts


def restore(
    tensors: Mapping[str, torch.Tensor],
    facts: Mapping[str, Json],
    generators: Mapping[str, np.random.Generator] | None = None,
    torch_generators: Mapping[str, torch.Generator] | None = None,
) -> None:
    """Put back what `capture` returned; the named generators must be the ones that were captured.

    Raises:
        SeedError: other names, fewer devices than the state holds, or a bit generator of another kind. Nothing is
            changed then.
    """
    generators, torch_generators = generators or {}, torch_generators or {}
    wrong = misfit(tensors, facts, generators, torch_generators)
    if wrong is not None:
        raise SeedError(
            got=wrong,
            wanted="the generators and devices of the run that was saved",
            where="train.seed.restore",
            next_step="resume with the program and devices of the run that was saved",
        )
    python, numpy = facts["python"], facts["numpy"]
    random.setstate((python["version"], tuple(tensors["python"].tolist()), _number(python["gauss"])))
    key = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((numpy["kind"], key, numpy["position"], numpy["has_gauss"], _number(numpy["cached"])))
    torch.set_rng_state(tensors["torch"])
    for index in range(facts["devices"]):
        torch.cuda.set_rng_state(tensors[f"cuda.{index}"], index)
    if "mps" in tensors and torch.backends.mps.is_available():
        torch.mps.set_rng_state(tensors["mps"])
    for name, own in generators.items():
        own.bit_generator.state = _numpy(facts["generators"][name])
    for name, one in torch_generators.items():
        one.set_state(tensors[f"torch.{name}"])


def misfit(
    tensors: Mapping[str, torch.Tensor],
    facts: Mapping[str, Json],
    generators: Mapping[str, np.random.Generator],
    torch_generators: Mapping[str, torch.Generator],
) -> str | None:
    """Why `restore` would refuse this state, or None."""
    saved = set(facts["generators"]) | {name for name in tensors if name.startswith("torch.")}
    given = set(generators) | {f"torch.{name}" for name in torch_generators}
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if saved != given:
        return f"generators {sorted(given)} here, and {sorted(saved)} saved"
    if devices < facts["devices"]:
        return f"{devices} devices here, and {facts['devices']} saved"
    for name, own in generators.items():
        kind = facts["generators"][name]["bit_generator"]
        if kind != type(own.bit_generator).__name__:
            return f"generator {name} is a {type(own.bit_generator).__name__} here, and was a {kind}"
    return None


def _exact(value: float | None) -> str | None:
    # Hexadecimal: JSON's decimal form would do as well, but this says that no bit may be lost.
    return None if value is None else float(value).hex()


def _number(text: str | None) -> Any:
    return None if text is None else float.fromhex(text)


def _plain(state: Any) -> Json:
    """A bit generator's state with arrays as {"array": [...], "dtype": ...}: Philox, SFC64 and MT19937 hold some."""
    if isinstance(state, Mapping):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"array": [int(value) for value in state], "dtype": str(state.dtype)}
    return int(state) if isinstance(state, np.integer) else state


def _numpy(state: Json) -> Any:
    if isinstance(state, Mapping):
        if set(state) == {"array", "dtype"}:
            return np.array(state["array"], dtype=state["dtype"])
        return {name: _numpy(value) for name, value in state.items()}
    return state
