"""What `torch.jit.script` has to know about functions that the watching replaces."""

from __future__ import annotations

import sys
from typing import Any


def same_operation(original: Any, replacement: Any) -> None:
    """Tell `torch.jit.script`, which knows some Python functions by identity, that a replacement is the same operation.

    Does nothing for functions that it does not know, nor before torch is loaded.
    """
    builtins = sys.modules.get("torch.jit._builtins")
    if builtins is None:
        return
    if builtins._builtin_table is None:  # made from the list below when it is first needed
        operation = next((name for function, name in builtins._builtin_ops if function is original), None)
    else:
        operation = builtins._builtin_table.get(id(original))
    if operation is None:
        return
    builtins._builtin_ops.append((replacement, operation))  # also keeps it alive: the table has nothing but its id
    if builtins._builtin_table is not None:
        builtins._register_builtin(replacement, operation)
