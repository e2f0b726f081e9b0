"""`# gradledger: allow[GL-G01] reason`: findings that the author of a program has judged and accepted.

The comment counts on any line of the statement that the finding names, on a line of its own above that statement, or at
the top of the file (before any code but the docstring) for the whole file.  Codes and rule names are accepted, several
separated by commas.  A comment without reason still counts but is remarked upon, so is one that silences nothing.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gradledger.audit.report import Note, Suppressed
from gradledger.audit.rule import Finding

_ALLOW = re.compile(r"#\s*gradledger:\s*allow\[([^\]]*)\]\s*:?\s*(.*)$")
_SKIP = {tokenize.NL, tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}


@dataclass(frozen=True, slots=True)
class Allow:
    """One comment: the lines it covers (None: the whole file), the words in its brackets, its reason."""

    file: str
    line: int
    first: int
    last: int | None
    words: tuple[str, ...]
    reason: str

    def covers(self, line: int) -> bool:
        """Whether a finding on `line` of the same file is meant."""
        return self.last is None or self.first <= line <= self.last


def allows_in(file: str) -> list[Allow]:
    """All allow comments of `file`; none when it cannot be read or is not Python."""
    try:
        with tokenize.open(file) as handle:
            text = handle.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return []
    return parse(text, file) if "gradledger:" in text else []


def parse(text: str, file: str) -> list[Allow]:
    """All allow comments in the source `text`."""
    found: list[Allow] = []
    waiting: list[tuple[int, re.Match[str]]] = []  # comments on lines of their own, for the statement that follows
    inside: list[tuple[int, re.Match[str]]] = []  # comments within the current statement
    start: int | None = None
    seen_code = False
    docstring_possible = True
    lines = iter(text.splitlines(keepends=True))

    def make(at: int, match: re.Match[str], first: int, last: int | None) -> Allow:
        words = tuple(w.strip() for w in match[1].split(",") if w.strip())
        return Allow(file, at, first, last, words, match[2].strip())

    try:
        for token in tokenize.generate_tokens(lambda: next(lines, "")):
            if token.type == tokenize.COMMENT and (match := _ALLOW.search(token.string)):
                if start is not None:
                    inside.append((token.start[0], match))
                elif not seen_code:
                    found.append(make(token.start[0], match, 1, None))
                else:
                    waiting.append((token.start[0], match))
            elif token.type == tokenize.NEWLINE:
                # the comment that ends a statement's last line comes before its NEWLINE
                first = start if start is not None else token.start[0]
                for at, match in waiting + inside:
                    found.append(make(at, match, min(first, at), token.start[0]))
                waiting, inside, start = [], [], None
            elif token.type not in _SKIP and token.type != tokenize.ENDMARKER and start is None:
                start = token.start[0]
                if docstring_possible and token.type == tokenize.STRING:
                    docstring_possible = False
                else:
                    seen_code = True
    except (tokenize.TokenError, SyntaxError):
        pass  # what was read so far still counts
    return found


def apply(
    findings: Iterable[Finding], program: str, ran: set[str], resolve: Callable[[str], str]
) -> tuple[list[Finding], list[Suppressed], list[Note]]:
    """Take out what is allowed.

    `ran`: printed codes of the rules that ran (an allow for another rule is not called unused); `resolve`: word ->
    printed code, raises for an unknown word.  Returns what stays, what was silenced, and remarks on the comments.
    """
    kept: list[Finding] = []
    silenced: list[Suppressed] = []
    by_file: dict[str, list[tuple[Allow, set[str]]]] = {}
    notes: list[Note] = []
    used: set[Allow] = set()

    def read(file: str) -> list[tuple[Allow, set[str]]]:
        if file not in by_file:
            by_file[file] = []
            for allow in allows_in(file):
                keys: set[str] = set()
                for word in allow.words:
                    try:
                        keys.add(resolve(word))
                    except Exception:
                        notes.append(Note(file, allow.line, f"allow[{word}] names no rule"))
                if not allow.words:
                    notes.append(Note(file, allow.line, "allow[] names no rule"))
                if not allow.reason:
                    message = f"allow[{', '.join(allow.words)}] gives no reason: write why after the bracket"
                    notes.append(Note(file, allow.line, message))
                by_file[file].append((allow, keys))
        return by_file[file]

    if program and Path(program).is_file():
        read(str(Path(program).absolute()))
    for finding in findings:
        hit = (
            next(
                (a for a, keys in read(finding.site.file) if finding.key in keys and a.covers(finding.site.line)), None
            )
            if finding.has_line
            else None
        )
        if hit is None:
            kept.append(finding)
        else:
            used.add(hit)
            silenced.append(Suppressed(finding, hit.reason))
    for allows in by_file.values():
        for allow, keys in allows:
            if allow not in used and keys and keys <= ran:
                notes.append(Note(allow.file, allow.line, f"allow[{', '.join(allow.words)}] silences nothing"))
    return kept, silenced, sorted(notes, key=lambda n: (n.file, n.line))
