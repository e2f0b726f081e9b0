"""What the training parts cost beside the plain thing: the loop, and a checkpoint of a whole run.

python benchmarks/train_costs.py [--quick]

Rows 1: `train.steps` against the loop that people write by hand (clear, forward, loss, backward, clip, step), the same
net, data and optimizer, at sizes where the loop's own cost shows.  Goal: at most 1.02x.

Rows 2: `RunState.save` (every part hashed, fsynced, renamed, the manifest written) against `safetensors` writing the
same tensors alone, followed by one fsync of the file: a write that is not on the disk is no checkpoint.  Wall time,
since a disk is waited for.  Goal: at most 1.2x.  The same against safetensors without fsync is shown beside it, and the
CPU time, most of which is SHA-256 in another thread while the disk is waited for.

Rows 3: the same save with `wait=False`, which returns when everything is copied, against `safetensors` writing the same
tensors alone, without fsync: what a run stands still for.  Goal: at most 1.2x, at every size.

Rows 4: what it costs a whole run. A loop that trains and saves every so many steps by `RunState.save(wait=False)`,
by `RunState.save` and by safetensors alone, in turns with the loop that saves nothing; the last save is waited for
within the time. Seconds above the loop without saves, a save.
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


Tensors = dict[str, torch.Tensor]


def trained(width: int) -> tuple[nn.Sequential, torch.optim.Optimizer, RunState, Tensors]:
    """A net after a step, and its tensors with those of Adam as one would hand them to safetensors."""
    model = net(width)
    optimizer = torch.optim.Adam(model.parameters())
    by_hand(model, optimizer, [(torch.randn(8, 32), torch.randn(8, 1))])
    tensors = {f"m/{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"o/{i}/{k}": v for i, s in enumerate(optimizer.state.values()) for k, v in s.items()}
    return model, optimizer, RunState(model=model, optimizer=optimizer), tensors


def mebibytes(tensors: Tensors) -> str:
    """The size as it is shown."""
    return f"{sum(t.numel() * t.element_size() for t in tensors.values()) / 2**20:.1f} MiB"


def saves(rounds: int, quick: bool, goals: Goals) -> None:
    """Rows 2 and 3."""
    rows, later = [], []
    for width in (1024,) if quick else (256, 1024, 2048):
        _, _, state, tensors = trained(width)
        with tempfile.TemporaryDirectory() as scratch:
            file, folder = Path(scratch) / "alone.safetensors", Path(scratch) / "run"

            def alone(file: Path = file, tensors: Tensors = tensors) -> None:
                save_file(tensors, file)

            def synced(file: Path = file, tensors: Tensors = tensors) -> None:
                save_file(tensors, file)
                handle = os.open(file, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)

            def ours(folder: Path = folder, state: RunState = state) -> None:
                state.save(folder, 1)

            def background(folder: Path = folder, state: RunState = state) -> None:
                state.save(folder, 1, wait=False)

            ways = [("alone", alone), ("synced", synced), ("ours", ours), ("background", background)]
            times: dict[str, list[float]] = {name: [] for name, _ in ways}
            cpu: dict[str, list[float]] = {name: [] for name, _ in ways}
            for turn in range(rounds):
                for name, way in ways[turn % 4 :] + ways[: turn % 4]:
                    file.unlink(missing_ok=True)  # each time from nothing
                    shutil.rmtree(folder, ignore_errors=True)
                    cpu_began, began = time.process_time(), time.perf_counter()
                    way()
                    times[name].append(time.perf_counter() - began)
                    state.wait()
                    cpu[name].append(time.process_time() - cpu_began)

        def against(mine: str, theirs: str, times: dict[str, list[float]] = times) -> float:
            return statistics.median(a / b for a, b in zip(times[mine], times[theirs], strict=True))

        size = mebibytes(tensors)
        to_synced, to_alone = against("ours", "synced"), against("ours", "alone")
        of_cpu = {name: 1e3 * statistics.median(values) for name, values in cpu.items()}
        took = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        spent = f"{of_cpu['ours']:.1f} / {of_cpu['synced']:.1f}"
        rows.append((size, f"{took['ours']:.1f}", f"{to_synced:.2f}x", f"{to_alone:.2f}x", spent))
        stands = against("background", "alone")
        spent = f"{of_cpu['background']:.1f} / {of_cpu['alone']:.1f}"
        later.append((size, f"{took['background']:.2f}", f"{took['alone']:.2f}", f"{stands:.2f}x", spent))
        goals.at_most(f"stands still for a save of {size}, wait=False / safetensors alone", stands, 1.2)
        if width == 2048 or quick:
            goals.at_most(f"save of {size}, RunState / safetensors and fsync", to_synced, 1.2)
    head = ("save ms", "ours / safetensors+fsync", "ours / safetensors", "CPU ms, ours / safetensors+fsync")
    table(rows, ("model and Adam", *head))
    head = ("wait=False ms", "safetensors ms", "wait=False / safetensors", "CPU ms in all")
    table(later, ("model and Adam", *head))


def whole_runs(rounds: int, quick: bool) -> None:
    """Rows 4."""
    rows = []
    for width, batch, every in ((1024, 64, 10),) if quick else ((256, 64, 100), (1024, 64, 20), (2048, 64, 20)):
        model, optimizer, state, tensors = trained(width)
        batches = [(torch.randn(batch, 32), torch.randn(batch, 1))] * every
        with tempfile.TemporaryDirectory() as scratch:
            file, folder = Path(scratch) / "alone.safetensors", Path(scratch) / "run"
            ways: dict[str, Callable[[int], object]] = {
                "no save": lambda step: None,
                "safetensors alone": lambda step, tensors=tensors, file=file: save_file(tensors, file),
                "wait=False": lambda step, state=state, folder=folder: state.save(folder, step, wait=False),
                "waits": lambda step, state=state, folder=folder: state.save(folder, step),
            }
            times: dict[str, list[float]] = {name: [] for name in ways}
            names = list(ways)
            for turn in range(rounds):
                for name in names[turn % 4 :] + names[: turn % 4]:
                    file.unlink(missing_ok=True)
                    shutil.rmtree(folder, ignore_errors=True)
                    began = time.perf_counter()
                    for step in range(3):
                        by_hand(model, optimizer, batches)
                        ways[name](step)
                    state.wait()
                    times[name].append((time.perf_counter() - began) / 3)
        bare = statistics.median(times["no save"])
        more = {
            name: 1e3 * statistics.median(a - b for a, b in zip(times[name], times["no save"], strict=True))
            for name in names[1:]
        }
        rows.append((mebibytes(tensors), f"{1e3 * bare:.0f}", *(f"{more[name]:.1f}" for name in names[1:])))
    table(rows, ("model and Adam", "ms between two saves", *(f"{name}, ms more a save" for name in names[1:])))


def main() -> None:
    """All tables."""
    given = arguments(__doc__, rounds=31, quick=7)
    goals = Goals()
    loops(given.rounds, given.quick, goals)
    saves(given.rounds, given.quick, goals)
    whole_runs(max(given.rounds // 4, 3), given.quick)
    finish(goals, given)


if __name__ == "__main__":
    main()
