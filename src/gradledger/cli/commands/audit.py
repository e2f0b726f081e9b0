"""`gradledger audit`: run a program under watch, or judge a recorded run again, and report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from gradledger.audit.engine import audit as judge
from gradledger.audit.report import Report
from gradledger.cli._options import Arguments, help_text, parse
from gradledger.core.errors import GradledgerError
from gradledger.ledger import _runs
from gradledger.ledger._runner import Outcome, leave, resolve, run
from gradledger.watch import End, Watch

SUMMARY = "Run a program under watch and report what is wrong with its gradients."

COULD_NOT_RUN = 2
FINDINGS = 3


def main(argv: Sequence[str]) -> NoReturn:
    """The whole command; ends the process."""
    stream = sys.stderr
    try:
        arguments = parse(argv)
        if arguments.help:
            sys.stdout.write(help_text())
            sys.exit(0)
        if arguments.values["--replay"]:
            sys.exit(_replay(arguments, stream))
        target = resolve(arguments.target, arguments.rest, module=arguments.module)
        output = _output_path(arguments)
        program = Watch(
            program=target.name,
            argv=target.argv,
            select=arguments.codes("--select"),
            ignore=arguments.codes("--ignore"),
            store=_ledger_path(arguments, target.name, stream),
        )
    except GradledgerError as error:
        print(f"gradledger: {error}", file=stream)
        sys.exit(COULD_NOT_RUN)

    code: list[int | None] = [None]

    def after(outcome: Outcome) -> None:
        try:
            code[0] = _conclude(program, outcome, arguments, output, stream)
        except Exception as error:  # the program has ended well or badly: its own exit code stands unless it was 0
            _say(f"gradledger: the report failed: {type(error).__name__}: {error}\n", stream)
            code[0] = COULD_NOT_RUN if outcome.exit_code == 0 else None

    outcome = run(target, before=program.start, after=after)
    leave(outcome, code[0])


def _conclude(
    program: Watch, outcome: Outcome, arguments: Arguments, output: Path | None, stream: TextIO
) -> int | None:
    """Report; returns the exit code when it is not the program's own."""
    program.stop(End(outcome.exit_code, outcome.exception or "", outcome.message or "", outcome.sites))
    if outcome.watch_error:
        _say(f"gradledger: the audit could not start:\n{outcome.watch_error}", stream)
        return COULD_NOT_RUN if outcome.exit_code == 0 else None
    report = program.report()
    footer = []
    if not outcome.watched:
        footer.append("the program never imported torch: there was nothing to watch")
    elif program.stored:
        folder = program.store.parent if program.store is not None else Path()
        footer.append(f"recorded: {folder}")
        again = arguments.values["--run"] or "last"
        footer.append(f"judge it again with: gradledger audit --replay {again}")
    elif program.store_problem:
        footer.append(program.store_problem)
    _write(report, arguments.values["--format"], output, stream, footer)
    if outcome.exit_code == 0 and outcome.signal is None and report.reaches(arguments.values["--fail-on"]):
        return FINDINGS
    return None


def _say(document: str, stream: TextIO) -> None:
    """Write to standard error, also when the program has closed or replaced the stream of that name."""
    try:
        stream.write(document)
        stream.flush()
    except (OSError, ValueError):
        try:
            os.write(2, document.encode("utf-8", "replace"))
        except OSError:
            pass  # nobody listens


def _replay(arguments: Arguments, stream: TextIO) -> int:
    from gradledger.ledger._store import read, read_meta

    path = _runs.find_run(arguments.values["--replay"])
    report = judge(
        read(path),
        select=arguments.codes("--select"),
        ignore=arguments.codes("--ignore"),
        sampled=read_meta(path).get("note", ""),
    )
    _write(report, arguments.values["--format"], _output_path(arguments), stream, [f"replayed: {path.parent}"])
    return FINDINGS if report.reaches(arguments.values["--fail-on"]) else 0


def _write(report: Report, form: str, output: Path | None, stream: TextIO, footer: Sequence[str]) -> None:
    from gradledger.audit.render import json, md, text  # not before the program runs: it pays for every import

    if form == "json":
        document = json.render(report)
    elif form == "md":
        document = md.render(report, footer=footer)
    elif output is None:
        document = text.compose(report, stream, footer=footer)
    else:
        document = text.render(report, footer=footer)
    if output is None:
        _say(document, stream)
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}")  # a reader sees the whole report or none
    try:
        partial.write_text(document, encoding="utf-8")
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _output_path(arguments: Arguments) -> Path | None:
    given = arguments.values["--output"]
    if not given:
        return None
    path = Path(given).absolute()
    if not path.parent.is_dir():
        raise GradledgerError(
            got=given,
            wanted="a file in a folder that exists",
            where="--output",
            next_step=f"make the folder: mkdir -p {path.parent}",
        )
    return path


def _ledger_path(arguments: Arguments, program: str, stream: TextIO) -> Path | None:
    given = arguments.values["--run"]
    try:
        return _runs.new_run(program, Path(given) if given else None)
    except OSError as error:
        if given:
            raise GradledgerError(
                got=given, wanted="a folder that can be written", where="--run", next_step=str(error)
            ) from error
        print(f"gradledger: the run is not stored: {error}", file=stream)
        return None
