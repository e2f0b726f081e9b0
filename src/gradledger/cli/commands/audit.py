"""`gradledger audit`: run a program under watch, or judge a recorded run again, and report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from gradledger.audit.engine import Judge
from gradledger.audit.report import Cost, Report
from gradledger.cli._atomic import check_path, write_text
from gradledger.cli._options import OPTIONS, Arguments, help_text, parse
from gradledger.cli._parts import Parts
from gradledger.core.errors import GradledgerError, UsageError
from gradledger.ledger import _gather, _launchers, _runs
from gradledger.ledger._runner import Outcome, Target, leave, resolve, run
from gradledger.watch import End, Watch

SUMMARY = "Run a program under watch and report what is wrong with its gradients."

COULD_NOT_RUN = 2
FINDINGS = 3
DIFFERENT = 4
BITS = 5
PAGE = "report.html"
NAMES = frozenset(option.name for option in OPTIONS if option.name != "--help")


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
        output = check_path(arguments.values["--output"] or None, "--output")
        if arguments.values["--selfcheck"]:
            sys.exit(_selfcheck(arguments, target, output, stream))
        launched = _launchers.command(target, argv)
        if launched is not None:
            _launch(launched, stream)
        parts = _parts(arguments)
        program = Watch(
            program=target.name,
            argv=target.argv,
            select=arguments.codes("--select"),
            ignore=arguments.codes("--ignore"),
            store=_ledger_path(arguments, target.name, stream),
            listeners=parts.listeners,
            oracle=int(arguments.values["--oracle"] or 0),
            place=_gather.of_environment(),
        )
    except GradledgerError as error:
        print(f"gradledger: {error}", file=stream)
        sys.exit(COULD_NOT_RUN)

    code: list[int | None] = [None]

    def after(outcome: Outcome) -> None:
        try:
            code[0] = _conclude(program, target, outcome, arguments, parts, output, stream)
        except Exception as error:  # the program has ended well or badly: its own exit code stands unless it was 0
            say(f"gradledger: the report failed: {type(error).__name__}: {error}\n", stream)
            code[0] = COULD_NOT_RUN if outcome.exit_code == 0 else None

    def before() -> None:
        parts.begin()
        program.start()

    outcome = run(target, before=before, after=after)
    leave(outcome, code[0])


def _launch(command: list[str], stream: TextIO) -> NoReturn:
    """Become the launcher, whose ranks audit themselves: the first one reports."""
    say("gradledger: the ranks are audited, not their launcher; the first of them reports\n", stream)
    sys.stdout.flush()
    os.execv(command[0], command)


def _conclude(
    program: Watch,
    target: Target,
    outcome: Outcome,
    arguments: Arguments,
    parts: Parts,
    output: Path | None,
    stream: TextIO,
) -> int | None:
    """Report; returns the exit code when it is not the program's own."""
    program.stop(End(outcome.exit_code, outcome.exception or "", outcome.message or "", outcome.sites))
    if outcome.watch_error:
        say(f"gradledger: the audit could not start:\n{outcome.watch_error}", stream)
        return COULD_NOT_RUN if outcome.exit_code == 0 else None
    if not program.reports:
        return None  # rank 0 of the launcher reports what this one found
    ledger = program.store if program.stored else None
    stored = ledger.stat().st_size if ledger is not None and ledger.is_file() else 0
    cost = Cost(parts.seconds(), stored, str(ledger.parent) if ledger is not None and stored else "")
    report = parts.complete(program.report(), program.world, cost)
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
    footer += [text] if (text := _launchers.unwatched(target)) else []
    misplaced = [word for word in arguments.rest if word.partition("=")[0] in NAMES]
    if misplaced and outcome.exit_code:
        footer.append(f"{misplaced[0]} stood after the program's name, so the program got it: ours come before it")
    _write(report, arguments, output, stream, footer)
    _open(report, arguments, ledger, stream, footer)
    return _verdict(report, arguments) if outcome.exit_code == 0 and outcome.signal is None else None


