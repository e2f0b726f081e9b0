"""The options of `gradledger audit`, as one table, and the parser that knows where the program's own arguments begin.

Everything from the program's name (or from `-m module`) on belongs to the program, whatever it looks like.  The parser
is ours and small because the command must import next to nothing into the process that it hands to the program.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradledger.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Option:
    """`metavar`: what follows the name ("" for a flag); `choices`: the allowed words; `help`: one sentence."""

    name: str
    metavar: str
    help: str
    default: str = ""
    choices: tuple[str, ...] = ()


OPTIONS: tuple[Option, ...] = (
    Option("--format", "FORMAT", "Form of the report: text, json or md.", "text", ("text", "json", "md")),
    Option("--output", "FILE", "Write the report to FILE; without it the report goes to standard error."),
    Option(
        "--fail-on",
        "LEVEL",
        "Exit with 3 when the program succeeded but findings reach LEVEL: error, warning or never.",
        "error",
        ("error", "warning", "never"),
    ),
    Option("--select", "CODES", "Judge by these rules only: codes, names or a series letter, separated by commas."),
    Option("--ignore", "CODES", "Leave these rules out."),
    Option("--run", "DIR", "Keep the recorded run in DIR instead of the user's cache folder."),
    Option(
        "--replay", "RUN", "Judge a recorded run again: its folder, its name, or 'last'.  Runs nothing, needs no torch."
    ),
    Option("--help", "", "Show this text."),
)
USAGE = "gradledger audit [options] (script.py | folder | -m package.module) [arguments of the program]"


@dataclass(frozen=True, slots=True)
class Arguments:
    """`values`: option name -> text; `target`: the program (`module`: after -m); `rest`: its own arguments."""

    values: dict[str, str] = field(default_factory=dict)
    target: str = ""
    module: bool = False
    rest: tuple[str, ...] = ()
    help: bool = False

    def codes(self, name: str) -> list[str]:
        """Words of a comma-separated option."""
        return [word.strip() for word in self.values[name].split(",") if word.strip()]


def parse(argv: Sequence[str]) -> Arguments:
    """Split a command line.

    Raises UsageError for an unknown option, a missing value, a word outside the choices, or no program at all.
    """
    values = {o.name: o.default for o in OPTIONS}
    known = {o.name: o for o in OPTIONS}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            return Arguments(values, help=True)
        if word.startswith("-m") and not word.startswith("--"):
            module = word[2:] or (words.pop(0) if words else "")
            if not module:
                raise _wrong("-m without a module", "the name of a module after -m")
            return Arguments(values, module, True, tuple(words))
        if word == "--":
            if not words:
                break
            return Arguments(values, words[0], False, tuple(words[1:]))
        if not word.startswith("-") or word == "-":
            return Arguments(values, word, False, tuple(words))
        name, equals, value = word.partition("=")
        option = known.get(name)
        if option is None:
            raise _wrong(word, f"one of {', '.join(known)}; options of the program come after its name")
        if not equals:
            if not words:
                raise _wrong(f"{name} without a value", f"{name} {option.metavar}")
            value = words.pop(0)
        if option.choices and value not in option.choices:
            raise _wrong(f"{name} {value}", f"{name} " + " or ".join(option.choices))
        values[name] = value
    if not values["--replay"]:
        raise _wrong("no program", "a script, a folder with __main__.py, or -m package.module")
    return Arguments(values)


def help_text() -> str:
    """The help of `gradledger audit`."""
    lines = [
        f"Usage: {USAGE}",
        "",
        "Run a program exactly as python would, and say where its gradients go astray.",
        "",
        "Options (before the program's name; what comes after it belongs to the program):",
    ]
    for option in OPTIONS:
        head = f"  {option.name} {option.metavar}".ljust(20)
        default = f"  [default: {option.default}]" if option.default else ""
        lines += textwrap.wrap(option.help + default, 100, initial_indent=head, subsequent_indent=" " * 20)
    lines += [
        "",
        "Exit code: the program's own; 3 when it succeeded but findings reach --fail-on; 2 when the audit could",
        "not run.  A finding is accepted by a comment on its line: # gradledger: allow[GL-G01] reason",
    ]
    return "\n".join(lines) + "\n"


def _wrong(got: str, wanted: str) -> UsageError:
    return UsageError(
        got=got, wanted=wanted, where="gradledger audit", next_step="`gradledger audit --help` lists the options"
    )
