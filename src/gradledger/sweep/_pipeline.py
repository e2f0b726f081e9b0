"""A chain over several processes: blocks placed by measured costs, run by torch.distributed.pipelining's schedules.

`_placement` decides which blocks make a stage; a stage (`_stage`) is handed to the library as a module that takes and
returns plain tensors.  When each micro-batch runs where, and what is sent, is the library's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn

from gradledger.sweep._chain import Chain
from gradledger.sweep._cost import Costs
from gradledger.sweep._placement import Placement, place
from gradledger.sweep._stage import Stage, Wire, wires_of, wrong
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
                raise wrong(f"a batch with {got}", f"{wanted}, as in the example", "build another pipeline for it")
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
        raise wrong("no process group", "processes", "start with torchrun and call dist.init_process_group first")
    x, y = example
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    _check(stages, schedule, reduction, world)
    chain = Chain(model, loss)
    if chain.blocks[-1].parameters():
        raise wrong("a loss with parameters", "a function of state and target", "make its layers the last block")
    part_x, part_y = _part(x, microbatches), _part(y, microbatches)
    wires = wires_of(chain, part_x, part_y)
    placement = place(chain, stages, costs, part_x, part_y, group, rank)
    mine = tuple(s for s in range(stages) if _rank_of(s, world, schedule) == rank)
    modules = tuple(
        Stage(chain.blocks[first:stop], wires[first], wires[stop])
        for first, stop in (placement.stages[s] for s in mine)
    )
    built = _schedule(modules, mine, placement, wires, loss, schedule, microbatches, reduction, group)
    return Pipeline(placement, mine, modules, built, microbatches, example, reduction == "mean", group)


def _check(stages: int, schedule: str, reduction: str, world: int) -> None:
    if schedule not in _CLASSES:
        raise wrong(f"schedule={schedule!r}", f"one of {', '.join(_CLASSES)}", "choose one of them")
    if reduction not in ("mean", "sum"):
        raise wrong(f"reduction={reduction!r}", "'mean' or 'sum'", "say how the loss sums over samples")
    wanted = {
        "zero-bubble-v": (stages == 2 * world, f"{2 * world} stages, two a process"),
        "interleaved": (stages % world == 0 and stages > 0, f"a multiple of {world} stages"),
        "zero-bubble": (stages % world == 0 and stages > 0, f"a multiple of {world} stages"),
    }
    fits, text = wanted.get(schedule, (stages == world, f"{world} stages, one a process"))
    if not fits:
        raise wrong(
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
        raise wrong(f"microbatches={parts!r}", "a whole number of at least 1", "give microbatches=4")
    for t in pytree.tree_leaves(state):
        if not isinstance(t, Tensor) or t.ndim == 0 or t.shape[0] % parts:
            what = describe(t) if isinstance(t, Tensor) else f"a {type(t).__name__}"
            raise wrong(
                f"{what} in the example",
                f"tensors whose first axis is a multiple of the {parts} micro-batches",
                "drop the last incomplete batch, or change microbatches",
            )
    return pytree.tree_map(lambda t: t[: t.shape[0] // parts].clone(), state)


def _schedule(
    modules: Sequence[Stage],
    mine: Sequence[int],
    placement: Placement,
    wires: Sequence[Wire],
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
        raise wrong(
            f"microbatches={microbatches} with schedule={schedule!r}",
            f"what the schedule takes ({error})",
            "change microbatches: a multiple of the number of processes suits every schedule",
        ) from error


def _kind(tensor: Any) -> str:
    return describe(tensor) if isinstance(tensor, Tensor) else f"a {type(tensor).__name__}"
