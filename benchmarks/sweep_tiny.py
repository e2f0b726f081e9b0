"""Row 2: nets so small that what a block costs by itself shows.  4 blocks of Linear(64, 64) and Tanh.

python benchmarks/sweep_tiny.py [--quick]
"""

from __future__ import annotations

import functools

import sweep_models as models
from _alternate import Goals, alternate, arguments, finish, ratio, table
from sweep_peers import Entry, plain, sweep


def main() -> None:
    """One line a batch size; the goal is for batch 64."""
    given = arguments(__doc__, rounds=41, quick=7)
    goals = Goals()
    rows = []
    for batch in (64,) if given.quick else (8, 64, 256):
        make = functools.partial(models.tiny, batch=batch)
        ways = {"loss.backward": plain, "sweep": sweep(), "again": plain}
        turns = alternate({name: Entry.of(way, make) for name, way in ways.items()}, rounds=given.rounds, least_s=0.05)
        got, noise = ratio(turns, "sweep", "loss.backward"), ratio(turns, "again", "loss.backward")
        more = 1e6 * (turns["sweep"].median - turns["loss.backward"].median)
        rows.append(
            (
                f"batch {batch}",
                f"{1e6 * turns['loss.backward'].median:.0f}",
                f"{more:+.1f}",
                got,
                f"{got.fastest:.3f}x",
                noise,
            )
        )
        if batch == 64:
            goals.at_most("tiny net, forward and backward, sweep keep-all / loss.backward", got.median, 1.05)
    table(rows, ("4 blocks 64x64", "plain us", "more us", "sweep / plain", "fastest turns", "plain / plain (noise)"))
    finish(goals, given)


if __name__ == "__main__":
    main()
