"""Other ways to spend time instead of memory, beside the sweep: bytes, seconds, and whether the gradients are right.

    python benchmarks/sweep_peers.py [--quick] [--models chain39 transformer q_network]

Every way starts from the same copy of the model and the same random state.  Reported are the allocator's peak and the
time of forward and backward, both against plain `loss.backward()`; the worst relative error of a parameter gradient
(0 = every bit equal); and whether buffers and the random state after the step are those of the plain step.

`eae-runtime` 0.1.1 and `ckptplan` 0.1.0rc1 take part where they are installed.  ckptplan measures bytes on CUDA alone
and refuses to plan on a CPU; here its planner is given the bytes that its own definition asks for, measured by our
memory watch, and its own seconds.  Nothing else of it is touched.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import sweep_models as models
import torch
from _alternate import Goals, alternate, arguments, finish, mb, ratio, table
from sweep_models import Problem
from torch import Tensor
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from gradledger.sweep._memory import MemoryWatch, peak_of

Step = Callable[[], Tensor]
Method = Callable[[Problem], Step]


class NotInstalled(Exception):
    """A peer that is not there; printed as such."""


def installed(name: str):
    """Import an optional peer.

    Raises:
        NotInstalled: it is not there.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalled(f"{name}: not installed") from error


def plain(problem: Problem) -> Step:
    """`loss.backward()`."""
    return problem.plain


def _finish(problem: Problem, out: Tensor) -> Tensor:
    loss = problem.loss_fn(out, problem.y)
    loss.backward()
    return loss.detach()


def checkpoint_each(problem: Problem) -> Step:
    """torch.utils.checkpoint, non-reentrant, around each block."""

    def step() -> Tensor:
        state = problem.x
        for block in problem.blocks:
            state = checkpoint(block, state, use_reentrant=False)
        return _finish(problem, state)

    return step


def segments(count: int) -> Method:
    """checkpoint_sequential with this number of segments."""

    def method(problem: Problem) -> Step:
        return lambda: _finish(problem, checkpoint_sequential(problem.model, count, problem.x, use_reentrant=False))

    return method


def save_on_cpu(problem: Problem) -> Step:
    """torch.autograd.graph.save_on_cpu; on a CPU there is nowhere to move to, so it saves nothing here."""

    def step() -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            out = problem.model(problem.x)
            loss = problem.loss_fn(out, problem.y)
        loss.backward()
        return loss.detach()

    return step


def compiled(budget: float, backend: str = "inductor") -> Method:
    """torch.compile of model and loss with its compile-time `activation_memory_budget`.

    With `fallback_random`, so that a dropout mask drawn once is the one that eager code draws.
    """

    def method(problem: Problem) -> Step:
        import torch._functorch.config as functorch
        import torch._inductor.config as inductor

        def both(x: Tensor) -> Tensor:
            return problem.loss_fn(problem.model(x), problem.y)

        # Compiled code is kept by code object, whatever the budget was: without one of its own, the second contestant
        # would run what was compiled for the first.
        both.__code__ = both.__code__.replace(co_name=f"budget_{budget}".replace(".", "_"))
        forward = torch.compile(both, backend=backend, fullgraph=True)

        def step() -> Tensor:
            loss = forward(problem.x)
            loss.backward()
            return loss.detach()

        with (
            models.seeded(0),
            functorch.patch(activation_memory_budget=budget, enable_autograd_cache=False),
            inductor.patch(fallback_random=True),
        ):
            buffers = [buffer.clone() for buffer in problem.model.buffers()]
            step()  # both graphs are made here
            for buffer, old in zip(problem.model.buffers(), buffers, strict=True):
                buffer.copy_(old)
            problem.clear()
        return step

    return method


def eae(problem: Problem) -> Step:
    """eae-runtime as its own train_step drives it, without pool, profiler and optimizer."""
    library = installed("eae_runtime")
    runtime = library.EAERuntime(
        problem.model, None, library.RuntimeConfig(memory="none", enable_profiler=False, log_level="")
    )

    def step() -> Tensor:
        loss, gradients = runtime.compute_gradients(problem.x, lambda out: problem.loss_fn(out, problem.y))
        runtime.apply_gradients(gradients)
        return loss

    return step


