"""A chain over several processes: blocks placed by measured costs, run by torch.distributed.pipelining's schedules.

Here is decided which blocks make a stage, and a stage is handed to the library as a module that takes and returns plain
tensors.  When each micro-batch runs where, and what is sent, is the library's.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn

from gradledger.core.errors import SweepError
from gradledger.sweep._block import Block, Blocks
from gradledger.sweep._chain import Chain
from gradledger.sweep._cost import Costs
from gradledger.sweep._profile import Profiler
from gradledger.sweep._replay import Found, RandomState
from gradledger.sweep._state import describe

Schedule = Literal["1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-v"]
_CLASSES: dict[str, str] = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
    "zero-bubble-v": "ScheduleZBVZeroBubble",
}
_ONE_STAGE_A_RANK = ("1f1b", "gpipe")


@dataclass(frozen=True)
class Placement:
    """Which blocks make which stage.

    Attributes:
        stages: for each stage its first block and the one after its last; the loss belongs to the last stage.
        seconds: of each stage, one micro-batch forward and back.
        names: of the blocks.
    """

    stages: tuple[tuple[int, int], ...]
    seconds: tuple[float, ...]
    names: tuple[str, ...]

    @property
    def balance(self) -> float:
        """Mean stage time over largest, 1 when all are equal: what the slowest stage leaves of the others' time."""
        return sum(self.seconds) / len(self.seconds) / max(self.seconds) if max(self.seconds) else 1.0

    def __str__(self) -> str:
        lines = [f"{'stage':>5}  {'blocks':<24}{'ms':>9}"]
        for k, ((first, stop), seconds) in enumerate(zip(self.stages, self.seconds, strict=True)):
            what = self.names[first] if stop - first == 1 else f"{self.names[first]} .. {self.names[stop - 1]}"
            lines.append(f"{k:>5}  {what:<24}{seconds * 1e3:>9.3f}")
        return "\n".join([*lines, f"balance {self.balance:.2f}"])


def split(seconds: Sequence[float], stages: int, together: Sequence[tuple[int, int]] = ()) -> tuple[int, ...]:
    """Cut a row of times into contiguous parts so that the largest part is as small as can be; exact.

    Args:
        seconds: of each block.
        stages: number of parts, none of them empty.
        together: pairs (i, j) of blocks that must lie in one part, and with them all between.

    Returns:
        the first block of each part but the first.

    Raises:
        SweepError: not that many parts can be made.

    Example:
        >>> split([3, 1, 1, 1, 4], 3)
        (1, 4)
    """
    n = len(seconds)
    allowed = [all(not low < cut <= high for low, high in map(sorted, together)) for cut in range(n + 1)]
    most = 1 + sum(allowed[1:n])
    if not 1 <= stages <= most:
        raise SweepError(
            got=f"{stages} stages for {n} blocks"
            + (f", of which {n - most} must lie with the one before (shared parameters)" if most < n else ""),
            wanted=f"1 to {most} stages",
            where="sweep.pipeline",
            next_step="ask for fewer stages, cut the model into smaller blocks, or do not share parameters across it",
        )
    before = [0.0]
    for value in seconds:
        before.append(before[-1] + value)
    best = [0.0] + [float("inf")] * n  # of the first j blocks in k parts
    cuts: list[list[int]] = []
    for _ in range(stages):
        made = [float("inf")] * (n + 1)
        at = [0] * (n + 1)
        for stop in range(1, n + 1):
            for cut in range(stop):
                if allowed[cut]:
                    largest = max(best[cut], before[stop] - before[cut])
                    if largest < made[stop]:
                        made[stop], at[stop] = largest, cut
        best = made
        cuts.append(at)
    found: list[int] = []
    stop = n
    for at in reversed(cuts):
        stop = at[stop]
        found.append(stop)
    return tuple(reversed(found[:-1]))


