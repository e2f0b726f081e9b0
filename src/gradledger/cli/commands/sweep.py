"""`gradledger sweep plan|verify`: a memory budget for a model's backward, and the proof that the gradients are equal.

Exit codes: 0 all is well; 1 `verify` found a difference, or a measured peak over the budget; 2 the model cannot be
swept or the call cannot be understood, and why; 130 interrupted.
"""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gradledger._version import __version__
from gradledger.cli._atomic import check_path, write_text
from gradledger.cli._factory import Problem, ProgramError, load, one_line, trace_of
from gradledger.core.errors import GradledgerError, UsageError

if TYPE_CHECKING:
    from gradledger.sweep import Planned, Sweep, Verification
    from gradledger.sweep._block import Blocks
    from gradledger.sweep._measure import Measured

SUMMARY = "Plan a model's backward under a memory budget; prove that its gradients are the same bits."

EQUAL, DIFFERS, CANNOT, INTERRUPTED = 0, 1, 2, 130
_WIDTH = 80

Document = dict[str, Any]
Work = Callable[[Problem, "Blocks", Document], int]


class Engine(StrEnum):
    """Which backward obeys the plan."""

    sweep = "sweep"
    autograd = "autograd"


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="FILE.py:FACTORY or package.module:FACTORY; FACTORY() returns (model_or_blocks, x, y, loss_fn).",
    ),
]
AsJson = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Also write the result to FILE.")]
Words = Annotated[str, typer.Option("--args", metavar="WORDS", help="What the program finds in sys.argv[1:].")]


def plan(
    target: Target,
    budget: Annotated[
        str, typer.Option(metavar="BUDGET", help='Bytes, "512MB", "25%" of keeping everything, "min" or "keep".')
    ] = "keep",
    planner: Annotated[str, typer.Option(metavar="NAME", help="Which planner decides.")] = "optimal",
    as_json: AsJson = None,
    width: Annotated[int, typer.Option(metavar="N", min=30, help="Columns of the picture.")] = _WIDTH,
    args: Words = "",
) -> None:
    """Measure the model; print what to keep and what to recompute under a budget, and the memory over the schedule."""

    def work(problem: Problem, blocks: Blocks, document: Document) -> int:
        planned = _planned(problem, blocks, budget, planner)
        document.update(_plan_document(planned, budget, planner))
        _say(str(planned), "", planned.picture(width), "", *_budget_lines(planned, budget))
        return EQUAL

    _run("plan", target, as_json, args, work)


def verify(
    target: Target,
    budget: Annotated[
        str | None, typer.Option(metavar="BUDGET", help="Plan for it, and hold the measured peak against it.")
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="TEXT", help='A plan to obey, "0 1 (2 3) 4", or the name of a planner.')
    ] = None,
    engine: Annotated[Engine, typer.Option(help="The explicit walk, or the same plan under autograd.")] = Engine.sweep,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Training steps that are compared.")] = 1,
    as_json: AsJson = None,
    args: Words = "",
) -> None:
    """Prove on your own model that loss, gradients, buffers and random streams are equal bit for bit."""

    def work(problem: Problem, blocks: Blocks, document: Document) -> int:
        from gradledger.sweep._measure import measure

        case = _case(problem, blocks, budget, plan, engine.value)
        verification = case.sweep.verify(problem.x, problem.y, steps=steps)
        measured = measure(case.sweep, problem.x, problem.y)
        code = EQUAL if verification and not case.over(measured.peak) else DIFFERS
        document.update(_proof_document(case, verification, measured, budget))
        _say(*_proof_lines(case, verification, measured, budget))
        return code

    _run("verify", target, as_json, args, work)


COMMANDS = {"plan": plan, "verify": verify}


# from a target to an exit code ------------------------------------------------------------------------------------


