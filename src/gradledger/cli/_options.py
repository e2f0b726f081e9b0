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
    """`metavar`: what follows the name ("" for a flag); `choices`: the allowed words; `help`: one sentence; `alone`:
    what it means without a value, which then follows by `=` only ("": it needs one)."""

    name: str
    metavar: str
    help: str
    default: str = ""
    choices: tuple[str, ...] = ()
    alone: str = ""


FORMATS = ("text", "json", "md", "html", "sarif")
OPTIONS: tuple[Option, ...] = (
    Option("--format", "FORMAT", f"Form of the report: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", "text", FORMATS),
    Option("--output", "FILE", "Write the report to FILE; without it the report goes to standard error."),
    Option("--open", "", "Show the report as a page in the browser too; the page is kept beside the recorded run."),
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
    Option("--like", "RUN", "Compare with a stored good run of the same program (named as for --replay)."),
    Option("--fail-on-difference", "", "With --like: exit with 4 when the program succeeded but a relation differs."),
    Option(
        "--selfcheck",
        "",
        "Instead of a report: run the program without and with the audit, each time in a fresh copy of the working "
        "folder, and compare every bit that it prints, trains, draws and writes.  Exit with 5 when one differs.",
    ),
    Option("--in-place", "", "With --selfcheck: run in the working folder itself; files are not compared then."),
    Option(
        "--oracle",
        "[=EVERY]",
        "Recompute gradients on copies, term by term, in the first iterations and in two out of EVERY (10 when it is "
        "not given), and say what the optimizer's gradients were made of.  With --selfcheck: in the audited run.",
        alone="10",
    ),
    Option("--help", "", "Show this text."),
)
NOT_WITH_SELFCHECK = ("--open", "--select", "--ignore", "--run", "--replay", "--like", "--fail-on-difference")
USAGE = "gradledger audit [options] (script.py | folder | -m package.module) [arguments of the program]"


@dataclass(frozen=True, slots=True)
class Arguments:
    """`values`: option name -> text ("yes" for a flag that was given); `target`: the program (`module`: after -m);
    `rest`: its own arguments."""

    values: dict[str, str] = field(default_factory=dict)
    target: str = ""
    module: bool = False
    rest: tuple[str, ...] = ()
    help: bool = False

    def codes(self, name: str) -> list[str]:
        """Words of a comma-separated option."""
        return [word.strip() for word in self.values[name].split(",") if word.strip()]


def parse(argv: Sequence[str]) -> Arguments:
    """Split the command line of `gradledger audit`.

    Raises UsageError for an unknown option, a missing value, a word outside the choices, or no program at all.
    """
    arguments = split(argv, OPTIONS, "gradledger audit")
    if arguments.values["--fail-on-difference"] and not arguments.values["--like"] and not arguments.help:
        raise wrong("--fail-on-difference without --like", "--like RUN, the run to compare with", "gradledger audit")
    every = arguments.values["--oracle"]
    if every and not arguments.help and not (every.isdecimal() and int(every) > 0):
        raise wrong(f"--oracle={every}", "--oracle=EVERY with a whole number above 0", "gradledger audit")
    if arguments.values["--in-place"] and not arguments.values["--selfcheck"] and not arguments.help:
        raise wrong("--in-place without --selfcheck", "both", "gradledger audit")
    alone = [name for name in NOT_WITH_SELFCHECK if arguments.values[name]] if arguments.values["--selfcheck"] else []
    if alone or (arguments.values["--selfcheck"] and arguments.values["--format"] not in ("text", "json")):
        what = alone[0] if alone else f"--format {arguments.values['--format']}"
        wanted = "with it --format text or json, --output, --in-place and --oracle, and nothing else"
        raise wrong(f"--selfcheck with {what}", wanted, "gradledger audit")
    return arguments


def split(argv: Sequence[str], options: Sequence[Option], verb: str) -> Arguments:
    """Our options, then the program and what belongs to it.  Raises as `parse`."""
    values = {o.name: o.default for o in options}
    known = {o.name: o for o in options}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            return Arguments(values, help=True)
        if word.startswith("-m") and not word.startswith("--"):
            module = word[2:] or (words.pop(0) if words else "")
            if not module:
                raise wrong("-m without a module", "the name of a module after -m", verb)
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
            wanted = f"one of {', '.join(known)}; options of the program come after its name"
            raise wrong(word, wanted, verb, near=(name, tuple(known)))
        if not option.metavar:
            if equals:
                raise wrong(word, f"{name} alone: it takes no value", verb)
            values[name] = "yes"
            continue
        if not equals and option.alone:
            if len(words) > 1 and words[0].isdecimal():  # no program is called 5
                raise wrong(f"{name} {words[0]}", f"{name}={words[0]}, in one word", verb)
            value = option.alone
        elif not equals:
            if not words:
                raise wrong(f"{name} without a value", f"{name} {option.metavar}", verb)
            value = words.pop(0)
        if option.choices and value not in option.choices:
            raise wrong(f"{name} {value}", f"{name} " + " or ".join(option.choices), verb)
        values[name] = value
    if not values.get("--replay"):
        raise wrong("no program", "a script, a folder with __main__.py, or -m package.module", verb)
    return Arguments(values)


def help_text() -> str:
    """The help of `gradledger audit`."""
    head = "Run a program exactly as python would, and say where its gradients go astray."
    tail = (
        "Exit code: the program's own; 3 when it succeeded but findings reach --fail-on; 4 when it succeeded, nothing "
        "reached --fail-on, and --fail-on-difference found one; 5 when --selfcheck found a difference; 2 when the "
        "audit could not run.  A finding is accepted by a comment on its line: # gradledger: allow[GL-G01] reason"
    )
    return help_of(USAGE, head, OPTIONS, tail)


def help_of(usage: str, head: str, options: Sequence[Option], tail: str) -> str:
    """The help of a verb that runs a program."""
    import shutil  # here alone: its compressors are not to be in the program's process

    width = max(60, min(100, shutil.get_terminal_size().columns))
    lines = [*textwrap.wrap(f"Usage: {usage}", width, subsequent_indent=" " * 7), "", *textwrap.wrap(head, width), ""]
    lines += textwrap.wrap("Options (before the program's name; what comes after it belongs to the program):", width)
    for option in options:
        name = f"  {option.name}{'' if option.alone else ' '}{option.metavar}"
        default = f"  [default: {option.default}]" if option.default else ""
        if len(name) >= 20:
            lines.append(name.rstrip())
            name = ""
        lines += textwrap.wrap(option.help + default, width, initial_indent=name.ljust(20), subsequent_indent=" " * 20)
    return "\n".join([*lines, "", *textwrap.wrap(tail, width)]) + "\n"


def wrong(got: str, wanted: str, verb: str, *, near: tuple[str, Sequence[str]] | None = None) -> UsageError:
    """An error of the command line; `near`: a word that is not known, and those that are."""
    next_step = f"`{verb} --help` lists the options"
    if near is not None:
        from gradledger.cli import _usage  # the process is given to no program any more

        next_step = _usage.near(*near, next_step)
    return UsageError(got=got, wanted=wanted, where=verb, next_step=next_step)
