"""Plain values of a class that follow a parameter or buffer of its own: no state holds them, and what fills the module
from a file leaves them as the constructor made them."""

from __future__ import annotations

import ast

from gradledger.audit._carried_on import RESTORES, Use, class_of, given_outside, is_own, methods_of
from gradledger.audit._code import parsed, walk
from gradledger.audit._first_batch import registered
from gradledger.core.events import NotPutBack

_TELLS = frozenset({"extra_repr", "__repr__", "__str__", "state_dict"})


def follows(event: NotPutBack, name: str) -> tuple[int, list[int], str] | None:
    """Of an attribute that is only ever made from a parameter or buffer of its class (`self.alpha =
    self.log_alpha.exp().item()`), and computed with elsewhere: the line that makes it outside of the constructor, the
    lines that compute with it, and the parameter.  None for any other, and for one that a restoring method sets."""
    tree = parsed(event.cls_site.file)
    cls = class_of(tree, event) if tree is not None else None
    if tree is None or cls is None or event.owner != "module":
        return None
    methods = list(methods_of(tree, cls))
    outside = Use()
    given_outside(tree, methods, name, outside)
    if outside.restored or outside.anew or outside.carried:
        return None
    kept = {w for m in methods if m.name == "__init__" for n in walk(m) for w in registered(n)} - {name}
    made, source, used = 0, "", list[int]()
    for method in methods:
        me = method.args.args[0].arg
        written = [n for n in walk(method) if isinstance(n, ast.Assign) and any(is_own(t, me, name) for t in n.targets)]
        if written and RESTORES.search(method.name):
            return None
        for node in written:
            held = [n.attr for n in walk(node.value) if isinstance(n, ast.Attribute) and n.attr in kept]
            if not held and method.name != "__init__":
                return None
            if held and method.name != "__init__":
                made, source = made or node.lineno, held[0]
        if not written and method.name not in _TELLS:
            used += [n.lineno for n in walk(method) if isinstance(n, ast.BinOp) and _computes(n, me, name)]
    return (made, sorted(set(used)), source) if made and used else None


def _computes(node: ast.BinOp, me: str, name: str) -> bool:
    """`self.alpha * x`"""
    return is_own(node.left, me, name) or is_own(node.right, me, name)
