"""The command line: verbs are the modules of `cli/commands/`.

`audit` is started without typer: the process is about to belong to the program, and what we import is seen by it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

from gradledger.cli import commands
from gradledger.core.errors import GradledgerError


def entry() -> None:
    """Entry point of the `gradledger` command."""
    if len(sys.argv) > 1 and sys.argv[1] == "audit":
        from gradledger.cli.commands.audit import main

        main(sys.argv[2:])
    try:
        _app()()
    except GradledgerError as error:
        print(f"gradledger: {error}", file=sys.stderr)
        sys.exit(2)


def verbs() -> list[str]:
    """Names of all commands."""
    return sorted(m.name for m in pkgutil.iter_modules(commands.__path__) if not m.name.startswith("_"))


def _app() -> Any:
    import typer

    from gradledger._version import __version__

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"gradledger {__version__}")
            raise typer.Exit

    app = typer.Typer(
        name="gradledger",
        help="Every gradient accounted for: audits a running PyTorch training program and names the line to edit.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def base(
        version: bool = typer.Option(
            False, "--version", help="Show the version.", callback=show_version, is_eager=True
        ),
    ) -> None:
        pass

    for verb in verbs():
        module = importlib.import_module(f"{commands.__name__}.{verb}")
        if hasattr(module, "command"):
            app.command(verb, help=module.SUMMARY)(module.command)
        else:  # it reads its own command line: see `entry`

            def own(context: typer.Context, run: Any = module.main) -> None:
                run(context.args)

            settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
            app.command(verb, help=module.SUMMARY, context_settings=settings)(own)
    return app


if __name__ == "__main__":
    entry()
