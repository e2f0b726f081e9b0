"""A drop-in for an unmodified model: named layers are recomputed in a plain backward, as a byte budget asks."""

from __future__ import annotations

import copy
import fnmatch
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Block, one_block
from gradledger.sweep._describe import show_bytes, show_seconds
from gradledger.sweep._gradients import Gradients, without_hooks
from gradledger.sweep._memory import peak_of
from gradledger.sweep._planners import BudgetError
from gradledger.sweep._planning import Budget
from gradledger.sweep._replay import Found, RandomState
from gradledger.sweep._seed import roots_and_seeds
from gradledger.sweep._state import address_of, same_bits
from gradledger.sweep.plans.budget import parse_budget

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class LayerReport:
    """One named layer.

    Attributes:
        name: as `named_modules` has it.
        saved: bytes that its graph keeps between forward and backward, parameters and its own input apart.
        seconds: of one forward.
        recomputed: whether it is run again in the backward instead of keeping them.
        reason: why it must be kept; None where it may be recomputed.
    """

    name: str
    saved: int
    seconds: float
    recomputed: bool
    reason: str | None


@final
class WrapHandle:
    """What `wrap` decided; `wrapped.gradledger_wrap`.

    Attributes:
        layers: a report for each named layer.
        plain_peak, peak: measured bytes of a plain step and of a step of the wrapped model above the level at its
            start; None where no example was given.
        budget: bytes asked for.
    """

    def __init__(self, layers: Sequence[LayerReport], plain_peak: int | None, peak: int | None, budget: int | None):
        self.layers, self.plain_peak, self.peak, self.budget = tuple(layers), plain_peak, peak, budget

    def __str__(self) -> str:
        rows = [f"{'layer':<36} {'saves':>10} {'forward':>10}  what"]
        for layer in self.layers:
            what = "recompute" if layer.recomputed else f"keep: {layer.reason}" if layer.reason else "keep"
            name = layer.name if len(layer.name) <= 36 else "…" + layer.name[-35:]
            rows.append(f"{name:<36} {show_bytes(layer.saved):>10} {show_seconds(layer.seconds):>10}  {what}")
        if self.peak is not None and self.plain_peak is not None:
            share = self.peak / max(1, self.plain_peak)
            rows.append(
                f"measured peak {show_bytes(self.peak)}, {share:.1%} of the plain {show_bytes(self.plain_peak)}"
            )
        return "\n".join(rows)


def wrap(
    model: M,
    *,
    layers: Sequence[str],
    budget: Budget = None,
    example: tuple[Any, Any] | None = None,
    loss: Callable[..., Any] | None = None,
    generators: Sequence[torch.Generator] = (),
) -> M:
    """The same model, whose named layers are recomputed in the backward; trained as before, with `loss.backward()`.

    Args:
        model: any module. It is not changed: what is returned shares its parameters, buffers and children, and has the
            same class and the same state_dict.
        layers: names as `model.named_modules()` has them, or patterns ("encoder.layers.*"). A layer within another
            named layer is refused.
        budget: bytes that a step may need above the level at its start: a number, "512MB", "60%" of the plain step's
            measured peak, or "min"; None: every named layer is recomputed.
        example: (x, y), a batch to measure with; x is one argument, or a tuple of arguments. Needed for a budget.
        loss: (output, y) -> loss. Needed for a budget.
        generators: random generators of your own that layers draw from.

    Returns:
        the wrapped model; `print(wrapped.gradledger_wrap)` shows what was decided for each layer and why.

    Raises:
        SweepError: no such layer, or one inside another; BudgetError: even with every layer recomputed the measured
            peak is over the budget (the error has that number).

    Example:
        >>> import torch
        >>> from gradledger import sweep
        >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        >>> wrapped = sweep.wrap(model, layers=["layers.*"])
        >>> wrapped(torch.ones(1, 3, 8)).sum().backward()
        >>> model.layers[0].linear1.weight.grad.shape
        torch.Size([16, 8])
    """
    if not isinstance(model, nn.Module):
        raise _wrong(f"{type(model).__name__}", "an nn.Module", "wrap the model; for a list of functions use Sweep")
    named = _named(model, layers)
    if budget is not None and (example is None or loss is None):
        raise _wrong(
            "a budget without an example and a loss",
            "both: the budget is kept by measuring steps",
            "give example=(x, y), loss=loss_fn, or leave budget out to recompute every named layer",
        )
    wrapped = copy.copy(model)
    layers_ = [_Layer(name, layer, generators) for name, layer in named]
    forward = _Forward(wrapped, type(model), layers_)
    wrapped.__dict__["forward"] = forward
    plain_peak = peak = asked = None
    if example is not None:
        _measure(wrapped, layers_, example, loss)
    if example is not None and loss is not None:
        plain_peak, peak, asked = _fit(wrapped, layers_, example, loss, budget)
    reports = [LayerReport(o.name, o.saved, o.seconds, o.recompute, o.reason) for o in layers_]
    wrapped.__dict__["gradledger_wrap"] = WrapHandle(reports, plain_peak, peak, asked)
    return wrapped