class _Wire:
    """A nested state as the plain tensors that cross a stage boundary, each once, and back."""

    def __init__(self, state: Any, where: str) -> None:
        flat, self._spec = pytree.tree_flatten(state)
        once: dict[int, int] = {}
        self.example: list[Tensor] = []
        self._leaves: list[Any] = []  # a place among the tensors, or the value itself in a tuple
        for value in flat:
            if isinstance(value, Tensor):
                if id(value) not in once:
                    once[id(value)] = len(self.example)
                    self.example.append(value)
                self._leaves.append(once[id(value)])
            elif value is None or isinstance(value, bool | int | float | str):
                self._leaves.append((value,))
            else:
                raise _wrong(f"a {type(value).__name__} in the state {where}", "tensors", "hand it to the blocks")
        if not self.example:
            raise _wrong(f"a state without tensors {where}", "at least one tensor", "return the tensors that go on")

    def pack(self, state: Any) -> Tensor | tuple[Tensor, ...]:
        """The tensors of a state like the example's."""
        flat, spec = pytree.tree_flatten(state)
        constant = [(v,) for v in flat if not isinstance(v, Tensor)]
        if spec != self._spec or constant != [v for v in self._leaves if isinstance(v, tuple)]:
            raise _wrong("a state of another form than the example's", "the same nesting and values", "give a batch")
        out: dict[int, Tensor] = {}
        for value, place in zip(flat, self._leaves, strict=True):
            if isinstance(value, Tensor):
                out.setdefault(place, value.contiguous())
        tensors = tuple(out[k] for k in range(len(self.example)))
        return tensors[0] if len(tensors) == 1 else tensors

    def unpack(self, tensors: Sequence[Tensor]) -> Any:
        """The state from its tensors."""
        leaves = [v[0] if isinstance(v, tuple) else tensors[v] for v in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)


