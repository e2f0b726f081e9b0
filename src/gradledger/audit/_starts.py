"""Flags of the first step of an episode in a loop that runs back through time, read from the text: what comes after
step t is cut off by the flag of t + 1, since that of t says where the episode of t began."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from gradledger.audit._back_in_time import next_of
from gradledger.audit._code import bindings, last_name, walk
from gradledger.audit._rollouts import loops_near

_START = re.compile(r"(is_?|episode_?|ep_?)?(first|start|begin|beginning)s?(_flags?)?$", re.IGNORECASE)
_REWARD = re.compile(r"(r|rs|rew|rews|rewards?)(_\w*)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Early:
    """`flag`: of the first step, read at step t on `line`; `made`: where the mask was made of it."""

    line: int
    flag: str
    made: int


def cut_by_own_start(file: str, line: int) -> Early | None:
    """Such a loop in the function around `line`, or in one of the same file that this function calls by name."""
    found = (_cut(scope, loop, step) for _tree, scope, loop, step in loops_near(file, line))
    return next((one for one in found if one is not None), None)


def _cut(function: ast.AST, loop: ast.For, step: str) -> Early | None:
    """In a loop that reads rewards at t and a value at t + 1: flags of starts that are read at t alone."""
    masks = _masks(function)
    later, rewards = False, False
    flags: list[tuple[int, str, int, int]] = []
    for node in (n for part in loop.body for n in walk(part)):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        name, index = last_name(node.value), _index(node.slice)
        here = isinstance(index, ast.Name) and index.id == step
        after = index is not None and next_of(index, {step})
        if not here and not after:
            continue
        flag, moved, made = masks.get(name, (name, 0, 0))
        if _START.match(flag):
            flags.append((node.lineno, flag, made, moved + after))
        rewards |= here and bool(_REWARD.match(name))
        later |= after
    if rewards and later and flags and all(moved == 0 for *_, moved in flags):
        line, flag, made, _ = flags[0]
        return Early(line, flag, made)
    return None


def _index(index: ast.expr) -> ast.expr | None:
    """`t` of `x[t]` and of `x[:, t]`."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    own = [p for p in parts if not isinstance(p, ast.Slice)]
    return own[0] if len(own) == 1 else None


def _masks(function: ast.AST) -> dict[str, tuple[str, int, int]]:
    """Names of masks made of a flag of starts: the flag, by how many steps it was moved, the line."""
    found: dict[str, tuple[str, int, int]] = {}
    for node in walk(function):
        for name, value in bindings(node) if isinstance(node, ast.Assign) else ():
            read = [n for n in walk(value) if isinstance(n, (ast.Name, ast.Attribute)) and _START.match(last_name(n))]
            if len(read) == 1 and not _START.match(name):
                moved = any(_from_one(n.slice) for n in walk(value) if isinstance(n, ast.Subscript))
                found[name] = (last_name(read[0]), int(moved), value.lineno)
    return found


def _from_one(index: ast.expr) -> bool:
    """`x[1:]`, `x[:, 1:]`"""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(p, ast.Slice) and getattr(p.lower, "value", None) == 1 for p in parts)
