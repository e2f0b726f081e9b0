"""Modules: what is registered on them (by the public registration hooks), and what merely hangs on them.

The hooks see a program build its modules.  Trees that came about without them (deep copies, unpickling, models built
before the watch) are taken in when they are first called.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy

from gradledger.core.events import ChildRegistered, PlainAttribute, PlainAttributes, TensorRegistered
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._identity import Ref
from gradledger.ledger._patch import Nest, Undo, observe, together
from gradledger.ledger._recorder import Recorder
from gradledger.ledger._registry import Owner, Registry, tensors_of, tree
from gradledger.ledger._session import Session

DEEP = 3  # containers inside containers are looked into this far
MANY = 1000  # elements of one attribute that are looked at
PRUNE_AT = 8192
FEW_NODES = 32  # of the graph behind an attribute
_LIBRARIES = sys.stdlib_module_names | {
    "torch", "torchvision", "lightning", "pytorch_lightning", "transformers", "accelerate", "numpy"
}  # fmt: skip
# What torch itself keeps on a module.
_OWN = frozenset(torch.nn.Module().__dict__) | {"training"}


@dataclass(slots=True)
class _Found:
    """An attribute that holds tensors or modules."""

    name: str
    value: Any
    tensors: list[torch.Tensor]
    modules: list[torch.nn.Module]


class _Plain:
    """What was last found hanging on each module, and how often that was told."""

    def __init__(self) -> None:
        self.prints: dict[int, tuple[Any, ...]] = {}
        self.told: dict[int, int] = {}
        self.prune_at = PRUNE_AT

    def prune(self, alive: set[int]) -> None:
        """Forget modules that are gone."""
        self.prints = {n: p for n, p in self.prints.items() if n in alive}
        self.told = {n: c for n, c in self.told.items() if n in alive}
        self.prune_at = max(PRUNE_AT, 2 * len(self.prints))


# ------------------------------------------------------------------------------------------------ registration


def know(recorder: Recorder, module: torch.nn.Module) -> int:
    """Number of a module; its first mention records where it is being built."""
    number = recorder.modules.find(module)
    return recorder.module_id(module, _site.built_at(module)) if number is None else number


def register_tensor(
    recorder: Recorder, module: torch.nn.Module, name: str, role: str, tensor: torch.Tensor, site: Site | None
) -> None:
    """Record that `module` registers `tensor` under `name`; nothing when that is known."""
    registry = recorder.part(Registry)
    number, owner = recorder.tensor_id(tensor), know(recorder, module)
    before = registry.places.get((owner, name))
    if before == number:
        return
    registry.places[owner, name] = number
    registry.owners.setdefault(number, Owner(owner, name, role))
    if len(registry.places) > 2 * max(PRUNE_AT, len(recorder.tensors)):
        registry.prune({n for _, n in recorder.tensors.live()})
    recorder.emit(
        TensorRegistered,
        site,
        tensor=number,
        module=owner,
        name=name,
        role=role,
        shape=() if is_lazy(tensor) else tuple(tensor.shape),
        requires_grad=tensor.requires_grad,
        replaced=before,
        lent=role == "parameter" and not isinstance(tensor, torch.nn.Parameter),
    )


def register_child(
    recorder: Recorder, parent: torch.nn.Module, name: str, child: torch.nn.Module, before: Any, site: Site | None
) -> None:
    """Record that `child` is now the submodule `name` of `parent`, where `before` stood until now."""
    above, below = know(recorder, parent), know(recorder, child)
    parents = recorder.part(Registry).parents
    if parents.get(below, {}).get(above) == name:
        return
    parents.setdefault(below, {})[above] = name
    replaced = recorder.modules.find(before) if isinstance(before, torch.nn.Module) and before is not child else None
    recorder.emit(ChildRegistered, site, parent=above, child=below, name=name, replaced=replaced)


def register_tree(recorder: Recorder, root: torch.nn.Module, site: Site | None = None) -> None:
    """Record everything in a tree that no hook has seen: made by copying, by unpickling, or before the watch."""
    for _, module in tree(root):
        if site is not None:
            recorder.module_id(module, site)
        for name, role, tensor in tensors_of(module):
            register_tensor(recorder, module, name, role, tensor, site)
        for name, child in (module.__dict__.get("_modules") or {}).items():
            if child is not None:
                if site is not None:
                    recorder.module_id(child, site)
                register_child(recorder, module, name, child, None, site)


# ------------------------------------------------------------------------------------------------ plain attributes


def scan_tree(session: Session, root: torch.nn.Module) -> None:
    """Look at a tree that is called: take in what no hook has seen, and what hangs on its modules unregistered."""
    seen: set[int] = set()
    roots = [root]
    for top in roots:
        register_tree(session.recorder, top)
        for _, module in tree(top):
            if id(module) not in seen:
                seen.add(id(module))
                roots += scan(session, module)


def scan(session: Session, module: torch.nn.Module) -> list[torch.nn.Module]:
    """Record the unregistered tensors and modules on one module when they are new or have changed.

    Returns the modules that it holds without having registered them.
    """
    recorder = session.recorder
    found = [
        _Found(name, value, *_contents(_opened(value, module), module))
        for name, value in module.__dict__.items()
        if name not in _OWN
    ]
    found = [f for f in found if f.tensors or f.modules]
    if any(f.modules for f in found):
        below = {id(m) for _, m in tree(module)}
        for f in found:
            f.modules = [m for m in f.modules if id(m) not in below]
    owners = recorder.part(Registry).owners
    for f in found:
        f.tensors = [t for t in f.tensors if recorder.tensors.find(t) not in owners]
    found = [f for f in found if f.tensors or f.modules]
    hidden = [m for f in found for m in f.modules]
    plain = recorder.part(_Plain)
    fingerprint = tuple((f.name, *(id(t) for t in f.tensors), *(id(m) for m in f.modules)) for f in found)
    number = recorder.modules.find(module)
    if plain.prints.get(number or 0, ()) == fingerprint:
        return hidden
    number = know(recorder, module)
    if len(plain.prints) > plain.prune_at:
        plain.prune({n for _, n in recorder.modules.live()})
    plain.prints[number] = fingerprint
    times = plain.told[number] = plain.told.get(number, 0) + 1
    if times <= 4 or times & (times - 1) == 0:  # a cache changes at every call: that is said a few times
        recorder.emit(PlainAttributes, module=number, attributes=tuple(_attribute(session, f) for f in found))
    return hidden


def _opened(value: Any, holder: torch.nn.Module) -> Any:
    """What an object of a class of the program's own keeps: the modules in its attributes.

    Anything else stands for itself, and so does an object that leads back to the module which holds it.
    """
    kind = type(value)
    if isinstance(value, (torch.nn.Module, torch.Tensor)) or kind.__module__.partition(".")[0] in _LIBRARIES:
        return value
    try:
        kept = [v for v in object.__getattribute__(value, "__dict__").values() if isinstance(v, torch.nn.Module)]
    except AttributeError:  # it has slots
        return value
    return value if any(m is holder for top in kept for _, m in tree(top)) else kept


def _contents(value: Any, holder: torch.nn.Module) -> tuple[list[torch.Tensor], list[torch.nn.Module]]:
    """Tensors and modules in an attribute: itself, or inside lists, tuples, sets and dicts, also as what an object in
    there keeps."""
    if isinstance(value, torch.Tensor):
        return [value], []
    if isinstance(value, torch.nn.Module):
        return [], [value]
    tensors: list[torch.Tensor] = []
    modules: list[torch.nn.Module] = []
    for item in _flat(value, 0):
        if isinstance(item, torch.Tensor):
            tensors.append(item)
        elif isinstance(item, torch.nn.Module):
            modules.append(item)
        elif type(kept := _opened(item, holder)) is list and kept is not item:
            modules += kept
        if len(tensors) + len(modules) >= MANY:
            break
    return tensors, modules


def _flat(value: Any, depth: int) -> Iterator[Any]:
    # exact types of Python alone: another class may do anything when it is walked
    kind = type(value)
    if depth > DEEP or kind not in _CONTAINERS or len(value) > MANY:
        if depth:
            yield value
        return
    for item in list(value.values()) if kind in _MAPPINGS else list(value):
        yield from _flat(item, depth + 1)


_MAPPINGS: frozenset[type] = frozenset({dict, OrderedDict, defaultdict})
_CONTAINERS = frozenset({list, tuple, set, deque}) | _MAPPINGS


def _attribute(session: Session, found: _Found) -> PlainAttribute:
    recorder = session.recorder
    if not found.tensors:
        parameters = [
            t for m in found.modules for _, below in tree(m) for _, role, t in tensors_of(below) if role == "parameter"
        ]
        return PlainAttribute(
            found.name,
            "module" if isinstance(found.value, torch.nn.Module) else "modules",
            tensors=tuple(dict.fromkeys(recorder.tensor_id(p) for p in parameters)),
            modules=tuple(know(recorder, m) for m in found.modules),
        )
    first = next((t for t in found.tensors if t.requires_grad), found.tensors[0])
    origin = session.trace.origin(first)
    source = _hidden_parameter(recorder, first)
    numbers = [recorder.tensor_id(t) for t in found.tensors[:64]]
    hidden = [_hidden_parameter(recorder, t) for t in found.tensors[:64] if not t.is_leaf]
    # gradients go to these: a rule finds the attribute by them
    numbers += dict.fromkeys(recorder.tensor_id(p) for p in hidden if p is not None)
    return PlainAttribute(
        found.name,
        "tensor" if isinstance(found.value, torch.Tensor) else "tensors",
        tensors=tuple(numbers),
        shape=() if is_lazy(first) else tuple(first.shape),
        floating=first.is_floating_point() or first.is_complex(),
        requires_grad=first.requires_grad,
        is_leaf=first.is_leaf,
        is_parameter=isinstance(first, torch.nn.Parameter),
        made_from_parameter=source is not None
        or (_only_parameters(first) and session.trace.only_parameters(first))
        or (not first._is_view() and origin is not None and origin.from_parameter and not first.is_leaf),
        made_site=origin.site if origin is not None else NOWHERE,
        made_in_init=origin is not None and origin.in_init,
        made_in_forward=origin is not None and origin.in_forward,
    )


def _hidden_parameter(recorder: Recorder, tensor: torch.Tensor) -> torch.nn.Parameter | None:
    """The one Parameter from which a non-leaf was made, by `.to()`, a product with a number, or a view.

    None for anything else, and for a view of a registered parameter: that one follows its base.
    """
    if tensor._is_view():
        base = tensor._base
        if not isinstance(base, torch.nn.Parameter) or recorder.tensors.find(base) in recorder.part(Registry).owners:
            return None
        return base
    node: Any = tensor.grad_fn
    for _ in range(6):
        if node is None:
            return None
        if hasattr(node, "variable"):  # AccumulateGrad: the leaf itself
            return node.variable if isinstance(node.variable, torch.nn.Parameter) else None
        inputs = [below for below, _ in node.next_functions if below is not None]
        if len(inputs) != 1:
            return None
        node = inputs[0]
    return None


def _only_parameters(tensor: torch.Tensor) -> bool:
    """Whether a tensor was computed from several Parameters (`torch.cat([self.a, self.b])`) and from nothing else that
    requires grad.  (Activations are, too: what data went into, the trace knows.)"""
    if tensor.is_leaf or tensor._is_view():
        return False
    found: set[int] = set()
    nodes: list[Any] = [tensor.grad_fn]
    for node in nodes:
        if hasattr(node, "variable"):
            if not isinstance(node.variable, torch.nn.Parameter):
                return False
            found.add(id(node.variable))
        nodes += [below for below, _ in node.next_functions if below is not None]
        if len(nodes) > FEW_NODES:
            return False
    return len(found) > 1


# ------------------------------------------------------------------------------------------------ install


class _Weakrefs:
    """Stands for the module `weakref` inside `torch.utils`, whose `swap_tensors` refuses tensors with weak references.

    Ours are not shown to it: a swap keeps the identity of the tensor objects, which is all that we hold on to.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)

    @staticmethod
    def getweakrefs(obj: Any) -> list[Any]:
        """The weak references to `obj` that are the program's own."""
        return [ref for ref in weakref.getweakrefs(obj) if type(ref) is not Ref]


