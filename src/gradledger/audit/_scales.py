"""A loss scale written by hand: the loss times a number, and after the reverse pass the gradients divided by it.

The number is read off the recorded terms of a loss; the source says whether a clip's limit is written in terms of it.
"""

from __future__ import annotations

import ast
import math

from gradledger.audit._code import parsed, walk
from gradledger.core import events as ev
from gradledger.core.site import Site

ALIKE = 0.01  # two numbers that differ by less, relatively, are one scale
SAME_COUNT = 1e-4  # and one count
_DIVIDES = ("div_", "mul_", "divide_", "multiply_", "_foreach_div_", "_foreach_mul_", "_foreach_div", "_foreach_mul")


def scale_of(event: ev.Backward, factor: float) -> float | None:
    """The number that multiplied the loss of a pass and that gradients multiplied by `factor` get rid of; None when
    there is none."""
    if not math.isfinite(factor) or factor == 0:
        return None
    wanted = abs(1 / factor)
    return next((s for s in _scales(event) if math.isclose(s, wanted, rel_tol=ALIKE)), None)


def divides_by_count(passes: list[ev.Backward], factor: float) -> bool:
    """Whether the passes walked plain sums, over just so many elements together as `factor` divides by."""
    if not passes or not math.isfinite(factor) or factor == 0:
        return False
    terms = [t for b in passes for t in b.terms if t.has_graph]
    sums = [t.elements for t in terms if t.reduction == "sum" and not t.divided and math.isclose(abs(t.factor), 1.0)]
    if len(terms) != len(passes) or len(sums) != len(terms) or sum(sums) <= 1:
        return False
    return math.isclose(sum(sums) * abs(factor), 1.0, rel_tol=SAME_COUNT)


def _scales(event: ev.Backward) -> list[float]:
    """Numbers by which the loss, or one of its terms, was multiplied."""
    found = [] if event.seed is None else [abs(event.seed)]
    terms = [t for t in event.terms if t.has_graph]
    # a scale that is a tensor stands in no factor: then the values tell, when they are all known
    rest = 1.0
    if event.value is not None and event.terms and all(t.value is not None for t in event.terms):
        plain = sum(t.factor * (t.value or 0.0) for t in event.terms)
        rest = abs(event.value / plain) if plain and math.isfinite(event.value / plain) else 1.0
    found += [abs(t.factor) * rest for t in terms]
    found += [s * abs(event.seed) for s in found[1:]] if event.seed is not None else []
    return [s for s in found if s > 0 and not math.isclose(s, 1.0, rel_tol=ALIKE)]


def limit_is_scaled(clip: Site) -> bool:
    """Whether the limit of the clip on this line is written with a name by which gradients or losses are scaled."""
    tree = parsed(clip.file)
    if tree is None:
        return False
    limit: set[str] = set()
    scaling: set[str] = set()
    assigned: dict[str, list[ast.expr]] = {}
    for node in walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                assigned.setdefault(_word(target), []).append(node.value)
                if _word(target) == "grad" and isinstance(node.value, ast.BinOp):
                    scaling |= _words(node.value)
        elif isinstance(node, ast.AugAssign) and _word(node.target) == "grad":
            scaling |= _words(node.value)
        elif isinstance(node, ast.Call):
            name = _word(node.func)
            if node.lineno <= clip.line <= (node.end_lineno or node.lineno) and name.startswith("clip_grad"):
                given = [k.value for k in node.keywords if k.arg in ("max_norm", "clip_value")]
                for expression in given or node.args[1:2]:
                    limit |= _words(expression)
            elif name in _DIVIDES:
                scaling |= {w for argument in node.args for w in _words(argument)}
            elif name == "backward" and isinstance(node.func, ast.Attribute):
                scaling |= {w for part in (node.func.value, *node.args) for w in _words(part)}
    for name in [n for n in limit if n in assigned]:
        limit |= {w for value in assigned[name] for w in _words(value)}
    return bool(limit & scaling)


def _word(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _words(node: ast.expr) -> set[str]:
    """Last names in an expression: `args.scale * limit` -> scale, limit."""
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Name):
        return {node.id}
    return {w for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr) for w in _words(child)}