class _Layer:
    """One named layer and how it is run."""

    def __init__(self, name: str, module: nn.Module, generators: Sequence[torch.Generator]) -> None:
        self.name, self.module = name, module
        self.block: Block = one_block(name, module)
        self.generators = list({id(g): g for g in (*self.block.generators(), *generators)}.values())
        self.original: Callable[..., Any] = module.forward
        self.recompute = True
        self.saved, self.seconds = 0, 0.0
        self.reason: str | None = None
        self.run: Callable[..., Any] = self._recomputed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def decide(self, recompute: bool) -> None:
        """Recompute this layer, or keep what it saves."""
        self.recompute = recompute and self.reason is None
        self.run = self._recomputed if self.recompute else self.original

    def _recomputed(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        flat, spec = pytree.tree_flatten((args, kwargs))
        found = Found([(m, n) for m, n, _ in self.block.buffers() if m.training], self.generators)
        runs = [0]

        def once(*leaves: Any) -> Any:
            runs[0] += 1
            again_args, again_kwargs = pytree.tree_unflatten(list(leaves), spec)
            if runs[0] == 1:
                return self.original(*again_args, **again_kwargs)
            with found.again():
                return self.original(*again_args, **again_kwargs)

        return checkpoint(once, *flat, use_reentrant=False, preserve_rng_state=False)

    # profiling ----------------------------------------------------------------------------------------------------

    def looked_at(self, *args: Any, **kwargs: Any) -> Any:
        """One forward, watched: bytes saved, seconds, and whether a second run gives the same bits."""
        found = Found([(m, n) for m, n, _ in self.block.buffers()], self.generators)
        given = {address_of(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        given |= {address_of(p) for p in self.block.parameters()}
        given |= {address_of(b) for _, _, b in self.block.buffers()}
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout is torch.strided and address_of(tensor) not in given:
                seen[address_of(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        copies = pytree.tree_map(_clone, (args, kwargs))
        before = time.perf_counter()
        with saved_tensors_hooks(pack, lambda t: t):
            out = self.original(*args, **kwargs)
        self.seconds = time.perf_counter() - before
        self.saved = sum(seen.values())
        with found.again(), torch.no_grad():
            second = self.original(*copies[0], **copies[1])
        difference = same_bits(_bare(out), _bare(second))
        self.reason = None
        if difference is not None:
            with found.again():
                second = self.original(*copies[0], **copies[1])
            difference = same_bits(_bare(out), _bare(second))
            self.reason = None if difference is None else f"run again from the same state, {difference}"
        return out


class _Forward:
    """The wrapped model's forward: its class's own, with the named layers' forwards in their places meanwhile."""

    def __init__(self, model: nn.Module, kind: type[nn.Module], layers: list[_Layer]) -> None:
        self._model, self._kind, self._layers = model, kind, layers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.replaced(lambda layer: layer):
            return self._kind.forward(self._model, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise _wrong("a deep copy of a wrapped model", "a copy of the model itself", "copy the model, then wrap it")

    @contextmanager
    def replaced(self, by: Callable[[_Layer], Callable[..., Any]]) -> Iterator[None]:
        """Within: each named layer runs `by(layer)`; after: nothing is left on any layer."""
        own = [layer.module.__dict__.get("forward", _NOTHING) for layer in self._layers]
        try:
            for layer in self._layers:
                layer.module.__dict__["forward"] = by(layer)
            yield
        finally:
            for layer, before in zip(self._layers, own, strict=True):
                if before is _NOTHING:
                    layer.module.__dict__.pop("forward", None)
                else:
                    layer.module.__dict__["forward"] = before

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        """The model as it is."""
        return self._kind.forward(self._model, *args, **kwargs)


_NOTHING = object()


def _named(model: nn.Module, layers: Sequence[str]) -> list[tuple[str, nn.Module]]:
    if isinstance(layers, str) or not layers:
        raise _wrong(f"layers={layers!r}", "a list of names or patterns", 'give e.g. layers=["encoder.layers.*"]')
    everything = {name: module for name, module in model.named_modules() if name}
    chosen: dict[str, nn.Module] = {}
    for pattern in layers:
        level = pattern.count(".")
        hits = [n for n in everything if n.count(".") == level and fnmatch.fnmatchcase(n, pattern)]
        if not hits:
            near = ", ".join(list(everything)[:6])
            raise _wrong(
                f"layer {pattern!r}, which is not there", f"a name such as {near}", "see model.named_modules()"
            )
        chosen.update((n, everything[n]) for n in hits)
    for name in chosen:
        outer = next((o for o in chosen if name != o and name.startswith(o + ".")), None)
        if outer is not None:
            raise _wrong(f"layer {name!r} inside layer {outer!r}", "layers beside each other", "name one of the two")
    return list(chosen.items())


def _measure(wrapped: nn.Module, layers: list[_Layer], example: tuple[Any, Any], loss: Any) -> None:
    """One watched forward; nothing of it is left behind."""
    forward = wrapped.__dict__["forward"]
    with _untouched(wrapped, layers), torch.enable_grad(), forward.replaced(lambda layer: layer.looked_at):
        forward.bare(*_arguments(example[0]))
    for layer in layers:
        layer.decide(True)


def _fit(
    wrapped: nn.Module, layers: list[_Layer], example: tuple[Any, Any], loss: Callable[..., Any], budget: Budget
) -> tuple[int, int, int | None]:
    """Recompute as few layers as the budget asks for, by measured peaks."""
    forward = wrapped.__dict__["forward"]

    def peak(run: Callable[..., Any]) -> int:
        def step() -> None:
            torch.autograd.backward(*roots_and_seeds(loss(run(*_arguments(example[0])), example[1])))

        with _untouched(wrapped, layers), torch.enable_grad():
            gradients = Gradients(p for p in wrapped.parameters() if p.requires_grad)
            try:
                step()  # fills caches
                gradients.undo()
                return peak_of(step, _device(wrapped)).bytes
            finally:
                gradients.undo()

    plain = peak(forward.bare)
    least = peak(forward)
    number = None if budget is None else parse_budget(budget, keep_peak=plain)
    if number is None:
        return plain, least, None
    if least > number:
        raise BudgetError(
            got=f"a budget of {number} bytes",
            wanted=f"at least {least} bytes, measured with every named layer recomputed",
            where="sweep.wrap",
            next_step=f"give budget={least} or more, or name more or smaller layers",
            smallest=least,
        )
    # the most seconds a byte first: those layers are worth keeping
    order = sorted((o for o in layers if o.recompute and o.saved), key=lambda o: o.saved / max(o.seconds, 1e-9))
    reached = least
    for layer in order:
        if reached + layer.saved > number + layer.saved // 8:  # far over by the count: not worth a measurement
            continue
        layer.decide(False)
        now = peak(forward)
        if now > number:
            layer.decide(True)
        else:
            reached = now
    return plain, reached, number


@contextmanager
def _untouched(model: nn.Module, layers: list[_Layer]) -> Iterator[None]:
    """Buffers and random states are put back."""
    block = one_block("model", model)
    random = RandomState([g for layer in layers for g in layer.generators])
    found = Found([(m, n) for m, n, _ in block.buffers()], None)
    try:
        with without_hooks(model.parameters()):
            yield
    finally:
        found.put_back()
        random.restore()


def _arguments(x: Any) -> tuple[Any, ...]:
    return x if type(x) is tuple else (x,)


def _device(model: nn.Module) -> torch.device:
    first = next(iter(model.parameters()), None)
    return torch.device("cpu") if first is None else first.device


def _clone(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _bare(value: Any) -> Any:
    return pytree.tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, value)


def _wrong(got: str, wanted: str, next_step: str) -> SweepError:
    return SweepError(got=got, wanted=wanted, where="sweep.wrap", next_step=next_step)
