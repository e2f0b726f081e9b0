"""What ranks must have in common and what they must not: parameters at the same step, batches, the sampler's order.

Digests of a few steps and batches; they are compared when the ledgers of all ranks lie side by side.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradledger.core.events import RankBatch, RankParameters, SamplerPass
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger import _site
from gradledger.ledger._digest import digest, flat_tensors
from gradledger.ledger._identity import Ref
from gradledger.ledger._often import Often
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

BATCHES = 4  # of one pass
PASSES = 3
PARAMETERS = 64
LINES = 16  # of the program, where those were made
SENT = 64  # tensors that travelled, of one iteration
SMALL = 16  # elements: losses and metrics that are averaged for a log
_MOVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "send", "recv")


def place() -> tuple[int, int]:
    """(rank, ranks); (0, 1) outside a group of processes."""
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.moved_now: dict[int, int] = {}  # address -> elements, since the last step
        self.wrapped: set[int] = set()
        self.samplers: weakref.WeakKeyDictionary[Any, Site] = weakref.WeakKeyDictionary()
        self.loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.passes: dict[int, int] = {}
        self.iterators: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self.waiting: list[Any] | None = None
        self.sent: list[Ref[torch.Tensor]] = []  # since the last reverse pass
        self.exchanged = self.sharded = False
        self.optimizers: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.often = Often()

    # ------------------------------------------------------------------ what travels between ranks

    def moved(self, before: Any, result: Any, args: Any, kwargs: Any) -> None:
        tensor = args[0] if args else kwargs.get("tensor")
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            return
        if len(self.sent) < SENT:
            self.sent.append(Ref(tensor))
        if self.recorder.backwards:
            self.moved_now[tensor.data_ptr()] = tensor.numel()
            if len(self.moved_now) > 4096:
                self.moved_now.clear()

    def before_backward(self) -> None:
        """What travelled and has become a part of a graph since (a sum of partial results, inside a function with a
        reverse pass of its own) is no gradient and no metric, however small it is."""
        sent, self.sent = self.sent, []
        self.exchanged = self.exchanged or any((t := ref()) is not None and t.grad_fn is not None for ref in sent)

    def ddp_made(self, before: Any, result: Any, args: Any, kwargs: Any) -> None:
        for parameter in args[0].parameters():
            self.wrapped.add(self.recorder.tensor_id(parameter))

    def before_step(self, tensors: list[torch.Tensor], site: Site) -> None:
        """The gradients are what they will be: which of them travelled, and what the parameters are before they
        move."""
        moved, self.moved_now = self.moved_now, {}
        rank, world = place()
        if world < 2 or not tensors or any(type(t) is not torch.nn.Parameter for t in tensors):
            return
        optimizer = self.optimizers.setdefault(self.recorder.tensor_id(tensors[0]), len(self.optimizers))
        step = self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
        grads = {t.grad.data_ptr(): t.grad.numel() for t in tensors if t.grad is not None}
        whole = sum(grads.values())
        own = {t.data_ptr() for t in tensors}
        flat = whole in (n for at, n in moved.items() if at not in grads)  # all gradients in one
        others = [n for at, n in moved.items() if at not in grads and at not in own and n not in (whole, 1)]
        self.exchanged = self.exchanged or any(n > SMALL for n in others)
        if step & (step - 1) and step > 3:
            return
        chosen = tensors[:PARAMETERS]
        sites = [self._made(t) for t in chosen]
        made = list(dict.fromkeys(s for s in sites if s.file))[:LINES]
        self.recorder.emit(
            RankParameters,
            site,
            rank=rank,
            world=world,
            optimizer=optimizer,
            step=step,
            shapes=tuple(str(tuple(t.shape)) for t in chosen),
            digests=tuple(digest([t]) for t in chosen),
            averaged=tuple(flat or self._travelled(t, moved) for t in chosen),
            exchanged=self.exchanged,
            sharded_data=self.sharded,
            made_site=sites[0],
            made=tuple(made),
            made_at=tuple(made.index(s) if s in made else -1 for s in sites),
        )

    def _travelled(self, parameter: torch.Tensor, moved: dict[int, int]) -> bool:
        if self.recorder.tensors.find(parameter) in self.wrapped:
            return True
        return parameter.grad is not None and parameter.grad.data_ptr() in moved

    def _made(self, parameter: torch.Tensor) -> Site:
        """Where the module was made that owns a parameter."""
        number = self.recorder.tensors.find(parameter)
        return self.session.leaf_sites.get(number, NOWHERE) if number is not None else NOWHERE

    # ------------------------------------------------------------------ batches

    def sampler_made(self, before: Any, result: Any, args: Any, kwargs: Any) -> None:
        self.samplers[args[0]] = _site.here(1)

    def begins(self, before: Any, iterator: Any, args: Any, kwargs: Any) -> None:
        loader = args[0]
        sampler = getattr(loader.batch_sampler, "sampler", None)
        if sampler is None:  # a sampler's truth is its length, and that may be anything
            sampler = loader.sampler
        shards = isinstance(sampler, DistributedSampler)
        rank, world = place()
        number = self.recorder.objects.number(loader)
        if shards and sampler.num_replicas > 1:
            self.sharded = True
            if sampler.shuffle and type(sampler).__iter__ is DistributedSampler.__iter__:
                if self.often.worth_telling(number, first=8):
                    self.recorder.emit(
                        SamplerPass,
                        _site.here(1),
                        rank=rank if world > 1 else sampler.rank,
                        loader=number,
                        replicas=sampler.num_replicas,
                        order=(int(sampler.epoch), int(sampler.seed)),
                        made_site=self.samplers.get(sampler, NOWHERE),
                        shard=int(sampler.rank),
                    )
        if world < 2 or not isinstance(iterator, _BaseDataLoaderIter):
            return
        order = self.loaders.setdefault(loader, len(self.loaders))
        count = self.passes[order] = self.passes.get(order, -1) + 1
        if count < PASSES:
            self.iterators[iterator] = [order, count, 0, shards, _site.here(1)]

    def came(self, before: Any, batch: Any, args: Any, kwargs: Any) -> None:
        seen = self.iterators[args[0]]
        order, count, index, shards, site = seen
        seen[2] += 1
        self.settle()
        if index >= BATCHES:
            del self.iterators[args[0]]
            return
        found = digest(flat_tensors(batch))
        if found:
            self.waiting = [order, count, index, shards, site, found, self.recorder.backwards]

    def settle(self) -> None:
        """Tell the last batch, now that it shows whether it was trained on."""
        if self.waiting is None:
            return
        (order, count, index, shards, site, found, backwards), self.waiting = self.waiting, None
        rank, world = place()
        self.recorder.emit(
            RankBatch,
            site,
            rank=rank,
            world=world,
            loader=order,
            epoch=count,
            index=index,
            digest=found,
            trained=self.recorder.backwards > backwards,
            distributed=shards,
        )


def install(session: Session) -> Undo:
    """Watch collectives, DDP, samplers, loaders and steps."""
    probe = _Probe(session)
    recorder = session.recorder
    session.at_backward.append(probe.before_backward)
    session.at_step.append(probe.before_step)
    session.at_end.append(probe.settle)

    def skip(args: Any, kwargs: Any) -> bool:
        return args[0] not in probe.iterators

    def undo() -> None:
        session.at_step.remove(probe.before_step)
        session.at_backward.remove(probe.before_backward)

    undos = [
        undo,
        observe(recorder, DistributedSampler, "__init__", after=probe.sampler_made),
        observe(recorder, DistributedDataParallel, "__init__", after=probe.ddp_made),
        observe(recorder, DataLoader, "__iter__", after=probe.begins),
        observe(recorder, _BaseDataLoaderIter, "__next__", after=probe.came, skip=skip),
    ]
    if distributed.is_available():
        undos += [observe(recorder, distributed, name, after=probe.moved) for name in _MOVES]
    return together(*undos)
