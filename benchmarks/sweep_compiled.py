"""Row 5: our budgets beside torch's compile-time `activation_memory_budget`, in one table.

    python benchmarks/sweep_compiled.py [--quick] [--models transformer chain39] [--backend inductor]

The compiler fuses, so its seconds are given against its own budget 1.0 as well as against the eager step; ours are
given for eager blocks and for blocks that are compiled one by one.  Gradients: worst relative error against eager code
that draws the same dropout masks (`fallback_random`); eager plans of ours are compared bit by bit, compiled ones with
a plain backward over the same compiled blocks.
"""

from __future__ import annotations

import argparse
import time

import sweep_models as models
import torch
from _alternate import Goals, alternate, arguments, finish, mb, ratio, table
from sweep_models import Problem
from sweep_peers import Entry, Method, NotInstalled, compare, compiled, judge, plain, sweep

BUDGETS = (1.0, 0.5, 0.3, 0.275, 0.2, 0.1, 0.0)


def by_block(method: Method, backend: str) -> Method:
    """The method on blocks that are compiled one by one; the parameters stay those of the problem."""

    def made(problem: Problem):
        import torch._inductor.config as inductor

        own = Problem(
            problem.name,
            [torch.compile(block, backend=backend, dynamic=False) for block in problem.blocks],
            problem.x,
            problem.y,
            problem.loss_fn,
        )
        with inductor.patch(fallback_random=True):
            step = method(own)
            step()
        problem.clear()
        return step

    return made


def main() -> None:
    """One table a model."""

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--models", nargs="+", choices=list(models.THREE), default=["transformer", "chain39"])
        parser.add_argument("--backend", default="inductor")
        parser.add_argument("--budgets", nargs="+", type=float, default=None)

    given = arguments(__doc__, rounds=9, quick=3, more=more)
    torch._dynamo.config.recompile_limit = 256
    goals = Goals()
    budgets = given.budgets or (BUDGETS[::3] if given.quick else BUDGETS)
    for name in given.models:
        make = models.THREE[name]
        base = Entry.of(plain, make)
        whole = base.peak()
        entries: dict[str, Entry] = {"eager": base}
        said: dict[str, str] = {"eager": "0"}
        for budget in budgets:
            started = time.perf_counter()
            label = f"compiled, budget {budget:g}"
            entries[label], verdict = judge(compiled(budget, given.backend), make)
            said[label] = f"{verdict.error:.1e}, compiled in {time.perf_counter() - started:.0f} s"
        peaks = {label: entry.peak() for label, entry in entries.items()}
        try:
            for budget in budgets:
                share = peaks[f"compiled, budget {budget:g}"]
                ways = {f"ours in the bytes of {budget:g}": sweep(min(share, whole))}
                if 0 < budget < 1:
                    ways[f"ours at {budget:g} of plain"] = sweep(int(budget * whole))
                for label, method in ways.items():
                    try:
                        entries[label], verdict = judge(method, make)
                    except NotInstalled:
                        raise
                    except Exception as error:  # below the smallest feasible number, which the error names
                        said[label] = f"{type(error).__name__}: {str(error)[:60]}"
                        continue
                    said[label] = str(verdict)
                    goals.holds(f"{name}: {label}, gradients equal", verdict.exact, str(verdict))
            entries["ours, min"], verdict = judge(sweep("min"), make)
            said["ours, min"] = str(verdict)
            reference = Entry.of(by_block(plain, given.backend), make)
            entries["blocks compiled, plain"] = reference
            said["blocks compiled, plain"] = ""
            for budget in ("50%", "25%", "min"):
                label = f"blocks compiled, ours {budget}"
                entries[label] = Entry.of(by_block(sweep(budget), given.backend), make)
                said[label] = str(compare(reference, entries[label]))
        except NotInstalled as error:
            print(f"  {error}")
        peaks = {label: entry.peak() for label, entry in entries.items()}
        turns = alternate(entries, rounds=given.rounds, warm=1)
        full = f"compiled, budget {budgets[0]:g}"
        rows = [
            (
                label,
                mb(peaks[label]),
                f"{peaks[label] / whole:.3f}x",
                ratio(turns, label, "eager"),
                f"{ratio(turns, label, full).median:.3f}x" if label.startswith("compiled") else "",
                said[label],
            )
            for label in entries
        ]
        rows += [(label, "-", "-", "-", "", text) for label, text in said.items() if label not in entries]
        print(
            f"\n{name}: eager plain step {mb(whole)} MB, {1e3 * turns['eager'].median:.0f} ms, backend {given.backend}"
        )
        table(rows, ("way", "peak MB", "of plain", "time of eager", f"of {full}", "gradient error"), left={5})
        for budget in budgets:
            theirs, ours = f"compiled, budget {budget:g}", f"ours in the bytes of {budget:g}"
            if ours in entries:
                gain = ratio(turns, ours, "eager").median - ratio(turns, theirs, full).median
                goals.at_most(
                    f"{name}: more of a step than the compiler needs for the bytes of {budget:g}", gain, 0.0, unit=""
                )
                goals.holds(f"{name}: within the bytes of {budget:g}", peaks[ours] <= peaks[theirs], mb(peaks[ours]))
    finish(goals, given)


if __name__ == "__main__":
    main()
