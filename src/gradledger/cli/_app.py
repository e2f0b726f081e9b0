"""The typer application: every verb of `cli/commands/`, found by one scan of that folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gradledger._version import __version__
from gradledger.cli import _usage, commands

HELP = "Every gradient accounted for: audits a running PyTorch training program and names the line to edit."


def verbs() -> list[str]:
    """Names of all commands."""
    return sorted(m.name for m in pkgutil.iter_modules(commands.__path__) if not m.name.startswith("_"))


def build() -> typer.Typer:
    """The application.

    A command module defines SUMMARY, and one of `command` (a typer function), `COMMANDS` (several, by the second word)
    and `main(argv)` (reads its own words).
    """
    app = typer.Typer(
        name="gradledger", help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback()(_base)
    for verb in verbs():
        module: Any = importlib.import_module(f"{commands.__name__}.{verb}")
        name = verb.replace("_", "-")  # predict_image.py is the verb predict-image
        if hasattr(module, "command"):
            app.command(name, help=module.SUMMARY)(module.command)
        elif hasattr(module, "COMMANDS"):
            app.add_typer(_group(module.SUMMARY, module.COMMANDS), name=name)
        else:
            settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
            app.command(name, help=module.SUMMARY, context_settings=settings)(_own_words(module))
    return app


def run(words: Sequence[str]) -> int:
    """Run a command line; the exit code.

    Raises UsageError for one that typer does not take.
    """
    command = typer.main.get_command(build())
    try:
        code = command.main(list(words), prog_name="gradledger", standalone_mode=False)
    except Exception as error:
        if not _usage.is_usage_error(error):
            raise
        if _usage.shows_help(error):
            typer.echo(error.format_message(), err=True)  # type: ignore[attr-defined]
            return 2
        raise _usage.told(error, words, command) from None
    return code if isinstance(code, int) else 0


def _group(summary: str, words: dict[str, Any]) -> typer.Typer:
    """A word is a function, or (summary, words) of its own."""
    group = typer.Typer(help=summary, no_args_is_help=True)
    for word, command in words.items():
        if isinstance(command, tuple):
            group.add_typer(_group(*command), name=word)
        else:
            group.command(word)(command)
    return group


def _own_words(module: Any) -> Any:
    def command(context: typer.Context) -> None:
        module.main(context.args)

    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradledger {__version__}")
        raise typer.Exit


def _base(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass
