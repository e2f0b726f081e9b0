"""`requires_grad` set by hand, parameters walked by name, and iterators over parameters that are already used up."""

from __future__ import annotations

import sys
from types import CodeType, FrameType, GeneratorType
from typing import Any

import torch

from gradledger.core.events import ExhaustedIterator, GradFlagSet, ParametersIterated
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._iterators import Iterators, arguments, is_iterator, read_each_pass, untouched, variables
from gradledger.ledger._offered import Offered
from gradledger.ledger._often import Often
from gradledger.ledger._patch import Nest, Undo, observe, together
from gradledger.ledger._registry import tensors_of, tree
from gradledger.ledger._session import Session
from gradledger.ledger.probes.modules import know

_METHODS = ("named_parameters", "parameters")
LEVELS = 4  # callers of a running function whose loops are looked at
SEEN = 16  # walks in watched iterations after which a line is as well known as the rest of the loop
MAX_LINES = 1024


class _Flags:
    """Flag changes of one loop, not yet told; iterators over parameters; what was said about which variable."""

    def __init__(self) -> None:
        self.site: Site = NOWHERE
        self.value = False
        self.tensors: list[int] = []
        self.changed = 0
        self.inside_module = False
        self.often = Often()
        self.iterators = Iterators()
        self.said: set[tuple[CodeType, str]] = set()
        self.looked: dict[CodeType, int] = {}
        self.seen: dict[tuple[CodeType, int, str], int] = {}  # walks over parameters by line, in watched iterations


# ------------------------------------------------------------------------------------------------ requires_grad


def flag_set(session: Session, tensor: torch.Tensor, value: bool, before: bool) -> None:
    """`tensor.requires_grad` was set.  Tensors set in one loop to one value are told as one fact."""
    recorder = session.recorder
    flags = recorder.part(_Flags)
    if flags.inside_module or recorder.tensors.find(tensor) is None:
        return  # told for the whole module; or a tensor that nobody follows (yet)
    site = _site.here(1)
    if flags.tensors and (site.key() != flags.site.key() or value != flags.value):
        flush(session)
    if not flags.tensors:
        flags.site, flags.value = site, value
        recorder.defer("flags", lambda: flush(session))
    flags.tensors.append(recorder.tensor_id(tensor))
    flags.changed += value != before


def flush(session: Session) -> None:
    """Tell the flag changes collected so far."""
    flags = session.recorder.part(_Flags)
    tensors, changed, flags.tensors, flags.changed = flags.tensors, flags.changed, [], 0
    if tensors:
        unique = tuple(dict.fromkeys(tensors))
        session.recorder.emit(GradFlagSet, flags.site, tensors=unique, value=flags.value, changed=changed)


# ------------------------------------------------------------------------------------------------ iterators


def check_frame(session: Session, frame: FrameType) -> None:
    """Look for used-up iterators over parameters: arguments of the running function, variables of loops around it."""
    recorder = session.recorder
    flags = recorder.part(_Flags)
    code = frame.f_code
    if flags.often.worth_telling(code, first=16):
        names = [n for n in arguments(code) if (code, n) not in flags.said and untouched(code, frame.f_lasti, n)]
        _report(session, frame, names)
    above: FrameType | None = frame
    levels = 0
    while above is not None and levels < LEVELS:
        code = above.f_code
        if _site.is_user_code(code):
            levels += 1
            if flags.looked.get(code) != recorder.iteration and flags.often.worth_telling((code, "loop"), first=16):
                flags.looked[code] = recorder.iteration
                names = [n for n in read_each_pass(code, above.f_lasti) if (code, n) not in flags.said]
                _report(session, above, names)
        above = above.f_back


def _report(session: Session, frame: FrameType, names: list[str]) -> None:
    flags = session.recorder.part(_Flags)
    for name, value in variables(frame, names).items():
        state = flags.iterators.look(value) if is_iterator(value) else None
        if state is not None and state.used:
            flags.said.add((frame.f_code, name))
            session.recorder.emit(
                ExhaustedIterator, _site.of(frame), function=frame.f_code.co_name, name=name, made_site=state.made
            )


def install(session: Session) -> Undo:
    """Watch flags set on modules and tensors, walks over parameters, and functions given a used-up iterator."""
    recorder = session.recorder
    flags = recorder.part(_Flags)
    base = torch.nn.Module
    flags.iterators.codes = {getattr(base, name).__code__ for name in _METHODS}

    def module_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int, bool]]:
        flags.inside_module = True
        return [
            (recorder.tensor_id(t), t.requires_grad)
            for _, module in tree(args[0])
            for _, role, t in tensors_of(module)
            if role == "parameter"
        ]

    def module_after(
        was: list[tuple[int, bool]] | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        flags.inside_module = False
        value = bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
        before = dict(was or [])
        recorder.emit(GradFlagSet, tensors=tuple(before), value=value, changed=sum(b != value for b in before.values()))

    def module_raised(was: Any, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        flags.inside_module = False

    def walked(method: str, result: Any, args: tuple[Any, ...]) -> None:
        frame = sys._getframe(3)  # past this function, the one below and the wrapper
        if not _site.is_user_code(frame.f_code):
            return
        if isinstance(result, GeneratorType):
            flags.iterators.made[result] = _site.of(frame)
        number = recorder.modules.find(args[0]) if method == "named_parameters" else None
        if number is not None:
            offered.listed(number, recorder.iteration, _site.of(frame))
        # a loop over parameters: something may be frozen, copied or clipped by hand in it; a line that every sampled
        # iteration comes to is seen there
        line = (frame.f_code, frame.f_lineno, "detail")
        if recorder.detail:
            if line in flags.seen or len(flags.seen) < MAX_LINES:
                flags.seen[line] = flags.seen.get(line, 0) + 1
        elif flags.seen.get(line, 0) < SEEN and flags.often.worth_telling(line, first=2):
            recorder.suspicious()
        if flags.often.worth_telling((frame.f_code, frame.f_lineno, id(args[0]))):
            seen = {id(t) for _, module in tree(args[0]) for _, role, t in tensors_of(module) if role == "parameter"}
            recorder.emit(ParametersIterated, module=know(recorder, args[0]), method=method, count=len(seen))

    def named(state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        walked("named_parameters", result, args)

    def below(method: str) -> Any:
        """Told by line: which names a loop over submodules was given is in the model."""

        def after(state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            frame = sys._getframe(2)  # past this function and the wrapper
            if not _site.is_user_code(frame.f_code):
                return
            if flags.often.worth_telling((frame.f_code, frame.f_lineno, id(args[0]))):
                count = len(args[0].__dict__.get("_modules") or ())
                recorder.emit(ParametersIterated, module=know(recorder, args[0]), method=method, count=count)

        return after

    def unnamed(state: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        walked("parameters", result, args)

    offered = recorder.part(Offered)
    on_flag = session.trace.listeners.flag_set
    on_frame = session.trace.listeners.user_frame

    def flag(tensor: torch.Tensor, value: bool, before: bool) -> None:
        flag_set(session, tensor, value, before)

    def look(frame: FrameType) -> None:
        check_frame(session, frame)

    on_flag.append(flag)
    on_frame.append(look)
    return together(
        lambda: on_flag.remove(flag),
        lambda: on_frame.remove(look),
        observe(
            recorder,
            base,
            "requires_grad_",
            before=module_before,
            after=module_after,
            raised=module_raised,
            nest=Nest(),
        ),
        observe(recorder, base, "named_parameters", after=named),
        observe(recorder, base, "parameters", after=unnamed),
        *(observe(recorder, base, method, after=below(method)) for method in ("named_children", "named_modules")),
    )
