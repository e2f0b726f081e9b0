"""A model as a chain of blocks: modules or functions that hand one state on, as `nn.Sequential` does."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradledger.core.errors import SweepError
from gradledger.sweep._parallel import own_hooks, unwrap


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One link of the chain.

    Attributes:
        name: as errors, plans and tables call it.
        call: takes the state (the loss: and the target), returns the next one.
        modules: every module that runs inside, each once: itself, its children, those a function closes over.
        tensors: parameters that a function closes over without a module.
        wrapper: what reduces the gradients of the chain it was read from over processes (DDP, a sharded container).
    """

    name: str
    call: Callable[..., Any]
    modules: tuple[nn.Module, ...]
    tensors: tuple[Tensor, ...] = ()
    wrapper: nn.Module | None = None

    def parameters(self) -> list[Tensor]:
        """Its parameters, each once, in the order of registration."""
        found: dict[int, Tensor] = {
            id(p): p for module in self.modules for p in module._parameters.values() if p is not None
        }
        found.update((id(t), t) for t in self.tensors)
        return list(found.values())

    def buffers(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        """Each buffer with the module that holds it and its name there."""
        for module in self.modules:
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    yield module, name, buffer

    def buffer_names(self) -> list[tuple[nn.Module, str]]:
        """Each buffer's place, also of one that is None so far."""
        return [(module, name) for module in self.modules for name in module._buffers]

    def generators(self) -> list[torch.Generator]:
        """Random generators that its modules carry as attributes."""
        found = [g for module in self.modules for g in vars(module).values() if isinstance(g, torch.Generator)]
        return list({id(g): g for g in found}.values())


Blocks = tuple[Block, ...]


def blocks(model: Any) -> Blocks:
    """Read a model as a chain of blocks.

    Args:
        model: an `nn.Sequential`, a list or tuple of modules and functions, a mapping of names to them, an
            `nn.ModuleList` or `nn.ModuleDict`, a `TensorDictSequential`, a `DistributedDataParallel` around a
            sequential container, or blocks read before.

    Returns:
        the blocks in forward order; each takes the state that the one before returned, as its only argument.

    Raises:
        SweepError: for anything that has no order of blocks, or whose own `forward` or hooks would be left out.

    Example:
        >>> import torch
        >>> from gradledger import sweep
        >>> [b.name for b in sweep.blocks(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))]
        ['0', '1']
    """
    if isinstance(model, tuple) and model and all(isinstance(b, Block) for b in model):
        return model
    wrapper, chain = unwrap(model)
    named = _named(chain)
    if not named:
        raise SweepError(
            got="a model without blocks",
            wanted="at least one block",
            where="sweep.blocks",
            next_step="give an nn.Sequential or a list with at least one module or function",
        )
    found = tuple(_block(name, call) for name, call in named)
    return found if wrapper is None else tuple(replace(b, wrapper=wrapper) for b in found)


def place_of(blocks: Blocks, i: int) -> str:
    """Block i of a chain whose last block is the loss, as errors name it."""
    last = len(blocks) - 1
    return "the loss" if i == last else f"block {i} ({blocks[i].name}) of {last}"


def one_block(name: str, call: Any) -> Block:
    """A single callable as a block (the loss is one)."""
    return _block(name, call)


def _named(model: Any) -> list[tuple[str, Any]]:
    if isinstance(model, nn.Sequential):
        _nothing_of_its_own(model, nn.Sequential)
        return _children_of(model)
    if isinstance(model, nn.ModuleList | nn.ModuleDict):
        return _children_of(model)
    if type(model).__name__ == "TensorDictSequential" and isinstance(getattr(model, "module", None), nn.ModuleList):
        return [(f"module.{name}", child) for name, child in _children_of(model.module)]
    if isinstance(model, Mapping):
        return [(str(name), call) for name, call in model.items()]
    if isinstance(model, Sequence) and not isinstance(model, str | bytes):
        return [(_name_of(call, index), call) for index, call in enumerate(model)]
    if isinstance(model, nn.Module):
        raise SweepError(
            got=f"{type(model).__name__}, a module whose forward says in code what runs after what",
            wanted="a chain: nn.Sequential, list, mapping or TensorDictSequential",
            where="sweep.blocks",
            next_step=f"name its heavy layers instead: sweep.wrap(model, layers={_children(model)}, budget=...)",
        )
    raise SweepError(
        got=f"{type(model).__name__}",
        wanted="nn.Sequential, a list of modules or functions, a mapping, or TensorDictSequential",
        where="sweep.blocks",
        next_step="put the parts of the model, in the order in which they run, into a list",
    )


def _children_of(model: nn.Module) -> list[tuple[str, Any]]:
    """Every child in its place; `named_children` leaves out a module that stands in a second place."""
    return [(name, child) for name, child in model._modules.items() if child is not None]


def _children(model: nn.Module) -> list[str]:
    return [name for name, child in model.named_children() if any(True for _ in child.parameters())][:4]


def _nothing_of_its_own(model: nn.Module, base: type[nn.Module]) -> None:
    """A container is taken apart only if it does nothing but call its children in turn."""
    if type(model).forward is not base.forward or "forward" in vars(model):
        raise SweepError(
            got=f"{type(model).__name__}, which has a forward of its own",
            wanted="a container that calls its children one after another",
            where="sweep.blocks",
            next_step="give a list with the parts in the order in which that forward runs them, or use sweep.wrap",
        )
    hooked = [
        what
        for what in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
        if (getattr(model, what, None) or {}).keys() - own_hooks(model)
    ]
    if hooked:
        raise SweepError(
            got=f"{type(model).__name__} with {hooked[0].strip('_').replace('_', ' ')} on the container itself",
            wanted="hooks on the blocks: the container is never called, so its own hooks would not run",
            where="sweep.blocks",
            next_step="move the hooks to the first or last child, or remove them",
        )


def _name_of(call: Any, index: int) -> str:
    if isinstance(call, nn.Module) or not hasattr(call, "__name__") or call.__name__ == "<lambda>":
        return str(index)
    return f"{index}:{call.__name__}"


def _block(name: str, call: Any) -> Block:
    if isinstance(call, Block):
        return call
    if isinstance(call, type) or not callable(call):
        got = (
            f"the class {call.__name__}, not an instance of it"
            if isinstance(call, type)
            else f"a {type(call).__name__}"
        )
        raise SweepError(
            got=got,
            wanted="a module or a function that takes the state and returns the next one",
            where=f"block {name}",
            next_step="give an instance, e.g. nn.ReLU() for nn.ReLU"
            if isinstance(call, type)
            else "remove it from the list",
        )
    modules: dict[int, nn.Module] = {}
    tensors: dict[int, Tensor] = {}
    for value in _reached(call):
        if isinstance(value, nn.Module):
            modules.update((id(m), m) for m in value.modules())
        elif value.requires_grad and value.is_leaf:
            tensors[id(value)] = value
    owned = {id(p) for m in modules.values() for p in m._parameters.values()}
    return Block(name, call, tuple(modules.values()), tuple(t for k, t in tensors.items() if k not in owned))


_HOLDERS = (nn.Module, Tensor, functools.partial, types.MethodType, types.FunctionType, list, tuple, dict)


def _reached(call: Any, depth: int = 0) -> Iterator[nn.Module | Tensor]:
    """Modules and tensors that a callable holds: itself, what it is bound to, closes over, or names as a global."""
    if isinstance(call, nn.Module | Tensor):
        yield call
        return
    if depth > 4:
        return
    inner: Iterable[Any] = ()
    if isinstance(call, functools.partial):
        inner = (call.func, *call.args, *call.keywords.values())
    elif isinstance(call, types.MethodType):
        names = names_in(call.__func__.__code__) if isinstance(call.__func__, types.FunctionType) else set()
        inner = (call.__self__, call.__func__, *_attributes_of(call.__self__, names))
    elif isinstance(call, types.FunctionType):
        cells = [cell.cell_contents for cell in call.__closure__ or () if _filled(cell)]
        names = names_in(call.__code__)
        seen = [call.__globals__[name] for name in names if name in call.__globals__]
        parts = [part for held in (*cells, *seen) for part in _attributes_of(held, names)]
        inner = (*cells, *(call.__defaults__ or ()), *(call.__kwdefaults__ or {}).values(), *seen, *parts)
    elif isinstance(call, list | tuple):
        inner = call
    elif isinstance(call, dict):
        inner = call.values()
    elif not isinstance(call, type | types.ModuleType | types.BuiltinFunctionType) and hasattr(call, "__dict__"):
        inner = vars(call).values() if type(call).__module__ not in ("builtins", "torch") else ()
    for value in inner:
        plain = depth == 0 and callable(value) and hasattr(value, "__dict__") and not isinstance(value, type)
        if isinstance(value, _HOLDERS) or plain:
            yield from _reached(value, depth + 1)


def names_in(code: types.CodeType) -> set[str]:
    """The global names and attributes that a function may read, also inside the functions that it defines."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*(names_in(part) for part in inner))


def _attributes_of(held: Any, names: set[str], depth: int = 0) -> Iterator[Any]:
    """What a function reads of a plain object (a trainer that keeps its modules in attributes), by those names."""
    plain = hasattr(held, "__dict__") and not isinstance(held, (*_HOLDERS, type, types.ModuleType))
    if not plain or depth > 3:
        return
    for name in names:
        value = vars(held).get(name)
        if value is None and isinstance(getattr(type(held), name, None), types.FunctionType):
            value = getattr(held, name)
        if value is not None:
            yield value
            yield from _attributes_of(value, names, depth + 1)


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  an empty cell raises
    except ValueError:
        return False
    return True
