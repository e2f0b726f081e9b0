"""Data parallelism around a chain: what DistributedDataParallel and fully_shard (FSDP2) do around forward and backward.

Both reduce gradients from the engine's accumulation: DDP's reducer hangs on the AccumulateGrad node of each parameter,
FSDP2 on the outputs and inputs of each sharded module.  A sweep calls the engine once a block, so each of these fires
in its block's product, once a step, and the communication runs while earlier blocks are reversed, as it does under one
backward.  What is left to say here is when a step begins and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradledger.core.errors import SweepError
from gradledger.sweep import _vjp

if TYPE_CHECKING:
    from gradledger.sweep._block import Block


class Reduction(Protocol):
    """What surrounds a step of a chain whose gradients are reduced over processes.

    Attributes:
        by_accumulation: parameter gradients must arrive by the engine's accumulation, inside a block's own product.
        collective: a block's forward communicates, so that all processes must run the same plan.
    """

    by_accumulation: bool
    collective: bool

    def check(self, engine: str) -> None:
        """Raise SweepError for what this engine cannot do exactly."""

    def ready(self) -> None:
        """Before any block runs, outside a step too."""

    def before(self, x: Any) -> Any:
        """Before the forward pass; returns the input to run on."""

    def begin(self) -> None:
        """Before the reverse walk."""

    def stays(self, parameter: Tensor) -> bool:
        """Whether its older gradient is part of what is reduced, and so stays in `.grad` during the walk."""

    def hangs_on(self, parameter: Tensor) -> bool:
        """Whether a reduction hangs on the accumulation of its gradient."""

    def end(self) -> None:
        """After the reverse walk: waits until every gradient is reduced."""

    def abandon(self) -> None:
        """A step that failed."""


# reading a model ------------------------------------------------------------------------------------------------------


def unwrap(model: Any) -> tuple[nn.Module | None, Any]:
    """The wrapper that reduces a model's gradients (None where there is none), and the chain inside it.

    Raises:
        SweepError: a wrapper with settings that act between or around the blocks.
    """
    if isinstance(model, DistributedDataParallel):
        _check_ddp(model)
        return model, model.module
    return (model if _is_sharded(model) else None), model


def own_hooks(model: nn.Module) -> frozenset[int]:
    """Ids of the hooks that fully_shard has put on a container; they have nothing to do where it has no parameters."""
    if not _is_sharded(model):
        return frozenset()
    state = _state(model)
    return frozenset((state._pre_forward_hook_handle.id, state._post_forward_hook_handle.id))


def reduction_of(blocks: Sequence[Block]) -> Reduction | None:
    """How the gradients of a chain are reduced; None in one process.

    Raises:
        SweepError: wrappers inside blocks, or parameters that a sharded container manages itself.
    """
    wrapper = next((b.wrapper for b in blocks if b.wrapper is not None), None)
    for block in blocks:
        if any(isinstance(m, DistributedDataParallel) for m in block.modules):
            raise _refused(
                f"DistributedDataParallel inside block {block.name}",
                "one DistributedDataParallel around the whole chain: each keeps an account of one forward and backward",
                "write DistributedDataParallel(nn.Sequential(...)) and give that",
            )
    if isinstance(wrapper, DistributedDataParallel):
        return Replicated(wrapper, blocks)
    if wrapper is not None or any(_is_sharded(m) for b in blocks for m in b.modules):
        return Sharded(wrapper, blocks)
    return None


def _is_sharded(model: Any) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not loaded: nothing can be sharded
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def _state(module: Any) -> Any:
    return module._get_fsdp_state()


def _check_ddp(ddp: DistributedDataParallel) -> None:
    hooked = [
        what
        for what in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
        if getattr(ddp, what, None)
    ]
    if hooked:
        raise _refused(
            f"DistributedDataParallel with {hooked[0].strip('_').replace('_', ' ')} on it",
            "hooks on the blocks: its forward is never called, so its own hooks would not run",
            "move the hooks to the first or last block, or call the model itself and loss.backward()",
        )
    if ddp.mixed_precision is not None:
        raise _refused(
            "DistributedDataParallel(mixed_precision=...), which casts parameters in hooks on the container",
            "parameters that are what the blocks use",
            "leave it out and put torch.autocast around the step",
        )
    if getattr(ddp, "_delay_all_reduce_params", None):
        raise _refused(
            "DistributedDataParallel(delay_all_reduce_named_params=...), whose reduction starts at another parameter",
            "a reduction that hangs on each parameter alone",
            "leave it out",
        )
    if not isinstance(ddp.module, nn.Sequential) and type(ddp.module).__name__ != "TensorDictSequential":
        raise _refused(
            f"DistributedDataParallel around {type(ddp.module).__name__}, whose forward says in code what runs when",
            "DistributedDataParallel around an nn.Sequential or a TensorDictSequential",
            "put DistributedDataParallel around sweep.wrap(model, layers=[...]) and call loss.backward()",
        )


# DistributedDataParallel ----------------------------------------------------------------------------------------------


class _Nothing(torch.autograd.Function):
    """A graph over parameters whose products are undefined: their AccumulateGrad nodes run, their `.grad` stays."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        count: int = ctx.count
        return (None,) * (1 + count)


