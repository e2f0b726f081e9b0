"""A time limit that the program's own `step` says to be an end, and that masks a bootstrapped value at once, without a
memory in between: `_, r, done = env.step(a)`, `r + gamma * (1 - done) * value(s2)`.  Read from the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.audit._clocks import Folded, folded
from gradledger.audit._code import bindings, factors_of, last_name, parsed
from gradledger.audit._iterators import own_nodes
from gradledger.audit._loops import enclosing_function

_DEEP = 3
_MASKS = frozenset({"where", "logical_not", "tensor", "as_tensor", "asarray", "array", "float", "int", "FloatTensor"})


@dataclass(frozen=True, slots=True)
class Clocked:
    """`line`: of the `step` that makes the limit an end; `flag`: what masks; `taken`: where it is had from `step`."""

    line: int
    flag: str
    taken: int


def masked_by_clock(file: str, line: int) -> Clocked | None:
    """Such a mask in a product of the statement on a line."""
    tree = parsed(file)
    inside = folded(tree) if tree is not None else []
    if tree is None or not inside:
        return None
    scope = enclosing_function(file, line) or tree
    nodes = list(own_nodes(scope))
    flags = [flag for node in nodes for flag in _taken(node, inside)]
    for node in nodes:
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and first <= line <= last:
            read = {name for factor in factors_of(node) for name in _read(factor, nodes, _DEEP)}
            for clocked, others in flags:
                if clocked.flag in read and not others & read:
                    return clocked
    return None


def _taken(node: ast.AST, inside: list[Folded]) -> Iterator[tuple[Clocked, set[str]]]:
    """Flags that a statement takes from a `step`, and the texts that read its other flags."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return
    target = node.targets[0]
    for fold in inside:
        if last_name(node.value.func) != fold.function:
            continue
        if isinstance(target, ast.Tuple) and len(target.elts) == fold.values:
            texts = [ast.unparse(t) for t in target.elts]
            mine = texts[fold.place]
            yield Clocked(fold.line, mine, node.lineno), set(texts[2:]) - {mine}
        elif isinstance(target, ast.Name) and fold.field:
            yield Clocked(fold.line, f"{target.id}.{fold.field}", node.lineno), set()


def _read(node: ast.AST, nodes: list[ast.AST], deep: int) -> set[str]:
    """Texts of what an expression reads, by way of names that are bound in the function too; what is given to calls,
    those apart that make a mask, is not among them."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        text = ast.unparse(node)
        found = {text}
        for other in nodes if deep and isinstance(node, ast.Name) else ():
            if isinstance(other, ast.Assign) and isinstance(other.targets[0], ast.Name):
                for name, value in bindings(other):
                    found |= _read(value, nodes, deep - 1) if name == text else set()
        return found
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        parts = [*owner, *(node.args if last_name(node.func) in _MASKS else ())]
    return {text for part in parts for text in _read(part, nodes, deep)}
