"""Notebooks: a cell magic that audits what a cell trains.

    %load_ext gradledger.integrations.notebook

    %%gradledger
    train()

Options: `--select CODES`, `--ignore CODES` (comma separated), `--name NAME` keeps the watch under that name, to be
asked for `NAME.findings`. The cell runs as it would without the magic: its output, its variables, its exception.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any, NoReturn

from gradledger.core.errors import UsageError
from gradledger.watch import Watch, render_text


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(
            got=message,
            wanted=self.format_usage().strip().removeprefix("usage: "),
            where="%%gradledger",
            next_step="`%%gradledger?` tells what they do",
        )


def _codes(text: str) -> list[str]:
    return [code.strip() for code in text.split(",") if code.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = _Words(prog="%%gradledger", add_help=False)
    parser.add_argument("--select", type=_codes, default=[])
    parser.add_argument("--ignore", type=_codes, default=[])
    parser.add_argument("--name", default="")
    return parser


def audit_cell(shell: Any, line: str, cell: str) -> None:
    """Run a cell under watch, then print the report to standard error; nothing when nothing was found."""
    parser = _parser()
    words = parser.parse_args(shlex.split(line))
    if words.name and not words.name.isidentifier():
        parser.error(f"--name {words.name}, which is no name of a variable")
    with Watch(program="the cell", select=words.select, ignore=words.ignore) as running:
        done = shell.run_cell(cell)
    if words.name:
        shell.user_ns[words.name] = running
    report = running.report()
    if report.findings:
        print(render_text(report), file=sys.stderr, flush=True)
    if done.error_in_exec is None and done.error_before_exec is None and not report.findings:
        ended = report.ended
        steps = ended.steps if ended is not None else 0
        print(f"gradledger: nothing found in {steps} optimizer steps", file=sys.stderr, flush=True)


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext`."""

    from IPython.core.error import UsageError as Shown  # told by the shell in a line, without our frames

    def gradledger(line: str, cell: str) -> None:
        try:
            audit_cell(shell, line, cell)
        except UsageError as error:
            raise Shown(str(error)) from None

    gradledger.__doc__ = __doc__
    shell.register_magic_function(gradledger, magic_kind="cell", magic_name="gradledger")
