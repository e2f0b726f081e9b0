"""Libraries of the `[data]` extra, loaded where they are used: `import gradledger.data` needs torch and numpy only."""

from __future__ import annotations

import importlib
from typing import Any

from gradledger.data.errors import DataError


def needs(module: str, *, purpose: str, extra: str = "data") -> Any:
    """The module of that name.

    Raises:
        DataError: it is not installed; the text names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise DataError(
            got=f"no module {module!r} ({cause})",
            wanted=f"{module.partition('.')[0]} for {purpose}",
            where="this Python environment",
            next_step=f"pip install 'gradledger[{extra}]'",
        ) from cause
