"""Row 7: step each block and free its gradients as soon as they are final.  16 Linear(1024, 1024), Adam.

    python benchmarks/sweep_step_free.py [--quick]

Plain is backward, optimizer step, gradients dropped; with the clip, `clip_grad_norm_` in between.  The recipe of
PyTorch's tutorial on optimizer steps in the backward pass (one optimizer a parameter, stepped by a post-accumulate
hook) stands beside it; it knows no clip.  After three steps parameters and the optimizer's state_dict are compared
with those of the plain loop, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sweep_models as models
import torch
from _alternate import Goals, alternate, arguments, finish, ratio, table
from sweep_models import Problem
from sweep_peers import NotInstalled

from gradledger.sweep._memory import peak_of

CLIP = 0.05  # below the norm here, so that it scales


@dataclass
class Loop:
    """A model, its optimizers and one whole update."""

    problem: Problem
    optimizers: list[torch.optim.Optimizer]
    update: Callable[[], object]

    def states(self) -> list[torch.Tensor]:
        """Parameters, then what Adam keeps of each, in the order of the parameters."""
        parameters = list(self.problem.model.parameters())
        kept: dict[int, dict[str, Any]] = {}
        for optimizer in self.optimizers:
            kept |= {id(p): state for p, state in optimizer.state.items()}
        found = [p.detach() for p in parameters]
        for p in parameters:
            found += [kept[id(p)][key] for key in sorted(kept[id(p)])]
        return found


def adam(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of every contestant."""
    return torch.optim.Adam(parameters, lr=1e-3)


def plain(clip: float | None) -> Loop:
    """Backward, clip, step, drop."""
    problem = models.linears()
    parameters = list(problem.model.parameters())
    optimizer = adam(parameters)

    def update() -> None:
        problem.plain()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Loop(problem, [optimizer], update)


def hooks() -> Loop:
    """One optimizer a parameter, stepped where its gradient is accumulated."""
    problem = models.linears()
    owners = {p: adam([p]) for p in problem.model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        owners[parameter].step()
        owners[parameter].zero_grad(set_to_none=True)

    for parameter in owners:
        parameter.register_post_accumulate_grad_hook(step)
    return Loop(problem, list(owners.values()), problem.plain)


def ours(**options: Any) -> Loop:
    """`Sweep.step`."""
    try:
        from gradledger.sweep import Sweep
    except ImportError as error:
        raise NotInstalled(f"sweep: not there ({error})") from error
    if not hasattr(Sweep, "step"):
        raise NotInstalled("Sweep.step: not there")
    problem = models.linears()
    optimizer = adam(problem.model.parameters())
    driver = Sweep(problem.blocks, problem.loss_fn)
    return Loop(problem, [optimizer], lambda: driver.step(problem.x, problem.y, optimizer=optimizer, **options))


def main() -> None:
    """One table; goals of the specification below it."""
    given = arguments(__doc__, rounds=15, quick=3)
    goals = Goals()
    ways: dict[str, tuple[Callable[[], Loop], str]] = {
        "plain": (lambda: plain(None), "plain"),
        "step in post-accumulate hooks": (hooks, "plain"),
        "Sweep.step": (ours, "plain"),
        "plain, clip": (lambda: plain(CLIP), "plain, clip"),
        "Sweep.step, clip": (lambda: ours(clip=CLIP), "plain, clip"),
        'Sweep.step, clip, keep_grads="32MB"': (lambda: ours(clip=CLIP, keep_grads="32MB"), "plain, clip"),
    }
    loops: dict[str, Loop] = {}
    for name, (make, _) in ways.items():
        try:
            loops[name] = make()
        except NotInstalled as error:
            print(f"  {name}: {error}")
    same: dict[str, str] = {}
    for _ in range(3):
        for loop in loops.values():
            loop.update()
    for name, loop in loops.items():
        pairs = list(zip(loop.states(), loops[ways[name][1]].states(), strict=True))
        unequal = sum(not torch.equal(a, b) for a, b in pairs)
        same[name] = "yes" if not unequal else f"{unequal} of {len(pairs)} tensors differ"
    peaks = {name: peak_of(loop.update).bytes for name, loop in loops.items()}
    turns = alternate({name: loop.update for name, loop in loops.items()}, rounds=given.rounds, warm=1)
    rows = [
        (name, f"{peaks[name] / 2**20:.1f}", ratio(turns, name, "plain"), ratio(turns, name, ways[name][1]), same[name])
        for name in loops
    ]
    table(rows, ("way", "peak MiB", "time of plain", "of its plain", "equal after 3 steps"), left={4})
    for name, most_mb, most in (
        ("Sweep.step", 20, 1.09),
        ("Sweep.step, clip", 24, 1.27),
        ('Sweep.step, clip, keep_grads="32MB"', 48, 1.14),
    ):
        if name in loops:
            goals.at_most(f"{name}, peak", round(peaks[name] / 2**20, 1), most_mb, unit=" MiB")
            goals.at_most(f"{name}, time", ratio(turns, name, ways[name][1]).median, most)
            goals.holds(f"{name}, parameters and state_dict of the plain loop", same[name] == "yes", same[name])
    finish(goals, given)


if __name__ == "__main__":
    main()