def _run(verb: str, target: str, as_json: str | None, arguments: str, work: Work) -> NoReturn:
    """Load the program, do the work, write the document; ends with the exit code."""
    document: Document = {"gradledger": __version__, "verb": verb, "target": target}
    try:
        path = check_path(as_json, "--json")
    except UsageError as error:
        _complain(error)
        raise typer.Exit(CANNOT) from None
    try:
        code = _work(load(target, _split(arguments)), document, work)
    except GradledgerError as error:
        _complain(error)
        code = CANNOT
        document.update(verdict="cannot be swept", reason=str(error))
    except KeyboardInterrupt:
        print("gradledger: interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    document["exit_code"] = code
    if path is not None:
        write_text(path, json.dumps(document, indent=1) + "\n")
    raise typer.Exit(code)


def _work(problem: Problem, document: Document, work: Work) -> int:
    """`work`, with whatever the model raises said in one message."""
    from gradledger.sweep import blocks as read
    from gradledger.sweep._measure import check_places, environment, places

    blocks = read(problem.model)
    where = places(blocks, problem.x, problem.y)
    check_places(where)
    document.update(environment(), devices=where)
    try:
        return work(problem, blocks, document)
    except GradledgerError:
        raise
    except Exception as error:
        raise _model_error(error, where) from error


def _model_error(error: Exception, where: dict[str, list[str]]) -> ProgramError:
    block = [note for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
    got, hint = one_line(error), "check that loss_fn(model(x), y).backward() runs as it stands in the factory"
    if len({device for devices in where.values() for device in devices}) > 1:
        got += f" ({', '.join(what + ' on ' + ' and '.join(devices) for what, devices in where.items())})"
        hint = "put the model, x and y on one device in the factory: x.to(device)"
    return ProgramError(
        got=got,
        wanted="a model that runs forward, loss and backward on its batch",
        where=block[0].removeprefix(_NOTE) if block else "the model",
        next_step=hint,
        trace=trace_of(error),
    )


_NOTE = "gradledger sweep: in "


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise UsageError(
            got=f"{arguments!r} ({error})",
            wanted="words as in a shell",
            where="--args",
            next_step="close the quotation marks",
        ) from None


# the library calls ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """What is to be proved: `bound` is the budget in bytes, None where none was given as a number."""

    sweep: Sweep
    plan: str
    predicted: int
    keep_peak: int
    bound: int | None
    forced: dict[str, str]

    def over(self, peak: int) -> int:
        """Bytes by which a measured peak is over the budget."""
        return 0 if self.bound is None else max(0, peak - self.bound)


def _planned(problem: Problem, blocks: Blocks, budget: str | None, planner: str) -> Planned:
    from gradledger import sweep
    from gradledger.sweep._planners import find

    find(planner)  # a budget of "keep" would not ask it
    planned = sweep.plan(
        blocks, example=(problem.x, problem.y), loss=problem.loss_fn, budget=_number(budget), planner=planner
    )
    if budget is not None and budget.strip() == "min" and planned.costs.forced:
        number, why = next(iter(planned.costs.forced.items()))
        raise sweep.BudgetError(
            got=f"budget 'min', but block {number} ({planned.costs.blocks[number].name}) may not be recomputed: {why}",
            wanted="blocks that give the same bits when they are run again",
            where="sweep plan",
            next_step="draw random numbers from torch's generators and keep counters in buffers; or keep the block and"
            f" give a number: --budget {planned.peak} is the smallest that can be kept so",
            smallest=planned.peak,
        )
    return planned


def _case(problem: Problem, blocks: Blocks, budget: str | None, text: str | None, engine: Any) -> _Case:
    from gradledger import sweep
    from gradledger.sweep._planning import read_plan

    given = read_plan(text, len(blocks) + 1)
    if isinstance(given, sweep.Plan):
        planned = _planned(problem, blocks, "keep", "optimal")
        chosen, predicted = given, sweep.simulate(given, planned.costs).peak + planned.slack
        bound = None if budget is None else _bytes(budget, planned.keep_peak)
    else:
        name = given if isinstance(given, str) else None
        planned = _planned(problem, blocks, "keep" if budget is None and name is None else budget, name or "optimal")
        chosen, predicted, bound = planned.plan, planned.peak, planned.budget
    return _Case(
        sweep.Sweep(blocks, problem.loss_fn, plan=chosen if chosen is given else planned, engine=engine),
        str(chosen),
        predicted,
        planned.keep_peak,
        bound,
        _forced(planned),
    )


def _number(budget: str | None) -> int | str | None:
    return int(budget) if budget is not None and budget.strip().isdecimal() else budget


def _bytes(budget: str, keep_peak: int) -> int:
    from gradledger.sweep.plans.budget import parse_budget

    bound = parse_budget(_number(budget) or 0, keep_peak=keep_peak)
    if bound is None:
        raise UsageError(
            got=f"--budget {budget} beside --plan in blocks",
            wanted='bytes, "512MB" or "25%"',
            where="sweep verify",
            next_step="leave one of the two out",
        )
    return bound


def _forced(planned: Planned) -> dict[str, str]:
    return {planned.costs.blocks[i].name: why for i, why in planned.costs.forced.items()}


# what is written and said -----------------------------------------------------------------------------------------


def _plan_document(planned: Planned, budget: str, planner: str) -> Document:
    costs = planned.costs
    return dict(
        verdict="planned",
        planner=planner,
        plan=str(planned.plan),
        budget=dict(asked=budget, bytes=planned.budget),
        predicted_peak_bytes=planned.peak,
        slack_bytes=planned.slack,
        keep_peak_bytes=planned.keep_peak,
        predicted_seconds=planned.predicted.seconds,
        keep_seconds=sum(b.record_s + b.reverse_s for b in costs.blocks),
        blocks=[
            dict(
                name=block.name,
                saved_bytes=costs.size(block.saved),
                forward_seconds=block.forward_s,
                record_seconds=block.record_s,
                reverse_seconds=block.reverse_s,
                not_recomputable=block.keep_reason,
            )
            for block in costs.blocks
        ],
    )


def _budget_lines(planned: Planned, budget: str) -> list[str]:
    lines = [f"keeping everything needs {_count(planned.keep_peak)}"]
    predicted = f"predicted peak {_count(planned.peak)}"
    if planned.slack:
        predicted += f", {_group(planned.slack)} of them for random states and buffers"
    if planned.budget is not None:
        lines.append(f"budget {budget.strip()} is {_count(planned.budget)}")
        predicted += f"; {_group(planned.budget - planned.peak)} to spare"
    elif budget.strip() == "min":
        predicted += "; no plan needs less"
    return [*lines, *textwrap.wrap(predicted, _WIDTH), *_wrapped("plan", str(planned.plan))]


def _proof_document(case: _Case, verification: Verification, measured: Measured, budget: str | None) -> Document:
    over = case.over(measured.peak)
    compared = {k: v for k, v in asdict(verification).items() if k not in ("first", "steps")}
    return dict(
        verdict="unequal" if not verification else "over the budget" if over else "equal",
        equal=bool(verification),
        first_difference=verification.first,
        steps=verification.steps,
        compared=compared,
        engine=case.sweep.engine,
        plan=case.plan,
        budget=dict(asked=budget, bytes=case.bound, kept=None if case.bound is None else not over),
        peak_bytes=measured.peak,
        plain_peak_bytes=measured.plain_peak,
        predicted_peak_bytes=case.predicted,
        keep_peak_bytes=case.keep_peak,
        seconds=dict(
            sweep=measured.seconds,
            plain=measured.plain_seconds,
            ratio=measured.seconds / measured.plain_seconds,
            repeats=len(measured.times),
            sweep_each=measured.times,
            plain_each=measured.plain_times,
        ),
        not_recomputable=case.forced,
    )


def _proof_lines(case: _Case, verification: Verification, measured: Measured, budget: str | None) -> list[str]:
    from gradledger.sweep._describe import show_bytes, show_seconds

    lines = textwrap.wrap(str(verification), _WIDTH)
    lines += ["", f"{'':<10}{'peak':>12}{'one step':>12}   median of {len(measured.times)}, in turns, no optimizer"]
    rows = (
        ("plain", measured.plain_peak, measured.plain_seconds),
        (case.sweep.engine, measured.peak, measured.seconds),
    )
    for name, peak, seconds in rows:
        ratios = f"   {peak / max(1, measured.plain_peak):.3g}x memory, {seconds / measured.plain_seconds:.3g}x time"
        lines.append(f"{name:<10}{show_bytes(peak):>12}{show_seconds(seconds):>12}{ratios if name != 'plain' else ''}")
    lines.append("")
    if case.bound is not None:
        over = case.over(measured.peak)
        held = f"OVER by {_group(over)} bytes" if over else f"kept, {_group(case.bound - measured.peak)} bytes to spare"
        lines.append(f"budget {(budget or '').strip()} is {_count(case.bound)}")
        lines.append(f"measured peak {_count(measured.peak)}: {held}")
    lines.append(f"predicted peak {_count(case.predicted)}")
    for name, why in case.forced.items():
        lines += textwrap.wrap(f"block {name} may not be recomputed: {why}", _WIDTH)
    return [*lines, *_wrapped("plan", case.plan)]


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(f"{name} {text}", _WIDTH, subsequent_indent=" " * (len(name) + 1), break_on_hyphens=False)


def _count(number: int) -> str:
    from gradledger.sweep._describe import show_bytes

    return f"{_group(number)} bytes ({show_bytes(number)})"


def _group(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _say(*lines: str) -> None:
    """To standard output, also where it cannot show every sign of the picture."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for line in lines:
        print(line.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _complain(error: GradledgerError) -> None:
    sys.stdout.flush()
    if isinstance(error, ProgramError):
        sys.stderr.write(error.trace)
    print(f"gradledger: {error}", file=sys.stderr)
