"""Which module owns which tensor, and which module contains which: by numbers, for the probes that need to look up.

Filled by `probes/modules.py`; everything here is numbers, so nothing is kept alive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Owner:
    """A registered tensor's place: `module`, local `name`, `role` ("parameter" or "buffer")."""

    module: int
    name: str
    role: str


class Registry:
    """Owners of tensors and parents of modules.

    `owners`: the first place of each tensor (a tied tensor has several); `places`: what stands at each (module, name).
    """

    def __init__(self) -> None:
        self.owners: dict[int, Owner] = {}
        self.places: dict[tuple[int, str], int] = {}
        self.parents: dict[int, dict[int, str]] = {}
        self.alive: Callable[[int], bool] = lambda module: True  # (set by probes/modules.py)

    def ancestors(self, module: int) -> list[int]:
        """The module itself, then what contains it and still exists, outwards; each once."""
        found = [module]
        for inner in found:
            found += [p for p in self.parents.get(inner, ()) if p not in found and self.alive(p)]
        return found

    def roots_of_pair(self, source: int, target: int) -> tuple[int, int] | None:
        """The outermost modules that hold one of two tensors and not the other: one network is copied into another.

        None when one of them is not registered.  Both are the owning module itself when that is the same.
        """
        one, other = self.owners.get(source), self.owners.get(target)
        if one is None or other is None:
            return None
        mine, yours = self.ancestors(one.module), self.ancestors(other.module)
        apart = [m for m in mine if m not in yours], [m for m in yours if m not in mine]
        return (apart[0] or mine[:1])[-1], (apart[1] or yours[:1])[-1]

    def prune(self, alive: set[int]) -> None:
        """Forget tensors that are not in `alive`, and modules that neither own nor contain one that is."""
        self.owners = {t: o for t, o in self.owners.items() if t in alive}
        self.places = {place: t for place, t in self.places.items() if t in alive}
        used = {module for module, _ in self.places}
        for module in list(used):
            used.update(self.ancestors(module))
        self.parents = {child: above for child, above in self.parents.items() if child in used}


def tree(root: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """(path, module) of a module and all below it, each module once; runs no code of the module's class."""
    found: list[tuple[str, torch.nn.Module]] = []
    seen: set[int] = set()
    stack = [("", root)]
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        children = module.__dict__.get("_modules") or {}
        for name, child in reversed(list(children.items())):
            if child is not None:
                stack.append((f"{path}.{name}" if path else name, child))
    return found


def tensors_of(module: torch.nn.Module) -> list[tuple[str, str, torch.Tensor]]:
    """(name, role, tensor) of what one module itself registers."""
    members = module.__dict__
    return [
        (name, role, tensor)
        for table, role in (("_parameters", "parameter"), ("_buffers", "buffer"))
        for name, tensor in (members.get(table) or {}).items()
        if isinstance(tensor, torch.Tensor)
    ]


def tree_tensors(root: torch.nn.Module) -> dict[str, tuple[str, torch.Tensor]]:
    """Path -> (role, tensor) of everything registered in a tree; a tensor that stands under two paths is under both."""
    found: dict[str, tuple[str, torch.Tensor]] = {}
    for path, module in tree(root):
        prefix = f"{path}." if path else ""
        members = module.__dict__
        for table, role in (("_parameters", "parameter"), ("_buffers", "buffer")):
            for name, tensor in (members.get(table) or {}).items():
                if isinstance(tensor, torch.Tensor):
                    found[prefix + name] = (role, tensor)
    return found


__all__ = ["Owner", "Registry", "tensors_of", "tree", "tree_tensors"]
