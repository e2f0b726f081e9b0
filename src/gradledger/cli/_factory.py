"""A model from the user's own program: `FILE.py:FACTORY` or `package.module:FACTORY`, imported as python would.

The program sees the `sys.argv` and the `sys.path[0]` that it has under ``python FILE.py`` (or ``python -m module``),
but not the name ``__main__``: what stands under ``if __name__ == "__main__"`` does not run.  A file inside a package
may use relative imports.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from gradledger.core.errors import GradledgerError, UsageError
from gradledger.ledger._site import is_user_code

_ORDER = "(model_or_blocks, x, y, loss_fn)"
_HOUSE = str(Path(__file__).resolve().parents[1]) + os.sep


class ProgramError(GradledgerError):
    """The user's program raised.  `trace`: its traceback from the first line of the program on, or ""."""

    slug = "program"

    def __init__(self, *, got: str, wanted: str, where: str, next_step: str, trace: str = "") -> None:
        super().__init__(got=got, wanted=wanted, where=where, next_step=next_step)
        self.trace = trace


@dataclass(frozen=True, slots=True)
class Problem:
    """What a factory gave: a chain of blocks, a batch and a loss (state, y) -> scalar."""

    model: Any
    x: Any
    y: Any
    loss_fn: Callable[..., Any]


def load(target: str, arguments: Sequence[str] = ()) -> Problem:
    """Import the program of `target` and call its factory.

    Args:
        target: ``FILE.py:FACTORY`` or ``package.module:FACTORY``; FACTORY may be dotted (``Class.method``).
        arguments: what the program finds in ``sys.argv[1:]``.

    Raises:
        UsageError: there is no such file, module or factory, or it gives something else than four values.
        ProgramError: the program raised, or ended itself.
    """
    source, _, name = target.rpartition(":")
    if not source or not name:
        raise _usage(
            f"{target!r}",
            "FILE.py:FACTORY or package.module:FACTORY",
            f"name the function that builds the model: {target.rstrip(':') or 'model.py'}:make",
        )
    is_file = source.endswith(".py") or os.sep in source or Path(source).is_file()
    module = _from_file(source, arguments) if is_file else _from_module(source, arguments)
    factory = _find(module, name, source)
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise _usage(
            f"{name}, which cannot be called without arguments ({error})",
            f"a factory that takes none and returns {_ORDER}",
            f"write one that fills them in: def make(): return {name}(...)",
        ) from None
    except ValueError:
        pass  # a callable without a signature that can be read: calling it will show
    return _problem(_call(factory, f"{name}()"), name)


def _problem(made: Any, name: str) -> Problem:
    if not isinstance(made, tuple | list):
        raise _usage(
            f"a {type(made).__name__} from {name}()",
            f"four values {_ORDER}",
            "end the factory with: return model, x, y, loss_fn",
        )
    if len(made) != 4:
        kinds = ", ".join(type(part).__name__ for part in made)
        raise _usage(
            f"{len(made)} values ({kinds}) from {name}()",
            f"four: {_ORDER}",
            "end the factory with: return model, x, y, loss_fn (y may be None if the loss does not use it)",
        )
    model, x, y, loss_fn = made
    if not callable(loss_fn):
        raise _usage(
            f"a {type(loss_fn).__name__} as the last of four values from {name}()",
            "loss_fn, a function of (output, y) that returns a scalar",
            f"give the four in this order: {_ORDER}",
        )
    return Problem(model, x, y, loss_fn)


