"""The command line: verbs are the modules of `cli/commands/`.

`audit` and `gradflow` are started without typer: the process is about to belong to the program, and what we import is
seen by it.
"""

from __future__ import annotations

import sys

from gradledger.core.errors import GradledgerError


def entry() -> None:
    """Entry point of the `gradledger` command."""
    if len(sys.argv) > 1 and sys.argv[1] == "audit":
        from gradledger.cli.commands.audit import main

        main(sys.argv[2:])
    if len(sys.argv) > 1 and sys.argv[1] == "gradflow":
        from gradledger.cli.commands.gradflow import main as gradflow

        gradflow(sys.argv[2:])
    from gradledger.cli._app import run

    try:
        sys.exit(run(sys.argv[1:]))
    except GradledgerError as error:
        print(f"gradledger: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    entry()
