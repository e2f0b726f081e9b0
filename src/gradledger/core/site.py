"""Where something happened in the user's program: file, line, function, and the callers above it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of user code."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Site:
    """The innermost frame of user code, and up to five user frames above it (nearest first).

    `first_line` is the first line of the function that holds the frame (its decorator line when it is
    decorated); 0 for module level.  `in_init` says that some frame between this one and the top is an
    ``__init__`` method.  A site with an empty `file` stands for "not in user code".
    """

    file: str
    line: int
    function: str
    first_line: int = 0
    in_init: bool = False
    callers: tuple[Frame, ...] = ()

    def key(self) -> tuple[str, int]:
        """(file, line): what a person edits."""
        return (self.file, self.line)

    def above(self, most: int | None = None) -> tuple[Site, ...]:
        """The lines that called the function in which it lies, nearest first, and not more than `most`."""
        return tuple(Site(f.file, f.line, f.function) for f in self.callers[:most])


NOWHERE = Site("", 0, "")


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package: written for many programs, and none that its user edits."""
    return "site-packages" in file or "dist-packages" in file
