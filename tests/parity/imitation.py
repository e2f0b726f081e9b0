"""Runs a program under the runner with a mode, wrappers and hooks shaped like the real ones."""

import sys

from gradledger.ledger import _frames, _runner

SOURCE = '''
import functools
import torch
from torch.overrides import TorchFunctionMode

COUNTS = {"mode": 0, "wrap": 0, "hook": 0}


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        COUNTS["mode"] += 1
        kwargs = kwargs or {}
        return func(*args, **kwargs)


def wrap(owner, name):
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        COUNTS["wrap"] += 1
        return original(*args, **kwargs)

    setattr(owner, name, wrapper)
    return lambda: setattr(owner, name, original)


def pre(module, args):
    COUNTS["hook"] += 1


def post(module, args, output):
    COUNTS["hook"] += 1


def install():
    import torch.nn.modules.module as m
    undos = [wrap(torch.autograd, "backward"), wrap(torch.autograd, "grad"), wrap(torch.optim.Optimizer, "zero_grad"),
             wrap(torch.nn.Module, "zero_grad"), wrap(torch, "save"), wrap(torch, "load")]
    undos += [m.register_module_forward_pre_hook(pre).remove, m.register_module_forward_hook(post).remove]
    mode = Mode()
    mode.__enter__()
    undos.append(lambda: mode.__exit__(None, None, None))
    return undos
'''

names: dict = {"__name__": "gradledger.ledger._imitation"}
undos: list = []


def before() -> None:
    exec(compile(SOURCE, _frames._LEDGER + "/_imitation.py", "exec"), names)
    undos.extend(names["install"]())


def after(outcome: _runner.Outcome) -> None:
    for undo in undos:
        undo()
    with open(output, "w") as file:
        print(names.get("COUNTS"), outcome, file=file)


output, *rest = sys.argv[1:]
module = rest[0] == "-m"
if module:
    del rest[0]
_runner.leave(_runner.run(_runner.resolve(rest[0], rest[1:], module=module), before=before, after=after))
