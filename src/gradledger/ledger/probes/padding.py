"""Padded positions of sequences: do they reach a walked loss, and over what is a masked loss averaged?

Where the padding lies is read from values (see `_padding`); whether it counts is read from the gradient that each
position of the comparison receives in the program's own reverse pass, which sees every way of masking alike.  Only the
first watched iterations are looked at, and a program without padding is left alone after a few of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.utils import rnn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradledger.core.events import PaddingAveraged, PaddingCounted
from gradledger.core.site import NOWHERE, Site
from gradledger.ledger._counts import CLASS_LOSSES, ignored_index
from gradledger.ledger._identity import Ref
from gradledger.ledger._masked import Masked
from gradledger.ledger._naming import LOSSES, VIEWS
from gradledger.ledger._often import Often
from gradledger.ledger._operations import Op, Value
from gradledger.ledger._padding import (
    LEAST_ROWS,
    Lengths,
    array_of,
    constant_beyond,
    lengths_of,
    lengths_of_mask,
    tensors_of_batch,
)
from gradledger.ledger._patch import Undo, observe, together
from gradledger.ledger._session import Session

ITERATIONS = 60  # watched ones that are looked at
PATIENCE = 8  # iterations without any padding after which the probe rests
LOOKS = 48  # tensors of one iteration
_PICKS = frozenset({"gather", "take_along_dim"})
_CLASSES = _PICKS | CLASS_LOSSES


@dataclass(frozen=True, slots=True)
class _Witness:
    """Something that says where the padding is.  `told_by`: see `PaddingCounted`; `same`: digest of its values;
    `token`: of the tensor."""

    lengths: Lengths
    told_by: str
    same: int
    tensor: Ref[torch.Tensor] | None = None
    token: int = -1

    @property
    def stands(self) -> bool:
        """A mask that was only there to build the target says nothing about the loss: it is gone by then."""
        return self.told_by != "mask" or self.tensor is None or self.tensor() is not None


class _Probe:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = session.recorder
        self.trace = session.trace
        self.iteration = -1
        self.iterations = self.barren = self.looks = 0
        self.looked: set[int] = set()
        self.entered: set[int] = set()  # graph-free tensors that a value with a graph was made from
        self.compared: Counter[tuple[str, int]] = Counter()  # comparisons looked at, by line
        self.found: Counter[tuple[str, int]] = Counter()  # of these, in which padding counted
        self.pieces: dict[int, int] = {}  # views of graph-free tensors, and what they are views of
        self.witnesses: list[_Witness] = []
        self.counts: list[tuple[int, ...]] = []
        self.often = Often()
        self.masked = Masked(self.trace)
        self.hooks: list[Any] = []

    @property
    def resting(self) -> bool:
        return self.iterations > ITERATIONS or self.barren >= PATIENCE or not self.trace.active

    # ------------------------------------------------------------------ what says where the padding is

    def _begin(self) -> None:
        if self.recorder.iteration == self.iteration:
            return
        self.iteration = self.recorder.iteration
        self.iterations += 1
        self.barren = 0 if self.witnesses else self.barren + 1
        self.looks = 0
        self.witnesses.clear()
        self.counts.clear()
        self.looked.clear()
        self.entered.clear()
        self.pieces.clear()
        self.masked.clear()
        self._unhook()

    def look(self, tensor: torch.Tensor, told_by: str = "input") -> None:
        """Take a graph-free tensor for a witness, if it is one."""
        if tensor.requires_grad or tensor.dim() == 0 or tensor.shape[0] < 2 or isinstance(tensor, torch.nn.Parameter):
            return
        token = self.trace.token_of(tensor)
        values = array_of(tensor) if token not in self.looked else None
        if values is None:
            return
        self.looked.add(token)
        if values.ndim == 1:
            if values.dtype.kind in "iu" and len(values) >= 4:
                self.counts.append(tuple(int(v) for v in values))
            return
        for turned in (values, values.swapaxes(0, 1)):
            for found, how in (
                (lengths_of_mask(turned, True), "mask"),
                (lengths_of_mask(turned, False), "mask"),
                (lengths_of(turned), told_by),
            ):
                if found is not None:
                    self.witnesses.append(_Witness(found, how, hash(turned.tobytes()), Ref(tensor), token))

    # ------------------------------------------------------------------ operations

    def made(self, op: Op, results: list[Value], args: Any, outs: list[torch.Tensor]) -> None:
        if self.trace.reversing or self.resting:
            return
        self._begin()
        if self.looks < LOOKS and op.name != "setitem":  # which fills a batch row by row
            for tensor in (*args, *outs):
                if type(tensor) is torch.Tensor and tensor.dim() > 1 and not tensor.requires_grad:
                    self.looks += 1
                    self.look(tensor)
        self.masked.follow(op, results, args)
        if len(op.ins) == 2 and len(args) >= 2 and results[0].graph and (op.name in LOSSES or op.name == "sub"):
            self._compared(op, args, outs[0])
        elif op.name in _PICKS and len(op.ins) == 2 and results[0].graph:
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            # one log-probability a position, picked by its class: a cross entropy by hand
            if len(tensors) == 2 and tensors[1].dim() > 1 and tensors[1].shape[-1] == 1:
                self._compared(op, tensors, outs[0])
        elif op.name == "ctc_loss" and len(args) >= 4 and results[0].graph:
            self._aligned(op, args, outs[0])
        if op.name in VIEWS and op.ins and not results[0].graph:
            self.pieces.update((result.token, op.ins[0]) for result in results)
        if results and results[0].graph and op.name not in LOSSES:
            for token in op.ins:
                self.entered.add(token)
                while (token := self.pieces.get(token, token)) not in self.entered:  # turned before it is given
                    self.entered.add(token)

    def _compared(self, op: Op, args: Any, out: torch.Tensor) -> None:
        left, right = self.trace.values.get(op.ins[0]), self.trace.values.get(op.ins[1])
        if left is None or right is None or left.graph == right.graph:
            return
        target, tensor = (right, args[1]) if left.graph else (left, args[0])
        prediction = args[0] if left.graph else args[1]
        if op.name not in _CLASSES and tuple(tensor.shape) != tuple(prediction.shape):
            return
        values = array_of(tensor)
        if values is None:
            return
        values = self._unfolded(target, values)
        self.compared[op.site.key()] += 1
        for turned, swapped in ((values, False), (values.swapaxes(0, 1) if values.ndim > 1 else None, True)):
            witness = self._witness(turned) if turned is not None else None
            if witness is None:
                continue
            if op.name in CLASS_LOSSES and _leaves_out(turned, witness.lengths, ignored_index(op)):
                return
            self._follow(op, witness, swapped, values.shape, out, prediction, tensor)
            return

    def _unfolded(self, value: Value, values: Any) -> Any:
        """The target in the shape that it had before it was flattened."""
        for _ in range(6):
            op = value.op
            if op is None or op.name not in VIEWS or not op.ins:
                break
            below = self.trace.values.get(op.ins[0])
            if below is None or np.prod(below.shape) != values.size or len(below.shape) < len(value.shape):
                break
            if op.name in ("view", "reshape", "flatten", "ravel", "contiguous", "squeeze", "unflatten", "view_as"):
                value = below
                values = values.reshape(below.shape)
            else:
                break
        return values

    def _witness(self, values: Any) -> _Witness | None:
        """What says where this target is padded; None when nothing does."""
        if values.ndim < 2:
            return None
        own = lengths_of(values)
        same = hash(values.tobytes())
        for witness in (w for w in self.witnesses if w.stands):
            lengths = witness.lengths
            if own is not None and own.rows in self.counts:
                return _Witness(own, "lengths", same)
            if witness.told_by == "input" and (witness.same == same or witness.token not in self.entered):
                continue  # the very values that are the target, or what no module was given
            if any(_one_number(values, found) for found in (own, lengths) if found is not None):
                continue  # the same at all content: where that is is what is learned, as by a stop gate
            if own is not None and own.agrees(lengths):
                return _Witness(own, witness.told_by, same)
            if constant_beyond(values, lengths):
                return witness
            if witness.told_by == "mask" and values.shape[1] == lengths.steps - 1 and min(lengths.rows) > 1:
                later = lengths.shifted()
                if constant_beyond(values, later):
                    return _Witness(later, "mask", same)
        return None

    def _aligned(self, op: Op, args: Any, out: torch.Tensor) -> None:
        """A loss over alignments is told how many frames of each row there are: all, though the rows are padded?"""
        frames, node = len(args[0]), out.grad_fn
        told = args[2].reshape(-1).tolist() if isinstance(args[2], torch.Tensor) else list(args[2])
        if node is None or len(told) < LEAST_ROWS or set(told) != {frames} or len(self.hooks) > 16:
            return
        self.compared[op.site.key()] += 1
        for witness in self.witnesses:
            lengths = witness.lengths
            known = witness.told_by == "pad_sequence" or lengths.rows in self.counts
            if known and not lengths.left and len(lengths.rows) == len(told) and lengths.steps >= frames:
                if not _are_blank(array_of(args[0]), lengths):
                    self.hooks.append(node.register_prehook(partial(self._walked, op.name, op.site, witness)))
                return

    def _walked(self, name: str, site: Site, witness: _Witness, gradients: Any) -> None:
        with self.recorder.guard("padding"):
            if self.recorder.enabled:
                self._tell(name, site, witness, witness.told_by)

    # ------------------------------------------------------------------ does it count?

    def _follow(
        self,
        op: Op,
        witness: _Witness,
        swapped: bool,
        shape: tuple[int, ...],
        out: torch.Tensor,
        prediction: torch.Tensor,
        target: torch.Tensor,
    ) -> None:
        node = out.grad_fn
        if node is None or len(self.hooks) > 16:
            return
        pad = witness.lengths.mask()
        pad = pad.T if swapped else pad
        if out.dim() == 0:
            if prediction.shape == target.shape and op.name not in _CLASSES:
                step = array_of(prediction), array_of(target)
                if step[0] is None or not (step[0] != step[1]).reshape((*pad.shape, -1))[pad].any():
                    return  # both are zero there
        elif out.numel() % pad.size or tuple(out.shape)[:1] not in ((pad.shape[0],), (pad.size,)):
            return
        number, site, name = out.output_nr, op.site, op.name

        def walked(gradients: Any) -> None:
            with self.recorder.guard("padding"):
                given = gradients[number] if len(gradients) > number else None
                if self.recorder.enabled and given is not None:
                    self._counts(name, site, witness, pad, array_of(given))

        self.hooks.append(node.register_prehook(walked))

    def _counts(self, name: str, site: Site, witness: _Witness, pad: Any, gradient: Any) -> None:
        if gradient is None:
            return
        pulled: float | None = None
        if gradient.ndim:
            size = np.abs(gradient.astype(np.float64)).reshape((*pad.shape, -1)).sum(-1)
            if not size[pad].size:
                return
            if (size[pad] > 0).mean() < 0.5:
                self._one_more(name, site, witness, size if size.shape == witness.lengths.shape else size.T)
                return
            pulled = float(size[pad].sum() / size.sum())
        self._tell(name, site, witness, witness.told_by, pulled)

    def _one_more(self, name: str, site: Site, witness: _Witness, size: Any) -> None:
        """Of the padding just the first position of each row counts, where input and target are padded alike."""
        lengths = witness.lengths
        longer = replace(lengths, rows=tuple(min(n + 1, lengths.steps) for n in lengths.rows))
        first = lengths.mask() & ~longer.mask()
        if lengths.left or size.shape != first.shape or (size[longer.mask()] > 0).any() or not (size[first] > 0).all():
            return
        inputs = (w for w in self.witnesses if w.token in self.entered)
        alike = (w.lengths.rows == lengths.rows and w.same != witness.same for w in inputs)
        masks = [w for w in self.witnesses if w.told_by == "mask" and w.lengths.rows == longer.rows]
        if any(alike) and masks:
            made = self.trace.values.get(masks[0].token)
            where = made.op.site if made is not None and made.op is not None else NOWHERE
            self._tell(name, site, witness, "one more", share=float(first.mean()), mask_site=where)

    def _tell(
        self,
        name: str,
        site: Site,
        witness: _Witness,
        told_by: str,
        pulled: float | None = None,
        share: float | None = None,
        mask_site: Site = NOWHERE,
    ) -> None:
        self.found[site.key()] += 1
        if self.often.worth_telling(("counted", site.key())):
            self.recorder.emit(
                PaddingCounted,
                site,
                op=name,
                rows=len(witness.lengths.rows),
                steps=witness.lengths.steps,
                padded=round(witness.lengths.share if share is None else share, 4),
                pulled=None if pulled is None else round(pulled, 4),
                value=witness.lengths.value,
                told_by=told_by,
                found=self.found[site.key()],
                looked=self.compared[site.key()],
                mask_site=mask_site,
            )

    def root(self, root: torch.Tensor, site: Site) -> None:
        """A reverse pass from `root` is complete."""
        self._unhook()
        if self.resting:
            return
        found = self.masked.average(self.trace.token_of(root))
        if found is not None and self.often.worth_telling(("averaged", found.site.key()), first=6):
            self.recorder.emit(
                PaddingAveraged,
                found.site,
                op=found.op,
                rows=len(found.lengths.rows),
                steps=found.lengths.steps,
                kept=round(1.0 - found.lengths.share, 4),
                mask_site=found.mask_site,
            )

    def _unhook(self) -> None:
        while self.hooks:
            self.hooks.pop().remove()

    # ------------------------------------------------------------------ batches and helpers of torch

    def came(self, before: Any, batch: Any, args: Any, kwargs: Any) -> None:
        self._begin()
        for tensor in tensors_of_batch(batch):
            self.look(tensor)

    def padded(self, before: Any, result: Any, args: Any, kwargs: Any) -> None:
        if isinstance(result, torch.Tensor) and not result.requires_grad:
            self._begin()
            self.looked.discard(self.trace.token_of(result))
            self.look(result, "pad_sequence")


def _one_number(values: Any, lengths: Lengths) -> bool:
    """Whether all that is content in [B, T] is one number."""
    pad = lengths.mask()
    return bool(values.size == pad.size and np.ptp(values.reshape(pad.shape)[~pad].astype(np.float64)) == 0)


def _are_blank(log_probs: Any, lengths: Lengths) -> bool:
    """Whether the program made one symbol certain in all padded frames: they add nothing to an alignment."""
    if log_probs is None or log_probs.shape[:2] != (lengths.steps, len(lengths.rows)):
        return False
    return bool((log_probs.max(-1).T[lengths.mask()] > -1e-3).all())


def _leaves_out(target: Any, lengths: Lengths, ignored: float) -> bool:
    """Whether a loss leaves the padded positions out: the target holds there what it ignores."""
    mask = lengths.mask()
    return ignored == lengths.value or (target.shape == mask.shape and bool((target[mask] == ignored).all()))


def install(session: Session) -> Undo:
    """Listen to operations, batches, and reverse passes."""
    probe = _Probe(session)
    session.trace.listeners.made.append(probe.made)
    session.at_root.append(probe.root)

    def skip(args: Any, kwargs: Any) -> bool:
        return probe.resting

    def undo() -> None:
        session.trace.listeners.made.remove(probe.made)
        session.at_root.remove(probe.root)
        probe._unhook()

    watched: list[Callable[[], None]] = [
        observe(session.recorder, _BaseDataLoaderIter, "__next__", after=probe.came, skip=skip),
        observe(session.recorder, rnn, "pad_sequence", after=probe.padded, skip=skip),
    ]
    return together(undo, *watched)
