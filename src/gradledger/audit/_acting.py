"""Whether a program acts in an environment: `state, reward, done, ... = env.step(action)` (D9)."""

from __future__ import annotations

import ast
import functools

from gradledger.audit._code import last_name, parsed, walk
from gradledger.core.site import Site, is_installed


def acts(site: Site) -> bool:
    """Whether a file of the program on the way to a line takes at least three values from a `step`, as gymnasium's and
    the older gym's environments give them."""
    files = dict.fromkeys([site.file, *(frame.file for frame in site.callers)])
    return any(_steps(file) for file in files if file and not is_installed(file))


@functools.lru_cache(maxsize=64)
def _steps(file: str) -> bool:
    tree = parsed(file)
    return tree is not None and any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last_name(node.value.func) == "step"
        and any(isinstance(target, ast.Tuple) and len(target.elts) >= 3 for target in node.targets)
        for node in walk(tree)
    )