class _Received(torch.autograd.Function):
    """Passes a received tensor on; its gradient goes back in the dense layout that is sent."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


class Stage(nn.Module):
    """A run of blocks as one module over plain tensors; it holds the blocks' own modules."""

    def __init__(self, blocks: Blocks, takes: _Wire, gives: _Wire) -> None:
        super().__init__()
        self._calls = [b.call for b in blocks]
        self._takes, self._gives = takes, gives
        for k, block in enumerate(blocks):
            self.add_module(str(k), _held(block))

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The blocks in turn."""
        state = self._takes.unpack([_Received.apply(t) for t in tensors])  # type: ignore[no-untyped-call]
        for call in self._calls:
            state = call(state)
        return self._gives.pack(state)


def _held(block: Block) -> nn.Module:
    if isinstance(block.call, nn.Module):
        return block.call
    holder = nn.ModuleList(block.modules)
    for k, tensor in enumerate(block.tensors):
        if not isinstance(tensor, nn.Parameter):
            raise _wrong(
                f"block {block.name}, a function with a trained tensor that is no nn.Parameter",
                "parameters",
                "make it an nn.Parameter, or a module of the function",
            )
        holder.register_parameter(f"tensor{k}", tensor)
    return holder


class Pipeline:
    """One process's part of a chain that is trained as a pipeline.

    Attributes:
        placement: which blocks make which stage (the same in every process).
        stages: the indices of the stages that run here.
        modules: those stages; their parameters are the user's own.
        microbatches: into how many parts a batch is cut.
        schedule: the library's schedule object.
    """

    def __init__(
        self,
        placement: Placement,
        mine: tuple[int, ...],
        modules: tuple[Stage, ...],
        schedule: Any,
        microbatches: int,
        example: tuple[Any, Tensor],
        scaled: bool,
        group: Any,
    ) -> None:
        self.placement, self.stages, self.modules = placement, mine, modules
        self.schedule, self.microbatches = schedule, microbatches
        self._kinds = ([_kind(t) for t in pytree.tree_leaves(example[0])], _kind(example[1]))
        self._scaled, self._group = scaled, group
        self._quiet = {"return_outputs": False}
        if "return_outputs" not in inspect.signature(schedule.step).parameters:
            self._quiet = {}

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this process's stages, each once, in forward order: what its optimizer takes."""
        return list({id(p): p for module in self.modules for p in module.parameters()}.values())

    def step(self, x: Any, y: Tensor) -> Tensor | None:
        """One batch through the pipeline, forward and back; fills `.grad` of this process's parameters.

        Every process calls it.  `x` is used where the first stage is, `y` where the last is.

        Args:
            x: the batch, B samples along the first axis of each tensor; B as in the example.
            y: the target, B samples.

        Returns:
            where the last stage is, the loss: the mean (or sum) over micro-batches, detached; None elsewhere.

        Raises:
            SweepError: a batch of another kind than the example.
        """
        first, last = 0 in self.stages, len(self.placement.stages) - 1 in self.stages
        flat = pytree.tree_leaves(x)
        for got, wanted in [*(zip(map(_kind, flat), self._kinds[0], strict=False) if first else ())] + [
            (_kind(y), self._kinds[1])
        ] * last:
            if got != wanted:
                raise _wrong(f"a batch with {got}", f"{wanted}, as in the example", "build another pipeline for it")
        losses: list[Tensor] = []
        arguments: dict[str, Any] = {"target": y, "losses": losses} if last else {}
        self.schedule.step(*(flat if first else ()), **arguments, **self._quiet)
        if not last:
            return None
        total = torch.stack([loss.detach() for loss in losses]).sum()
        return total / len(losses) if self._scaled else total

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients of the chain, over all processes, to a total norm of at most `max_norm`.

        The total has the bits of `torch.nn.utils.clip_grad_norm_` over the parameters in forward order.

        Returns:
            the total norm before, the same in every process.
        """
        norms = {
            index: [
                torch.linalg.vector_norm(p.grad, norm_type).cpu() for p in module.parameters() if p.grad is not None
            ]
            for index, module in zip(self.stages, self.modules, strict=True)
        }
        gathered: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(gathered, norms, group=self._group)
        merged = {index: values for part in gathered for index, values in part.items()}
        ordered = [norm for index in sorted(merged) for norm in merged[index]]
        total = torch.linalg.vector_norm(torch.stack(ordered), norm_type) if ordered else torch.zeros(())
        coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for p in self.parameters():
            if p.grad is not None:
                p.grad.mul_(coefficient.to(p.grad.device))
        return total


def pipeline(
    model: Any,
    *,
    stages: int,
    loss: Callable[[Any, Tensor], Tensor],
    example: tuple[Any, Tensor],
    microbatches: int,
    schedule: Schedule = "1f1b",
    reduction: Literal["mean", "sum"] = "mean",
    costs: Costs | None = None,
    group: dist.ProcessGroup | None = None,
) -> Pipeline:
    """Place a chain on the processes of a group by its measured costs, to be trained as a pipeline.

    Every process builds the same model with the same weights and calls this.  The first process measures each block on
    one micro-batch (unless `costs` are given), the chain is cut so that the slowest stage is as fast as it can be, and
    `torch.distributed.pipelining` runs the stages.

    Args:
        model: as `sweep.blocks` takes it; blocks that share parameters are kept in one stage.
        stages: how many: one a process ("1f1b", "gpipe"), a multiple ("interleaved", "zero-bubble"), or two a process
            ("zero-bubble-v").
        loss: (state, y) -> scalar tensor, of one micro-batch.
        example: (x, y), a whole batch: B samples, a multiple of `microbatches`, along the first axis of every tensor.
        microbatches: into how many parts each batch is cut.
        schedule: which of the library's schedules.
        reduction: how the loss sums over samples: "mean" divides the gradients by `microbatches`, "sum" does not.
        costs: what the chain costs, from `sweep.plan(...).costs`; None: measure.
        group: the processes; None: all.

    Returns:
        this process's part.

    Raises:
        SweepError: a number of stages that the schedule or the chain cannot have; a batch that cannot be cut evenly; a
            loss with parameters.

    Random numbers come from each process's own stream, so a chain with dropout trains with other masks than in one
    process; BatchNorm sees micro-batches.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise _wrong("no process group", "processes", "start with torchrun and call dist.init_process_group first")
    x, y = example
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    _check(stages, schedule, reduction, world)
    chain = Chain(model, loss)
    if chain.blocks[-1].parameters():
        raise _wrong("a loss with parameters", "a function of state and target", "make its layers the last block")
    part_x, part_y = _part(x, microbatches), _part(y, microbatches)
    wires = _wires(chain, part_x, part_y)
    placement = _place(chain, stages, costs, part_x, part_y, group, rank)
    mine = tuple(s for s in range(stages) if _rank_of(s, world, schedule) == rank)
    modules = tuple(
        Stage(chain.blocks[first:stop], wires[first], wires[stop])
        for first, stop in (placement.stages[s] for s in mine)
    )
    built = _schedule(modules, mine, placement, wires, loss, schedule, microbatches, reduction, group)
    return Pipeline(placement, mine, modules, built, microbatches, example, reduction == "mean", group)