def _over(parameters: Sequence[Tensor]) -> Tensor:
    with torch.enable_grad():
        result: Tensor = _Nothing.apply(torch.zeros((), requires_grad=True), *parameters)  # type: ignore[no-untyped-call]
    return result


@final
class Replicated:
    """A chain inside DistributedDataParallel.

    Its own code does what comes before and after forward (buffers, buckets, input placement) and the reduction.  Which
    parameters a step leaves without a gradient it cannot see in graphs that end at every boundary: it is told that all
    are used, and those that were not are reported at the end, as gradients that are undefined.
    """

    by_accumulation = False
    collective = False

    def __init__(self, ddp: DistributedDataParallel, blocks: Sequence[Block]) -> None:
        self._ddp = ddp
        self.collective = any(isinstance(m, nn.SyncBatchNorm) for b in blocks for m in b.modules)
        self._ids = {id(p) for p in self._named().values()}
        self._syncs = False
        self._given: set[int] = set()
        self._handles: list[Any] = []
        self._sink: Tensor | None = None

    def check(self, engine: str) -> None:
        pass

    def ready(self) -> None:
        pass

    def before(self, x: Any) -> Any:
        with torch.enable_grad():
            args, _ = self._ddp._pre_forward(x)  # type: ignore[no-untyped-call]
        return args[0]

    def begin(self) -> None:
        ddp = self._ddp
        self._forget()
        self._syncs = bool(ddp.require_backward_grad_sync)
        first = ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued
        named = self._named()
        witness = _over(list(named.values()) if ddp.find_unused_parameters and not ddp.static_graph else [])
        with torch.enable_grad():
            sink = ddp._post_forward(witness)  # type: ignore[no-untyped-call]
        if not self._syncs:
            return
        self._sink = sink if first else None
        for p in named.values():
            handle = p.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
            self._handles.append(handle)

    def stays(self, parameter: Tensor) -> bool:
        return self._syncs and id(parameter) in self._ids

    def hangs_on(self, parameter: Tensor) -> bool:
        return id(parameter) in self._ids

    def end(self) -> None:
        if not self._syncs:
            return
        given, sink, static = self._given, self._sink, self._ddp.static_graph
        self._forget()
        missing = {name: p for name, p in self._named().items() if id(p) not in given}
        if sink is not None:  # the first step of a static graph: everything is reduced at its end
            _vjp.accumulate((sink,), (torch.ones_like(sink),))
        elif missing and not static:
            if not self._ddp.find_unused_parameters:
                raise _refused(
                    f"no gradient for {', '.join(list(missing)[:3])}{' and more' if len(missing) > 3 else ''}",
                    "a gradient for every parameter on every process: the others wait for it",
                    "give DistributedDataParallel(..., find_unused_parameters=True), or freeze it before wrapping",
                )
            end = _over(list(missing.values()))
            _vjp.accumulate((end,), (torch.ones_like(end),))

    def abandon(self) -> None:
        self._forget()

    def _note(self, parameter: Tensor) -> None:
        self._given.add(id(parameter))

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._given, self._sink = set(), None

    def _named(self) -> dict[str, nn.Parameter]:
        ignored = self._ddp.parameters_to_ignore
        return {n: p for n, p in self._ddp.module.named_parameters() if p.requires_grad and n not in ignored}


