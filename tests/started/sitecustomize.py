"""Loaded by every Python process that a test starts: much of the time of a small one is not its own.

The collector walks all of PyTorch time and again while that is imported, and once more when Python ends.  And the first
optimizer imports PyTorch's compiler, which takes as long as `import torch`, only to be kept out of what it compiles:
here, where it is not loaded, nothing is, which comes to the same.  `tests/parity` compares processes without any of
this, as a user starts them.
"""

import atexit
import gc
import importlib.util
import sys

gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)

# What is added to a module of PyTorch, in its name, since these frames are no more the program's than those around.
ADDED = {
    "torch._compile": """
import sys
_import_and_disable = _disable_dynamo

def _disable_dynamo(fn=None, recursive=True):
    if fn is None:
        return functools.partial(_disable_dynamo, recursive=recursive)
    disabled = _import_and_disable(fn, recursive)

    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return (disabled if "torch._dynamo" in sys.modules else fn)(*args, **kwargs)

    return inner
""",
    "torch.optim.optimizer": """
import sys
_import_and_use_grad = _use_grad_for_differentiable

def _use_grad_for_differentiable(func):
    with_breaks = _import_and_use_grad(func)

    @functools.wraps(with_breaks)
    def _use_grad(*args, **kwargs):
        if "torch._dynamo" in sys.modules:
            return with_breaks(*args, **kwargs)
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return _use_grad
""",
}


class _Adds:
    """Finds the modules of `ADDED` like the finders behind it, once each."""

    def __init__(self):
        self.left = dict(ADDED)

    def find_spec(self, name, path, target=None):
        text = self.left.pop(name, None)
        spec = importlib.util.find_spec(name) if text is not None else None
        if spec is None:
            return None
        load = spec.loader.exec_module

        def load_and_add(module):
            load(module)
            exec(compile(text, module.__file__, "exec"), vars(module))

        spec.loader.exec_module = load_and_add
        return spec


sys.meta_path.insert(0, _Adds())