def _check(stages: int, schedule: str, reduction: str, world: int) -> None:
    if schedule not in _CLASSES:
        raise _wrong(f"schedule={schedule!r}", f"one of {', '.join(_CLASSES)}", "choose one of them")
    if reduction not in ("mean", "sum"):
        raise _wrong(f"reduction={reduction!r}", "'mean' or 'sum'", "say how the loss sums over samples")
    wanted = {
        "zero-bubble-v": (stages == 2 * world, f"{2 * world} stages, two a process"),
        "interleaved": (stages % world == 0 and stages > 0, f"a multiple of {world} stages"),
        "zero-bubble": (stages % world == 0 and stages > 0, f"a multiple of {world} stages"),
    }
    fits, text = wanted.get(schedule, (stages == world, f"{world} stages, one a process"))
    if not fits:
        raise _wrong(
            f"stages={stages} with schedule={schedule!r} and {world} processes",
            text,
            "change stages, or start as many processes: torchrun --nproc-per-node N",
        )


def _rank_of(stage: int, world: int, schedule: str) -> int:
    if schedule == "zero-bubble-v":
        return stage if stage < world else 2 * world - 1 - stage
    return stage % world


def _part(state: Any, parts: int) -> Any:
    """The first micro-batch."""
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise _wrong(f"microbatches={parts!r}", "a whole number of at least 1", "give microbatches=4")
    for t in pytree.tree_leaves(state):
        if not isinstance(t, Tensor) or t.ndim == 0 or t.shape[0] % parts:
            what = describe(t) if isinstance(t, Tensor) else f"a {type(t).__name__}"
            raise _wrong(
                f"{what} in the example",
                f"tensors whose first axis is a multiple of the {parts} micro-batches",
                "drop the last incomplete batch, or change microbatches",
            )
    return pytree.tree_map(lambda t: t[: t.shape[0] // parts].clone(), state)


def _place(
    chain: Chain, stages: int, costs: Costs | None, x: Any, y: Any, group: dist.ProcessGroup | None, rank: int
) -> Placement:
    """The placement that the first process finds, in every process; an error in one is an error in all."""
    found: list[Any] = [None]
    if rank == 0:
        try:
            if costs is None:
                costs = Profiler(chain.blocks, chain.facts(chain.key(x)), chain.generators, x, y).measure()
            found = [_placement(chain, stages, costs)]
        except Exception as error:  # the others wait for word
            dist.broadcast_object_list([f"{type(error).__name__}: {error}"], src=_first_of(group), group=group)
            raise
    dist.broadcast_object_list(found, src=_first_of(group), group=group)
    if not isinstance(found[0], Placement):
        raise _wrong(f"an error in the first process, {found[0]}", "a placement from it", "see what it says there")
    return found[0]


def _first_of(group: dist.ProcessGroup | None) -> int:
    return 0 if group is None else dist.get_global_rank(group, 0)


def _placement(chain: Chain, stages: int, costs: Costs) -> Placement:
    n = len(chain.blocks) - 1
    if len(costs) != n + 1:
        raise _wrong(f"costs of {len(costs)} blocks", f"{n + 1}, the loss counted", "measure this chain")
    seconds = [b.record_s + b.reverse_s for b in costs.blocks]
    seconds = [*seconds[: n - 1], seconds[n - 1] + seconds[n]]
    first: dict[int, int] = {}
    together = [
        (first.setdefault(id(p), i), i)
        for i, block in enumerate(chain.blocks[:-1])
        for p in (*block.parameters(), *(m for m in block.modules if m._buffers))
    ]
    cuts = split(seconds, stages, [(i, j) for i, j in together if i < j])
    edges = (0, *cuts, n)
    ranges = tuple(itertools.pairwise(edges))
    return Placement(ranges, tuple(sum(seconds[a:b]) for a, b in ranges), tuple(b.name for b in chain.blocks[:-1]))


def _wires(chain: Chain, x: Any, y: Any) -> list[_Wire]:
    """What crosses each boundary, found by one run that leaves no trace."""
    random = RandomState(chain.generators)
    buffers = [Found([(m, n) for m, n, _ in b.buffers()], None) for b in chain.blocks]
    try:
        state = x
        wires = [_Wire(state, "before the first block")]
        for block in chain.blocks[:-1]:
            state = block.call(state)
            wires.append(_Wire(state, f"after block {block.name}"))
        loss = chain.blocks[-1].call(state, y)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise _wrong("a loss that is no scalar tensor", "one number", "sum the losses in the loss function")
    finally:
        for found in reversed(buffers):
            found.put_back()
        random.restore()
    for wire in wires:
        wire.example = [t.detach().clone().contiguous().requires_grad_(t.requires_grad) for t in wire.example]
    return wires


def _schedule(
    modules: Sequence[Stage],
    mine: Sequence[int],
    placement: Placement,
    wires: Sequence[_Wire],
    loss: Callable[[Any, Tensor], Tensor],
    schedule: str,
    microbatches: int,
    reduction: str,
    group: dist.ProcessGroup | None,
) -> Any:
    from torch.distributed import pipelining
    from torch.distributed.pipelining import schedules

    parts = [
        pipelining.PipelineStage(
            module,
            index,
            len(placement.stages),
            wires[0].example[0].device,
            # known shapes: the library would find them by running the blocks, which changes buffers
            input_args=tuple(wires[placement.stages[index][0]].example),
            output_args=tuple(wires[placement.stages[index][1]].example),
            group=group,
        )
        for index, module in zip(mine, modules, strict=True)
    ]
    end = wires[-1]

    def on_tensors(tensors: Any, y: Tensor) -> Tensor:
        return loss(end.unpack([tensors] if isinstance(tensors, Tensor) else tensors), y)

    kind = getattr(schedules, _CLASSES[schedule])
    try:
        return kind(
            parts[0] if schedule in _ONE_STAGE_A_RANK else parts,
            microbatches,
            loss_fn=on_tensors,
            scale_grads=reduction == "mean",
        )
    except ValueError as error:
        raise _wrong(
            f"microbatches={microbatches} with schedule={schedule!r}",
            f"what the schedule takes ({error})",
            "change microbatches: a multiple of the number of processes suits every schedule",
        ) from error


def _kind(tensor: Any) -> str:
    return describe(tensor) if isinstance(tensor, Tensor) else f"a {type(tensor).__name__}"


def _wrong(got: str, wanted: str, next_step: str) -> SweepError:
    return SweepError(got=got, wanted=wanted, where="sweep.pipeline", next_step=next_step)
