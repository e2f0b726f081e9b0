"""Row 4: budgets against checkpoint_sequential at its best.  The 39-block chain and the transformer.

    python benchmarks/sweep_segments.py [--quick] [--models chain39 transformer]

checkpoint_sequential is measured at every segment count; those that no other count beats in both bytes and time are
kept.  Each of them is set against our plan whose budget is its peak (seconds at equal memory), and against the smallest
of our budgets that takes no more time (memory at equal time).  All of them take turns in one run.
"""

from __future__ import annotations

import argparse
import statistics

import sweep_models as models
from _alternate import Goals, alternate, arguments, finish, mb, ratio, table
from sweep_peers import Entry, NotInstalled, plain, segments, sweep

SHARES = (0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2)


def main() -> None:
    """Peaks of every count, then both comparisons."""

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--models", nargs="+", choices=["chain39", "transformer"], default=["chain39", "transformer"]
        )

    given = arguments(__doc__, rounds=11, quick=3, more=more)
    goals = Goals()
    for name in given.models:
        make = models.THREE[name]
        base = Entry.of(plain, make)
        whole = base.peak()
        problem = make()
        counts = range(1, len(problem.blocks) + 1, 4 if given.quick else 1)
        cuts = {count: Entry(problem, segments(count)(problem)) for count in counts}
        peaks = {count: entry.peak() for count, entry in cuts.items()}
        print(f"\n{name}: plain {mb(whole)} MB; checkpoint_sequential by number of segments, of plain:")
        shares = [f"{count}: {peak / whole:.2f}" for count, peak in peaks.items()]
        for k in range(0, len(shares), 12):
            print("  " + "  ".join(shares[k : k + 12]))
        rough = alternate(
            {"plain": base} | {str(count): entry for count, entry in cuts.items()},
            rounds=3 if not given.quick else 1,
            warm=1,
        )
        seconds = {count: ratio(rough, str(count), "plain").median for count in counts}
        best = [
            count
            for count in counts
            if not any(
                peaks[k] <= peaks[count] and seconds[k] <= seconds[count] and (peaks[k], k) != (peaks[count], count)
                for k in counts
            )
        ]
        print(f"  not beaten in both bytes and time: {best}")
        entries: dict[str, Entry] = {"plain": base} | {f"{count} segments": cuts[count] for count in best}
        try:
            for count in best:
                entries[f"ours, bytes of {count}"] = Entry.of(sweep(peaks[count]), make)
            for share in SHARES[:: 3 if given.quick else 1]:
                entries[f"ours, {share:.0%}"] = Entry.of(sweep(int(share * whole)), make)
            entries["ours, min"] = Entry.of(sweep("min"), make)
        except NotInstalled as error:
            print(f"  {error}")
        turns = alternate(entries, rounds=given.rounds, warm=1)
        sizes = {label: entry.peak() for label, entry in entries.items()}
        took = {label: ratio(turns, label, "plain") for label in entries}
        table(
            [(label, mb(sizes[label]), f"{sizes[label] / whole:.3f}x", took[label]) for label in entries],
            ("way", "peak MB", "of plain", "time of plain"),
        )
        gained, faster = [], []
        for count in best:
            ours = f"ours, bytes of {count}"
            if ours not in entries or count == 1:  # one segment is the plain step
                continue
            gain = took[f"{count} segments"].median - took[ours].median
            faster.append(gain)
            quick = [
                label
                for label in entries
                if label.startswith("ours") and took[label].median <= took[f"{count} segments"].median
            ]
            least = min((sizes[label] for label in quick), default=None)
            if least is not None:
                gained.append(1 - least / peaks[count])
            goals.holds(f"{name}: within the bytes of {count} segments", sizes[ours] <= peaks[count], mb(sizes[ours]))
            print(
                f"  {count} segments: {100 * gain:+.1f} % of a step faster at its bytes; "
                + (f"{100 * gained[-1]:.0f} % less memory at its time" if least is not None else "never as fast")
            )
        if faster:
            goals.at_least(
                f"{name}: part of a step faster at equal memory, median", statistics.median(faster), 0.02, unit=""
            )
            goals.at_least(f"{name}: less memory at equal time, best", max(gained, default=0.0), 0.37, unit="")
    finish(goals, given)


if __name__ == "__main__":
    main()
