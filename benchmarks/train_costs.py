"""What the training parts cost beside the plain thing: the loop, and a checkpoint of a whole run.

python benchmarks/train_costs.py [--quick]

Rows 1: `train.steps` against the loop that people write by hand (clear, forward, loss, backward, clip, step), the same
net, data and optimizer, at sizes where the loop's own cost shows.  Goal: at most 1.02x.

Rows 2: `RunState.save` (every part hashed, fsynced, renamed, the manifest written) against `safetensors` writing the
same tensors alone, followed by one fsync of the file: a write that is not on the disk is no checkpoint.  Wall time,
since a disk is waited for.  Goal: at most 1.2x.  The same against safetensors without fsync is shown beside it, and the
CPU time, most of which is SHA-256 in another thread while the disk is waited for.
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _alternate import Goals, alternate, arguments, finish, ratio, table
from safetensors.torch import save_file
from torch import nn

from gradledger.train import PlainBackward, RunState, steps


def net(width: int) -> nn.Sequential:
    """Three layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def by_hand(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """The canonical loop."""
    for x, y in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()


def the_loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """The same by `train.steps`."""
    for _ in steps(PlainBackward(model, nn.functional.mse_loss), optimizer, batches, limit=10.0, non_finite="step"):
        pass


def loops(rounds: int, quick: bool, goals: Goals) -> None:
    """Rows 1."""
    rows = []
    for width in (64,) if quick else (64, 256, 1024):
        batches = [(torch.randn(64, 32), torch.randn(64, 1)) for _ in range(20)]
        ways: dict[str, Callable[[], None]] = {}
        for name, way in {"by hand": by_hand, "steps": the_loop, "by hand again": by_hand}.items():
            model = net(width)
            optimizer = torch.optim.Adam(model.parameters(), 1e-4)
            ways[name] = functools.partial(way, model, optimizer, batches)
        turns = alternate(ways, rounds=rounds, least_s=0.05)
        got, noise = ratio(turns, "steps", "by hand"), ratio(turns, "by hand again", "by hand")
        rows.append((f"width {width}", f"{1e6 * turns['by hand'].median / 20:.0f}", got, f"{got.fastest:.3f}x", noise))
        if width == 256 or quick:
            goals.at_most(f"loop overhead, width {width}, steps / by hand", got.median, 1.02)
    table(rows, ("20 steps, batch 64", "us a step", "steps / by hand", "fastest turns", "noise"))


def saves(rounds: int, quick: bool, goals: Goals) -> None:
    """Rows 2."""
    rows = []
    for width in (1024,) if quick else (256, 1024, 2048):
        model = net(width)
        optimizer = torch.optim.Adam(model.parameters())
        by_hand(model, optimizer, [(torch.randn(8, 32), torch.randn(8, 1))])
        state = RunState(model=model, optimizer=optimizer)
        tensors = {f"m/{k}": v for k, v in model.state_dict().items()}
        tensors |= {f"o/{i}/{k}": v for i, s in enumerate(optimizer.state.values()) for k, v in s.items()}
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        with tempfile.TemporaryDirectory() as scratch:
            file, folder = Path(scratch) / "alone.safetensors", Path(scratch) / "run"

            def alone(file: Path = file, tensors: dict[str, torch.Tensor] = tensors) -> None:
                save_file(tensors, file)

            def synced(file: Path = file, tensors: dict[str, torch.Tensor] = tensors) -> None:
                save_file(tensors, file)
                handle = os.open(file, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)

            def ours(folder: Path = folder, state: RunState = state) -> None:
                state.save(folder, 1)

            times: dict[str, list[float]] = {"alone": [], "synced": [], "ours": []}
            cpu: dict[str, list[float]] = {"alone": [], "synced": [], "ours": []}
            for turn in range(rounds):
                ways = [("alone", alone), ("synced", synced), ("ours", ours)]
                for name, way in ways[turn % 3 :] + ways[: turn % 3]:
                    file.unlink(missing_ok=True)  # each time from nothing
                    shutil.rmtree(folder, ignore_errors=True)
                    cpu_began, began = time.process_time(), time.perf_counter()
                    way()
                    times[name].append(time.perf_counter() - began)
                    cpu[name].append(time.process_time() - cpu_began)
        against = {
            name: statistics.median(a / b for a, b in zip(times["ours"], times[name], strict=True))
            for name in ("alone", "synced")
        }
        rows.append(
            (
                f"{size / 2**20:.1f} MiB",
                f"{1e3 * statistics.median(times['ours']):.1f}",
                f"{against['synced']:.2f}x",
                f"{against['alone']:.2f}x",
                f"{1e3 * statistics.median(cpu['ours']):.1f} / {1e3 * statistics.median(cpu['synced']):.1f}",
            )
        )
        if width == 2048 or quick:
            goals.at_most(f"save of {size / 2**20:.0f} MiB, RunState / safetensors and fsync", against["synced"], 1.2)
    head = ("save ms", "ours / safetensors+fsync", "ours / safetensors", "CPU ms, ours / safetensors+fsync")
    table(rows, ("model and Adam", *head))


def main() -> None:
    """Both tables."""
    given = arguments(__doc__, rounds=31, quick=7)
    goals = Goals()
    loops(given.rounds, given.quick, goals)
    saves(given.rounds, given.quick, goals)
    finish(goals, given)


if __name__ == "__main__":
    main()