def ckptplan(share: float) -> Method:
    """ckptplan's dynamic programme at this share of the activations' bytes, then its own executor."""

    def method(problem: Problem) -> Step:
        library = installed("ckptplan")
        blocks = library.declare_blocks(problem.model, [(f"b{i}", block) for i, block in enumerate(problem.blocks)])
        example = (problem.x,)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profiles = library.profile_blocks(
                blocks, example, device="cpu", dtype=torch.float32, num_warmup=1, num_trials=3
            )
        sizes = _activation_bytes(problem)
        measured = tuple(
            dataclasses.replace(profile, timing_only=False, activation_bytes_estimate=size)
            for profile, size in zip(profiles, sizes, strict=True)
        )
        plan = library.plan_checkpoints(
            measured,
            blocks,
            target_kind="activation_budget_bytes",
            target_value=share * sum(sizes),
            activation_bucket_bytes=1 << 14,
        )
        chosen = library.apply_plan(blocks, plan, example)
        return lambda: _finish(problem, chosen(problem.x))

    return method


def _activation_bytes(problem: Problem) -> list[int]:
    """What a block adds to the allocated bytes when it is recorded alone, its output included and its input not."""
    sizes = []
    state = problem.x
    buffers = [buffer.clone() for buffer in problem.model.buffers()]
    for block in problem.blocks:
        leaf = state.detach().requires_grad_(state.is_floating_point())
        with MemoryWatch() as watch:
            out = block(leaf)
        sizes.append(watch.level)
        state = out.detach()
        del out
    for buffer, old in zip(problem.model.buffers(), buffers, strict=True):
        buffer.copy_(old)
    return sizes


def sweep(budget: object = None, engine: str = "sweep") -> Method:
    """Ours, keep-all or under a budget (bytes, "25%", "min")."""

    def method(problem: Problem) -> Step:
        try:
            from gradledger import sweep as library

            make, make_plan = library.Sweep, library.plan
        except (ImportError, AttributeError) as error:
            raise NotInstalled(f"sweep: not there ({error})") from error
        if budget is None:
            driver = make(problem.blocks, problem.loss_fn, engine=engine)
        else:
            plan = make_plan(problem.blocks, example=(problem.x, problem.y), loss=problem.loss_fn, budget=budget)
            driver = make(problem.blocks, problem.loss_fn, plan=plan, engine=engine)
        return lambda: driver.backward(problem.x, problem.y)

    return method


@dataclass(frozen=True)
class Verdict:
    """One step of a method against one plain step from the same start."""

    error: float
    """Worst relative error of a parameter gradient: norm of the difference over norm of the plain gradient."""
    unequal: int
    """Parameters whose gradient is not equal to the bit, or is None on one side alone."""
    loss: bool
    buffers: bool
    random_state: bool

    @property
    def exact(self) -> bool:
        """Everything equal to the bit."""
        return self.unequal == 0 and self.loss and self.buffers and self.random_state

    def __str__(self) -> str:
        wrong = [name for name in ("loss", "buffers", "random_state") if not getattr(self, name)]
        return ("0" if self.unequal == 0 else f"{self.error:.1e}") + (f" ({', '.join(wrong)})" if wrong else "")


@dataclass
class Entry:
    """A method made ready on a model of its own."""

    problem: Problem
    step: Step

    @classmethod
    def of(cls, method: Method, make: Callable[[], Problem]) -> Entry:
        """Make the model and whatever the method needs before its first step."""
        problem = make()
        return cls(problem, method(problem))

    def __call__(self) -> Tensor:
        self.problem.clear()
        return self.step()

    def peak(self) -> int:
        """Allocator's peak of one step above what is alive before it, gradients included."""
        self()  # whatever is set up once
        self.problem.clear()
        peak = peak_of(self.step)
        self.problem.clear()
        return peak.bytes


def judge(method: Method, make: Callable[[], Problem]) -> tuple[Entry, Verdict]:
    """Run one step of the method and one plain step from equal starts and compare everything they leave behind."""
    entry = Entry.of(method, make)
    return entry, compare(Entry.of(plain, make), entry)


