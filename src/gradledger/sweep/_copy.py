"""Blocks copied as a whole, so that what is tried out leaves no trace on the user's model.

`copy.deepcopy` keeps functions as they are, so that a copied lambda would still run the user's own module. Here
closures, partials and bound methods are rebuilt around the copies; what two blocks share, their copies share.
"""

from __future__ import annotations

import copy
import functools
import types
from typing import Any

from torch import Tensor, nn

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Block, Blocks, names_in, one_block

Memo = dict[int, Any]


def copy_blocks(blocks: Blocks, memo: Memo | None = None) -> Blocks:
    """The same chain on copies of every module, parameter and buffer; gradients are not copied.

    Args:
        blocks: what `sweep.blocks` returned.
        memo: as of `copy.deepcopy`: what is shared between several calls is given by handing in one dict.

    Raises:
        SweepError: a block holds something that cannot be copied (an open file, a tensor with a history).
    """
    known: Memo = {} if memo is None else memo
    copies = tuple(_copy_block(block, known) for block in blocks)
    for block in copies:
        for parameter in block.parameters():
            parameter.grad = None
    return copies


def _copy_block(block: Block, memo: Memo) -> Block:
    try:
        return one_block(block.name, _copied(block.call, memo))
    except (RuntimeError, TypeError, NotImplementedError, ValueError) as fault:
        raise SweepError(
            got=f"a block that cannot be copied ({type(fault).__name__}: {str(fault).splitlines()[0]})",
            wanted="modules and functions that copy.deepcopy can copy",
            where=f"block {block.name}",
            next_step="keep tensors with a history, files and locks out of the attributes (or add __deepcopy__)",
        ) from fault


def _copied(value: Any, memo: Memo) -> Any:
    """`value`, copied through functions."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, functools.partial):
        function, *args = (_copied(part, memo) for part in (value.func, *value.args))
        return functools.partial(function, *args, **{k: _copied(v, memo) for k, v in value.keywords.items()})
    if isinstance(value, types.MethodType):
        return types.MethodType(_copied(value.__func__, memo), _copied(value.__self__, memo))
    if isinstance(value, types.FunctionType):
        return _copied_function(value, memo)
    if type(value) is list:
        return [_copied(part, memo) for part in value]
    if type(value) is tuple:
        return tuple(_copied(part, memo) for part in value)
    if type(value) is dict:
        return {key: _copied(part, memo) for key, part in value.items()}
    if isinstance(value, types.ModuleType | type):
        return value
    return copy.deepcopy(value, memo)


def _copied_function(function: types.FunctionType, memo: Memo) -> types.FunctionType:
    """A function with a state of its own around copies; one without any is returned as it is."""
    named = {
        name: function.__globals__[name]
        for name in names_in(function.__code__)
        if isinstance(function.__globals__.get(name), nn.Module | Tensor)
    }
    if not (function.__closure__ or function.__defaults__ or function.__kwdefaults__ or named):
        return function
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    space = function.__globals__
    if named:
        space = {**space, **{name: _copied(value, memo) for name, value in named.items()}}
    made = types.FunctionType(function.__code__, space, function.__name__, None, cells or None)
    made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
    memo[id(function)] = made  # before its cells: a function may close over itself
    for new, old in zip(cells, function.__closure__ or (), strict=True):
        try:
            held = old.cell_contents
        except ValueError:  # not filled yet
            continue
        new.cell_contents = _copied(held, memo)
    made.__defaults__ = _copied(function.__defaults__, memo)
    made.__kwdefaults__ = _copied(function.__kwdefaults__, memo)
    return made