def _verdict(report: Report, arguments: Arguments) -> int | None:
    """Our exit code when the program succeeded; None when there is nothing to fail on."""
    if report.reaches(arguments.values["--fail-on"]):
        return FINDINGS
    differs = report.comparison is not None and bool(report.comparison.differences)
    return DIFFERENT if differs and arguments.values["--fail-on-difference"] else None


def _parts(arguments: Arguments) -> Parts:
    """What the report needs beyond the findings.  Raises LedgerError when the run to compare with cannot be read."""
    like = arguments.values["--like"]
    pictures = bool(arguments.values["--open"]) or arguments.values["--format"] == "html"
    return Parts(pictures=pictures, like=_runs.find_run(like, "--like") if like else None)


def say(document: str, stream: TextIO) -> None:
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
    output = check_path(arguments.values["--output"] or None, "--output")
    parts = _parts(arguments)
    judge = Judge(select=arguments.codes("--select"), ignore=arguments.codes("--ignore"), listeners=parts.listeners)
    for event in read(path):
        judge.put(event)
    cost = Cost(0.0, path.stat().st_size, str(path.parent))
    report = parts.complete(judge.finish(sampled=read_meta(path).get("note", "")), judge.world, cost)
    footer = [f"replayed: {path.parent}"]
    _write(report, arguments, output, stream, footer)
    _open(report, arguments, path, stream, footer)
    return _verdict(report, arguments) or 0


def _selfcheck(arguments: Arguments, target: Target, output: Path | None, stream: TextIO) -> int:
    from gradledger.cli import _selfcheck

    answer = _selfcheck.selfcheck(
        target,
        in_place=bool(arguments.values["--in-place"]),
        stdin=_selfcheck.piped(sys.stdin),
        say=lambda text: say(f"gradledger: {text}\n", stream),
        oracle=int(arguments.values["--oracle"] or 0),
    )
    document = (_selfcheck.as_json if arguments.values["--format"] == "json" else _selfcheck.render)(answer)
    if output is None:
        say(document, stream)
    else:
        write_text(output, document)
    return 0 if answer.same else BITS


def _write(report: Report, arguments: Arguments, output: Path | None, stream: TextIO, footer: Sequence[str]) -> None:
    from gradledger.audit.render import html, json, md, sarif, text  # not before the program runs: it pays for each

    form = arguments.values["--format"]
    if form == "json":
        document = json.render(report)
    elif form == "md":
        document = md.render(report, footer=footer)
    elif form == "html":
        document = html.render(report, footer=footer)
    elif form == "sarif":
        document = sarif.render(report)
    elif output is None:
        document = text.compose(report, stream, footer=footer)
    else:
        document = text.render(report, footer=footer)
    if output is None:
        say(document, stream)
    else:
        write_text(output, document)


def _open(report: Report, arguments: Arguments, ledger: Path | None, stream: TextIO, footer: Sequence[str]) -> None:
    """Write the page and show it in the browser; a failure is told and changes nothing else."""
    if not arguments.values["--open"]:
        return
    import tempfile

    from gradledger.audit.render import html
    from gradledger.cli._browser import show

    folder = ledger.parent.absolute() if ledger is not None else Path(tempfile.mkdtemp(prefix="gradledger-"))
    page = folder / PAGE
    try:
        write_text(page, html.render(report, footer=footer))
    except OSError as error:
        say(f"gradledger: the page could not be written: {error}\n", stream)
        return
    problem = show(page)
    told = f"not opened ({problem}); the page is" if problem else "opened:"
    say(f"gradledger: {told} {page}\n", stream)


def _ledger_path(arguments: Arguments, program: str, stream: TextIO) -> Path | None:
    given = arguments.values["--run"]
    try:
        return _runs.new_run(program, Path(given) if given else None)
    except OSError as error:
        if given:
            there = "which is a file" if Path(given).is_file() else f"and {str(error.strerror).lower()}"
            raise UsageError(
                got=f"{given}, {there}",
                wanted="a folder that can be written, made where it is missing",
                where="--run",
                next_step="name another folder, or leave --run out: the run is then kept in the user's cache folder",
            ) from error
        print(f"gradledger: the run is not stored: {error}", file=stream)
        return None
