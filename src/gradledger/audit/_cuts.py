"""Where the source cuts the result of a line off: `code = encoder(x)`, and two lines on `code.detach().numpy()`."""

from __future__ import annotations

import ast

from gradledger.audit._code import walk
from gradledger.audit._loops import enclosing_function
from gradledger.core.site import Site

_CUTS = frozenset({"detach", "detach_", "data", "numpy", "item", "tolist"})
MOST = 3


def cut_after(site: Site) -> list[Site]:
    """Lines of the same function, after a line, on which a name that it gives loses its graph."""
    function = enclosing_function(site.file, site.line) if site.file else None
    if function is None:
        return []
    nodes = walk(function)
    given = {
        n.id
        for node in nodes
        if isinstance(node, ast.Assign) and node.lineno <= site.line <= (node.end_lineno or node.lineno)
        for target in node.targets
        for n in walk(target)
        if isinstance(n, ast.Name)
    }
    lines = {
        node.lineno
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in _CUTS and node.lineno > site.line
        if any(isinstance(n, ast.Name) and n.id in given for n in walk(node.value))
    }
    return [Site(site.file, line, function.name) for line in sorted(lines)[:MOST]]