def _from_file(source: str, arguments: Sequence[str]) -> ModuleType:
    path = Path(source)
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        near = difflib.get_close_matches(path.name, [p.name for p in folder.glob("*.py")], n=1)
        raise _usage(
            f"{source}, which is {'no file' if path.exists() else f'not there (looked from {Path.cwd()})'}",
            "a Python file",
            f"did you mean {folder / near[0]}?" if near else "check the path, or change to its folder",
        )
    real = path.resolve()
    package = real.parent
    while (package / "__init__.py").is_file():
        package = package.parent
    _take_over(source, str(real.parent), arguments)
    if package != real.parent:  # relative imports need the package; the folder itself stays first, as python has it
        sys.path.insert(1, str(package))
        dotted = ".".join([*real.parent.relative_to(package).parts, real.stem])
        inside: ModuleType = _module(lambda: importlib.import_module(dotted), source)
        return inside
    name = real.stem if real.stem.isidentifier() and real.stem not in sys.modules else "gradledger_target"
    spec = importlib.util.spec_from_file_location(name, real)
    if spec is None or spec.loader is None:
        raise _usage(f"{source}, which is no Python file", "FILE.py:FACTORY", "name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader = spec.loader
    _module(lambda: loader.exec_module(module), source)
    return module


def _from_module(source: str, arguments: Sequence[str]) -> ModuleType:
    _take_over("-m", str(Path.cwd()), arguments)
    try:
        module: ModuleType = _module(lambda: importlib.import_module(source), source)
    except ProgramError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and not error.trace and missing.name:
            if source == missing.name or source.startswith(f"{missing.name}."):
                raise _usage(
                    f"{source}, and neither {Path.cwd()} nor this environment has a module {missing.name!r}",
                    "the dotted name of a module",
                    "run from the folder that holds the package, or give the file: path/to/file.py:FACTORY",
                ) from None
        raise
    return module


def _take_over(first: str, folder: str, arguments: Sequence[str]) -> None:
    """`sys.argv` and `sys.path` as the program would find them."""
    sys.argv[:] = [first, *arguments]
    if not sys.flags.safe_path:
        del sys.path[0]
        sys.path.insert(0, folder)
    elif folder not in sys.path:
        sys.path.append(folder)


def _module(run: Callable[[], Any], source: str) -> Any:
    return _call(run, source, doing="importing")


def _find(module: ModuleType, name: str, source: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            own = [
                key
                for key, value in vars(module).items()
                if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
            ]
            near = difflib.get_close_matches(name, own, n=1)
            raise _usage(
                f"{name}, which {source} does not define",
                f"a function in it that returns {_ORDER}",
                f"did you mean {source}:{near[0]}?"
                if near
                else f"it has these functions: {', '.join(own[:6]) or 'none'}",
            )
        found = getattr(found, part)
    if not callable(found):
        raise _usage(
            f"{name}, a {type(found).__name__}",
            f"a function that takes no arguments and returns {_ORDER}",
            f"write: def make(): return {name}",
        )
    result: Callable[..., Any] = found
    return result


def _call(run: Callable[[], Any], what: str, doing: str = "calling") -> Any:
    """What `run` returns; an error of the program as ProgramError."""
    try:
        return run()
    except SystemExit as error:
        raise ProgramError(
            got=f"SystemExit({error.code!r}): the program ended itself",
            wanted="a program that can be imported" if doing == "importing" else f"a factory that returns {_ORDER}",
            where=f"{doing} {what}",
            next_step='hand arguments that it needs to the program with --args "--name value", or parse them under '
            'if __name__ == "__main__"',
        ) from error
    except Exception as error:
        hint = "mend the program; the lines above are its own traceback"
        if isinstance(error, ImportError) and "relative import" in str(error):
            hint = "give it by its dotted name, from the folder above the package: package.module:FACTORY"
        raise ProgramError(
            got=one_line(error),
            wanted="a program that can be imported" if doing == "importing" else f"a factory that returns {_ORDER}",
            where=f"{doing} {what}",
            next_step=hint,
            trace=trace_of(error, _not_ours),
        ) from error


def one_line(error: BaseException) -> str:
    """`ValueError: its message`, without further lines."""
    text = " ".join(str(error).split())
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"{name}: {text}" if text else name


def trace_of(error: BaseException, starts: Callable[[TracebackType], bool] | None = None) -> str:
    """The traceback from the first frame of the program on; "" where none of its frames took part.

    Args:
        error: caught.
        starts: whether a frame is where to start; default: it is a line of the program, not of a library below it.
    """
    chosen = starts if starts is not None else lambda tb: is_user_code(tb.tb_frame.f_code)
    tb = error.__traceback__
    while tb is not None and not chosen(tb):
        tb = tb.tb_next
    if tb is None and not isinstance(error, SyntaxError):
        return ""
    shown = traceback.TracebackException(type(error), error, tb)
    shown.__notes__ = [note for note in getattr(error, "__notes__", ()) if not note.startswith("gradledger ")]
    return "".join(shown.format())


def _not_ours(tb: TracebackType) -> bool:
    name = tb.tb_frame.f_code.co_filename
    return not name.startswith(("<frozen importlib", _HOUSE)) and not name.endswith(
        f"{os.sep}importlib{os.sep}__init__.py"
    )


def _usage(got: str, wanted: str, next_step: str) -> UsageError:
    return UsageError(got=got, wanted=wanted, where="TARGET", next_step=next_step)
