"""Row 1: what an explicit reverse pass costs by itself.  Q-network, sweep keep-all against `loss.backward()`.

    python benchmarks/sweep_keep_all.py [--quick]

One and two threads; forward with backward, and the whole update of temporal-difference learning (frames of both states,
target network, clip by norm 10, Adam), where the two sides differ in nothing but who walks back.
"""

from __future__ import annotations

import copy

import sweep_models as models
import torch
from _alternate import Goals, Work, alternate, arguments, finish, ratio, table
from sweep_models import Problem
from sweep_peers import Entry, Method, plain, sweep
from torch import Tensor


def td_update(problem: Problem, method: Method) -> Work:
    """One optimizer step on a batch of transitions."""
    step = method(problem)
    target = copy.deepcopy(problem.model).requires_grad_(False)
    optimizer = torch.optim.Adam(problem.model.parameters(), lr=1e-4)
    parameters = list(problem.model.parameters())
    _, td_target = problem.y
    with models.seeded(1):
        following = torch.randint(0, 256, problem.x.shape, dtype=torch.uint8)
        reward, going_on = torch.randn_like(td_target), (torch.rand_like(td_target) > 0.05).float()

    def update() -> Tensor:
        with torch.no_grad():
            td_target.copy_(reward + 0.99 * going_on * target(following).amax(1))
        optimizer.zero_grad(set_to_none=True)
        loss = step()
        torch.nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        return loss

    return update


def main() -> None:
    """Two tables: forward with backward, and the update."""
    given = arguments(__doc__, rounds=41, quick=7)
    goals = Goals()
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        make = models.THREE["q_network"]
        ways = {"loss.backward": plain, "sweep": sweep(), "again": plain}
        turns = alternate({name: Entry.of(way, make) for name, way in ways.items()}, rounds=given.rounds, least_s=0.05)
        updates = {name: td_update(models.q_network(), way) for name, way in ways.items()}
        whole = alternate(updates, rounds=given.rounds, least_s=0.05)
        for what, seen, most in (("forward and backward", turns, 1.03), ("TD update", whole, 1.01)):
            got = ratio(seen, "sweep", "loss.backward")
            noise = ratio(seen, "again", "loss.backward")
            milliseconds = f"{1e3 * seen['loss.backward'].median:.1f}"
            rows.append((f"{what}, {threads} thread(s)", milliseconds, got, f"{got.fastest:.3f}x", noise))
            goals.at_most(f"{what}, {threads} thread(s), sweep keep-all / loss.backward", got.median, most)
    table(rows, ("Q-network, batch 32", "plain ms", "sweep / plain", "fastest turns", "plain / plain (noise)"))
    finish(goals, given)


if __name__ == "__main__":
    main()