# fully_shard ----------------------------------------------------------------------------------------------------------


@final
class Sharded:
    """A chain whose blocks are sharded by fully_shard.

    A sharded module gathers its parameters before its forward and before its backward, and reduces their gradients
    when its backward is through.  All of it hangs on the module and its outputs, and so on the block's own product.
    What it does once a backward (it frees what was gathered, and reduces the first block, whose input takes no
    gradient) it would do after each product; it is put off to the end of the walk.
    """

    by_accumulation = True
    collective = True

    def __init__(self, root: nn.Module | None, blocks: Sequence[Block]) -> None:
        self._root, self._blocks = root, blocks
        self._modules = list({id(m): m for b in blocks for m in b.modules if _is_sharded(m)}.values())
        managed = {id(p) for m in self._modules for p in m.parameters()}
        for block in blocks if root is not None else ():
            for p in block.parameters():
                if id(p) not in managed:
                    raise _refused(
                        f"block {block.name}, whose parameters the sharded container manages",
                        "fully_shard on every block that has parameters: the container gathers its own only when it is "
                        "called itself",
                        f"call fully_shard(model[{block.name!r}]) too, before fully_shard(model)"
                        if not block.name.isdigit()
                        else f"call fully_shard(model[{block.name}]) too, before fully_shard(model)",
                    )

    def check(self, engine: str) -> None:
        if engine != "sweep":
            return
        owner: dict[int, str] = {}
        for block in self._blocks:
            own = [_state(m) for m in block.modules if _is_sharded(m)]
            for key in {id(s) for s in own} | {id(p) for p in block.parameters()}:
                first = owner.setdefault(key, block.name)
                if first != block.name:
                    raise _refused(
                        f"blocks {first} and {block.name}, which share a parameter or a group of fully_shard",
                        "sharded blocks with parameters of their own: a shared one is reduced in its first block's "
                        "product",
                        "use engine='autograd', or put the two into one block",
                    )

    def ready(self) -> None:
        if self._root is not None:
            _state(self._root)._lazy_init()  # so that the container can still be called itself, say for evaluation

    def before(self, x: Any) -> Any:
        self.ready()
        return x

    def begin(self) -> None:
        for state in self._states():
            state._state_ctx.post_backward_final_callback_queued = True

    def stays(self, parameter: Tensor) -> bool:
        return True

    def hangs_on(self, parameter: Tensor) -> bool:
        return False

    def end(self) -> None:
        for state in self._states():
            if state._is_root:
                state._root_post_backward_final_callback()

    def abandon(self) -> None:
        for state in self._states():
            state._state_ctx.post_backward_final_callback_queued = False

    def _states(self) -> Iterable[Any]:
        modules = self._modules if self._root is None else [self._root, *self._modules]
        return {id(s): s for s in map(_state, modules)}.values()


def refuse(reduction: Reduction | None, what: str, instead: str) -> None:
    """Raise SweepError where gradients are reduced and `what` would use them before they are."""
    if reduction is not None:
        kind = "DistributedDataParallel" if isinstance(reduction, Replicated) else "fully_shard"
        raise _refused(f"{what} with {kind}", "a call that waits until gradients are reduced", instead)


def _refused(got: str, wanted: str, next_step: str) -> SweepError:
    return SweepError(got=got, wanted=wanted, where="sweep beyond one process", next_step=next_step)
