"""What typer has to say of a wrong command line, told as every other error here: got, wanted, where, what next.

Typer carries a command-line parser of its own in some versions and takes it from outside in others, so its errors are
known by what they have, not by their class.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from gradledger.core.errors import UsageError

_KINDS = (("valid integer", "a whole number"), ("valid number", "a number"), ("valid boolean", "true or false"))
_BOUND = re.compile(r"Input should be (greater|less) than (or equal to )?([\d.+-]+)")
_CHOICES = re.compile(r"is not one of (.+?)\.?$")


def is_usage_error(error: BaseException) -> bool:
    """Did the parser raise it, and not the work?"""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def shows_help(error: Any) -> bool:
    """A group without a word of its own: its help is the answer."""
    return type(error).__name__ == "NoArgsIsHelpError"


def told(error: Any, words: Sequence[str], root: Any) -> UsageError:
    """`error` in our words; `words` are those of the command line, in which the bad value is looked up; `root`: the
    command of which they are words."""
    context = error.ctx
    where = _path(context, words, root)
    next_step = f"`{where} --help` lists the options"
    parameter = getattr(error, "param", None)
    message = str(error.message).strip()
    if type(error).__name__ == "NoSuchOption":
        options = [*(one for p in context.command.params for one in p.opts if one.startswith("-")), "--help"]
        return UsageError(
            got=str(error.option_name),
            wanted=f"one of {', '.join(options)}",
            where=where,
            next_step=near(error.option_name, options, next_step),
        )
    if parameter is not None and type(error).__name__ == "MissingParameter":
        return UsageError(got=f"no {_label(parameter)}", wanted=_help(parameter), where=where, next_step=next_step)
    if parameter is not None:
        value = _value(parameter, words)
        got = f"{_label(parameter)} {value}".strip() if value else f"{_label(parameter)}: {message}"
        return UsageError(got=got, wanted=_wanted(message, parameter), where=where, next_step=next_step)
    alone = re.search(r"Option '(.+?)' requires an argument", message)
    if alone:
        return UsageError(
            got=f"{alone[1]} without a value", wanted=f"{alone[1]} and its value", where=where, next_step=next_step
        )
    extra = re.search(r"unexpected extra arguments?\W*s?\)? \((.+)\)", message)
    if extra:
        wanted = ", ".join(_label(p) for p in context.command.params if not p.opts[0].startswith("-"))
        return UsageError(
            got=f"{extra[1]}, one word too many" if " " not in extra[1] else f"{extra[1]}, words too many",
            wanted=f"{wanted} and options" if wanted else "options alone",
            where=where,
            next_step=next_step,
        )
    unknown = re.search(r"No such command '(.+?)'", message)
    if unknown:
        commands = list(getattr(context.command, "commands", {}))
        return UsageError(
            got=repr(unknown[1]),
            wanted=f"one of {', '.join(commands)}",
            where=where,
            next_step=near(unknown[1], commands, f"`{where} --help` says what each of them does"),
        )
    return UsageError(got=message, wanted="a command line as the help shows it", where=where, next_step=next_step)


def _path(context: Any, words: Sequence[str], command: Any) -> str:
    """ "gradledger data split", however the command was started."""
    names: list[str] = []
    inner = context
    while inner is not None and inner.parent is not None:
        names.insert(0, str(inner.info_name))
        inner = inner.parent
    if context is None:  # an error of splitting the words knows no command
        for word in words:
            command = getattr(command, "commands", {}).get(word)
            if command is None:
                break
            names.append(word)
    return " ".join(["gradledger", *names])


def _label(parameter: Any) -> str:
    longest = max(parameter.opts, key=len)
    return longest if longest.startswith("-") else str(parameter.metavar or longest.upper())


def _help(parameter: Any) -> str:
    text = str(parameter.help or "").rstrip(".")
    metavar = parameter.metavar if _label(parameter).startswith("-") else None
    shown = f"{_label(parameter)} {metavar}" if metavar else _label(parameter)
    first = text.partition(" ")[0]
    small = text[:1].lower() + text[1:] if first[1:].islower() or first == "A" else text
    return f"{shown} ({small})" if text else shown


def _value(parameter: Any, words: Sequence[str]) -> str:
    """What was written for it; "" for an argument, which has no name to find it by."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in parameter.opts and name.startswith("-"):
            return value if equals else (words[at + 1] if at + 1 < len(words) else "")
    return ""


def _wanted(message: str, parameter: Any) -> str:
    bound, choices = _BOUND.search(message), _CHOICES.search(message)
    if bound:
        side = {("greater", True): "of at least", ("less", True): "of at most", ("greater", False): "above"}
        return f"a number {side.get((bound[1], bool(bound[2])), 'below')} {bound[3]}"
    if choices:
        return f"one of {choices[1]}"
    return next((wanted for part, wanted in _KINDS if part in message), _help(parameter))


def near(word: str, among: Sequence[str], otherwise: str) -> str:
    """A next step that begins with the word that was probably meant."""
    close = difflib.get_close_matches(word, among, n=1, cutoff=0.6)
    return f"did you mean {close[0]}? {otherwise}" if close else otherwise
