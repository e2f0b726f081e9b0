"""A readable name for a module that no other module holds: the variable that the program gave it.

`policy = Policy()` is called "policy", `self.q = mlp(4, 2)` "q"; when the line assigns nothing, or two things at
once, the class name is used.
"""

from __future__ import annotations

import re

from gradledger.audit._source import source_line
from gradledger.core.site import Frame, Site

_ASSIGNED = re.compile(r"^\s*(?:self\.|cls\.)?([A-Za-z_][\w.]*)\s*(?::[^=]+)?=(?!=)\s*(.*)$")
# A module that is first seen when it is called stands in no such variable.
_RESULT = re.compile(r"(^|_)loss(_(step|value|sum|mean|total))?$")


def assigned(line: str) -> str:
    """The variable that a line of source assigns the result of a call to; "" for any other line."""
    match = _ASSIGNED.match(line)
    return match[1] if match is not None and "(" in match[2] else ""


def root_label(site: Site, cls: str, taken: set[str]) -> str:
    """Label of a module of class `cls` built at `site`, distinct from every label in `taken`."""
    frames = [Frame(site.file, site.line, site.function), *site.callers]
    for frame in frames:
        name = assigned(source_line(frame.file, frame.line))
        if name and name not in taken and not _RESULT.search(name):
            return name
    if cls not in taken:
        return cls
    at_line = f"{cls}@{site.line}"
    number = 2
    label = at_line
    while label in taken:
        label = f"{at_line}#{number}"
        number += 1
    return label