def compare(want: Entry, got: Entry, *, rng_seed: int = 7) -> Verdict:
    """One step each, from the same buffers and random state."""
    # whatever ran before may have moved them
    for a, b in zip(want.problem.model.buffers(), got.problem.model.buffers(), strict=True):
        b.copy_(a)
    left = []
    for entry in (want, got):
        with models.seeded(rng_seed):
            loss = entry().clone()
            left.append((loss, torch.get_rng_state()))
    (want_loss, want_state), (got_loss, got_state) = left
    worst, unequal = 0.0, 0
    for p, q in zip(want.problem.model.parameters(), got.problem.model.parameters(), strict=True):
        if p.grad is None or q.grad is None:
            unequal += p.grad is not q.grad
        elif not torch.equal(p.grad, q.grad):
            unequal += 1
            # a gradient that is zero but for rounding (a bias before a BatchNorm) has no relative error worth a name
            size = max(p.grad.double().norm().item(), 1e-6 * max(1.0, p.detach().double().norm().item()))
            worst = max(worst, (p.grad.double() - q.grad.double()).norm().item() / size)
    pairs = zip(want.problem.model.buffers(), got.problem.model.buffers(), strict=True)
    verdict = Verdict(
        error=worst,
        unequal=unequal,
        loss=torch.equal(want_loss, got_loss),
        buffers=all(torch.equal(a, b) for a, b in pairs),
        random_state=torch.equal(want_state, got_state),
    )
    want.problem.clear()
    got.problem.clear()
    return verdict


def best_segments(make: Callable[[], Problem]) -> dict[int, int]:
    """Peak of checkpoint_sequential at every segment count that gives another cut."""
    problem = make()
    peaks: dict[int, int] = {}
    for count in range(1, len(problem.blocks) + 1):
        peaks[count] = Entry(problem, segments(count)(problem)).peak()
    return peaks


def _methods(given: argparse.Namespace) -> dict[str, Method]:
    methods: dict[str, Method] = {
        "loss.backward": plain,
        "sweep keep-all": sweep(),
        "sweep 50%": sweep("50%"),
        "sweep 25%": sweep("25%"),
        "sweep min": sweep("min"),
        "checkpoint, each block": checkpoint_each,
        "checkpoint_sequential, 4 segments": segments(4),
        "save_on_cpu": save_on_cpu,
        "eae-runtime": eae,
        "ckptplan 50%": ckptplan(0.5),
        "ckptplan 25%": ckptplan(0.25),
    }
    if not given.quick:
        methods["compiled, budget 1.0"] = compiled(1.0, given.backend)
        methods["compiled, budget 0.3"] = compiled(0.3, given.backend)
    return methods


def main() -> None:
    """One table a model."""

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--models", nargs="+", choices=list(models.THREE), default=list(models.THREE))
        parser.add_argument("--backend", default="inductor", help="of torch.compile")

    given = arguments(__doc__, rounds=9, quick=3, more=more)
    goals = Goals()
    for name in given.models:
        make = models.THREE[name]
        entries: dict[str, Entry] = {}
        verdicts: dict[str, str] = {}
        for label, method in _methods(given).items():
            try:
                entries[label], verdict = judge(method, make)
            except NotInstalled as error:
                verdicts[label] = str(error)
                continue
            except Exception as error:  # a peer that cannot run this model is a result
                verdicts[label] = f"raises {type(error).__name__}: {str(error).splitlines()[0][:70]}"
                if label.startswith("sweep") and type(error).__name__ != "BudgetError":
                    goals.holds(f"{name}: {label} runs", False, verdicts[label])
                continue
            verdicts[label] = str(verdict)
            if label.startswith("sweep"):
                goals.holds(
                    f"{name}: {label} leaves what loss.backward leaves, to the bit", verdict.exact, str(verdict)
                )
        turns = alternate(entries, rounds=given.rounds, warm=1)
        peaks = {label: entry.peak() for label, entry in entries.items()}
        rows = []
        for label, said in verdicts.items():
            if label not in entries:
                rows.append((label, "-", "-", "-", said))
                continue
            share = peaks[label] / peaks["loss.backward"]
            rows.append((label, mb(peaks[label]), f"{share:.3f}x", ratio(turns, label, "loss.backward"), said))
        print(f"\n{name}: gradient error 0 means every bit; in brackets what else differs from the plain step")
        table(rows, ("way", "peak MB", "of plain", "time of plain", "gradient error"), left={4})
    finish(goals, given)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
