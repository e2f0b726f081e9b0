"""`gradledger gradflow`: run a program, and show for one iteration what carries gradient, what does not, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from gradledger.audit.flow import SPAN, Flow, FlowWatch
from gradledger.audit.world import World
from gradledger.cli._atomic import check_path, write_text
from gradledger.cli._options import Arguments, Option, help_of, split, wrong
from gradledger.core.errors import GradledgerError
from gradledger.core.events import Event
from gradledger.ledger import _runs
from gradledger.ledger._runner import Outcome, leave, resolve, run
from gradledger.watch import End, Watch

SUMMARY = "Run a program and show where gradients flow in one iteration, and where they stop."

VERB = "gradledger gradflow"
COULD_NOT_RUN = 2
NOT_SEEN = 3
OPTIONS: tuple[Option, ...] = (
    Option(
        "--iteration",
        "N",
        "The iteration to show, from 0; it ends with an optimizer step, and with several optimizers when each has "
        "stepped.  Without it: the first whose gradients are filled and used.",
    ),
    Option("--json", "FILE", "Write the table to FILE as JSON too."),
    Option("--output", "FILE", "Write the table to FILE; without it the table goes to standard error."),
    Option("--stop", "", "End the program once the iteration is over, as sys.exit(0) at that line would."),
    Option("--replay", "RUN", "Show a recorded run: its folder, its name, or 'last'.  Runs nothing, needs no torch."),
    Option("--help", "", "Show this text."),
)
USAGE = f"{VERB} [options] (script.py | folder | -m package.module) [arguments of the program]"
TAIL = (
    "Exit code: the program's own; 3 when it succeeded but the iteration was not seen; 2 when the program could not be "
    "watched.  Parameters without gradient change no exit code: the audit judges them."
)


def main(argv: Sequence[str]) -> NoReturn:
    """The whole command; ends the process."""
    stream = sys.stderr
    try:
        arguments = split(argv, OPTIONS, VERB)
        if arguments.help:
            sys.stdout.write(help_of(USAGE, SUMMARY, OPTIONS, TAIL))
            sys.exit(0)
        wanted = _iteration(arguments)
        outputs = _Outputs(arguments, stream)
        flow = FlowWatch(wanted)
        if arguments.values["--replay"]:
            sys.exit(_replay(arguments, flow, outputs))
        target = resolve(arguments.target, arguments.rest, module=arguments.module)
        listener = _Listener(flow, stop=bool(arguments.values["--stop"]))
        full = range(wanted, wanted + SPAN) if wanted is not None else None
        program = Watch(program=target.name, argv=target.argv, listeners=[listener.put], full=full)
    except GradledgerError as error:
        print(f"gradledger: {error}", file=stream)
        sys.exit(COULD_NOT_RUN)

    code: list[int | None] = [None]

    def after(outcome: Outcome) -> None:
        try:
            code[0] = _conclude(program, outcome, flow, outputs)
        except Exception as error:  # the program has ended well or badly: its own exit code stands unless it was 0
            outputs.say(f"gradledger: the table failed: {type(error).__name__}: {error}\n")
            code[0] = COULD_NOT_RUN if outcome.exit_code == 0 else None

    outcome = run(target, before=program.start, after=after)
    leave(outcome, code[0])


class _Listener:
    """Hands facts on until the iteration is over; then, if asked to, ends the program."""

    def __init__(self, flow: FlowWatch, *, stop: bool) -> None:
        self._flow, self._stop = flow, stop

    def put(self, event: Event, world: World) -> None:
        was_over = self._flow.done
        self._flow.put(event, world)
        if self._stop and self._flow.done is not was_over:
            raise SystemExit(0)


class _Outputs:
    """Where the table goes."""

    def __init__(self, arguments: Arguments, stream: TextIO) -> None:
        self._stream = stream
        self._text = check_path(arguments.values["--output"] or None, "--output")
        self._json = check_path(arguments.values["--json"] or None, "--json")

    def write(self, flow: Flow, program: str) -> None:
        from gradledger.audit.render import flow as form  # not before the program runs: it pays for every import

        shown = form.text(flow, program=program)
        if self._text is None:
            self.say(shown)
        else:
            write_text(self._text, shown)
        if self._json is not None:
            write_text(self._json, form.as_json(flow, program=program))

    def say(self, words: str) -> None:
        from gradledger.cli.commands.audit import say

        say(words, self._stream)


def _iteration(arguments: Arguments) -> int | None:
    given = arguments.values["--iteration"]
    if not given:
        return None
    if not given.isdecimal():
        raise wrong(f"--iteration {given}", "a number from 0", VERB)
    return int(given)


def _conclude(program: Watch, outcome: Outcome, flow: FlowWatch, outputs: _Outputs) -> int | None:
    program.stop(End(outcome.exit_code, outcome.exception or "", outcome.message or "", outcome.sites))
    if outcome.watch_error:
        outputs.say(f"gradledger: the program could not be watched:\n{outcome.watch_error}")
        return COULD_NOT_RUN if outcome.exit_code == 0 else None
    seen = _show(flow, program.world, outputs)
    for note in program.report().notes:
        if not note.file:
            outputs.say(f"gradledger: {note.message}\n")
    return NOT_SEEN if not seen and outcome.exit_code == 0 and outcome.signal is None else None


def _replay(arguments: Arguments, flow: FlowWatch, outputs: _Outputs) -> int:
    from gradledger.ledger._store import read

    path = _runs.find_run(arguments.values["--replay"])
    world = World()
    for event in read(path):
        world.apply(event)
        flow.put(event, world)
        if flow.done:
            break
    return 0 if _show(flow, world, outputs, recorded=True) else NOT_SEEN


def _show(flow: FlowWatch, world: World, outputs: _Outputs, *, recorded: bool = False) -> bool:
    """Write the table; False, and a word about it, when the iteration was not seen."""
    found = flow.flow(world)
    if found is not None:
        outputs.write(found, world.program.program if world.program is not None else "")
        return True
    if world.program is None:
        why = "the program never imported torch"
    elif flow.wanted is not None:
        why = f"the last one seen was {world.iteration}"
        why += "; a recorded run keeps only some of those that repeat" if recorded else ""
    else:
        why = "no reverse pass and no optimizer step was seen"
    which = f"iteration {flow.wanted}" if flow.wanted is not None else "a complete iteration"
    outputs.say(f"gradledger: {which} was not seen: {why}\n")
    return False


__all__ = ["main"]