def _hide_our_references() -> Undo:
    utils: Any = torch.utils
    if getattr(utils, "weakref", None) is not weakref:
        return lambda: None
    stand_in = utils.weakref = _Weakrefs()

    def undo() -> None:
        if utils.weakref is stand_in:
            utils.weakref = weakref

    return undo


def install(session: Session) -> Undo:
    """Watch registration of parameters, buffers and submodules, and conversions that replace buffers."""
    recorder = session.recorder
    recorder.part(Registry).alive = lambda number: recorder.modules.get(number) is not None

    def parameter(module: torch.nn.Module, name: str, value: Any) -> None:
        seen(module, name, value, "parameter")

    def buffer(module: torch.nn.Module, name: str, value: Any) -> None:
        seen(module, name, value, "buffer")

    def seen(module: torch.nn.Module, name: str, value: Any, role: str) -> None:
        if recorder.enabled and isinstance(value, torch.Tensor):
            with recorder.guard(f"{role} registration"):
                registry, owner = recorder.part(Registry), know(recorder, module)
                before = module.__dict__["_parameters" if role == "parameter" else "_buffers"].get(name)
                if isinstance(before, torch.Tensor):  # may have come there unseen
                    registry.places.setdefault((owner, name), recorder.tensor_id(before))
                register_tensor(recorder, module, name, role, value, None)

    def child(module: torch.nn.Module, name: str, value: Any) -> None:
        if recorder.enabled and isinstance(value, torch.nn.Module):
            with recorder.guard("module registration"):
                register_child(recorder, module, name, value, module.__dict__["_modules"].get(name), None)

    def converted(state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for _, module in tree(args[0]):
            for name, role, tensor in tensors_of(module):
                register_tensor(recorder, module, name, role, tensor, None)

    handles = [
        register_module_parameter_registration_hook(parameter),
        register_module_buffer_registration_hook(buffer),
        register_module_module_registration_hook(child),
    ]
    return together(
        *(h.remove for h in handles),
        _hide_our_references(),
        observe(recorder, torch.nn.Module, "_apply", after=converted, nest=Nest()),
    )
