"""Obeys a plan: runs, records and reverses the blocks of one step, and leaves everything as a plain backward would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gradledger.core.errors import SweepError
from gradledger.sweep import _vjp
from gradledger.sweep._facts import settle_shared
from gradledger.sweep._forward import Cotangents, Forward
from gradledger.sweep._gradients import Gradients
from gradledger.sweep._halves import WeightHalf, WholeAgain, weight_half
from gradledger.sweep._tape import Recorded


class Walk(Forward):
    """One step in motion: forward to the loss, then the reverse walk.  See `Forward` for what it is made of."""

    def begin(self, roots: Sequence[Tensor], seeds: Cotangents) -> None:
        """Say where the walk starts: the differentiable losses and the seed cotangent of each."""
        facts = self.facts[self.loss_at]
        ends, self._ends = self._ends, ()
        self.tape[self.loss_at] = Recorded(list(roots), ends)
        if not facts.looked:
            facts.single = len(roots) == 1 and roots[0].numel() == 1
            self._learn(self.loss_at, roots, ends)
        elif facts.capture:
            self._any_new(self.loss_at, roots, ends)
        if self._looking:
            settle_shared(self.facts)
        self.cotangents, self._made = seeds, False
        self.tell_begins(roots)
        self._current = None

    def parameters(self) -> list[Tensor]:
        """Every leaf that the walk may give a gradient, each once."""
        return list({id(p): p for f in self.facts for p in f.parameters}.values())

    def reverse(self, gradients: Gradients) -> Iterator[int]:
        """Walk back; yields each block, the loss first, before its product.

        The caller calls `product`, or leaves it to the walk.  A caller that stops early must call `abandon`.
        """
        self.gradients = gradients
        autocast = bool(self.ambient.autocast)
        for action in self._after:
            if self.on_action is not None:
                self.on_action(action)
            if action.kind != "reverse":
                with torch.enable_grad(), self.ambient.forward() if autocast else nullcontext():
                    self._do(action)
                continue
            i = action.block
            self._current = None
            if i in self._tapes_out:
                self._tapes_out.pop(i).land()
            yield i  # under no mode of ours: the caller's code runs here
            if i in self.tape:
                with torch.enable_grad(), self.reversing():
                    self.product(i)
            self._made = True
            if self.on_cotangent is not None:
                self.on_cotangent(i, self.cotangents)
        self._into_the_data()

    def reversing(self) -> AbstractContextManager[Any]:
        """What a product runs under: no autocast."""
        return self.ambient.reverse() if self.ambient.autocast else nullcontext()

    def product(self, i: int, *, tell: bool = False) -> list[tuple[Tensor, Tensor]]:
        """The vector-Jacobian product of block i: parameter gradients go in, the cotangent moves one boundary back.

        `tell`: return what it gave each parameter.
        """
        roots, d_out, leaves = self._open_product(i, keep=False)
        facts = self.facts[i]
        if not roots and not any(id(p) in self._partial for p in facts.shared):
            self.cotangents = (None,) * len(leaves)
        elif facts.capture or tell or i in self._emptied or self.gradients.only is not None:
            return self._captured(i, roots, d_out, leaves, last=not tell)
        else:
            if self._made:
                _vjp.hand_over(roots, d_out)
            self.cotangents = ()
            _vjp.accumulate(tuple(roots), tuple(d_out))
            self.cotangents = tuple(leaf.grad for leaf in leaves)
            for leaf in leaves:
                leaf.grad = None
        return []

    def product_to_repeat(self, i: int) -> tuple[tuple[_vjp.Root, ...], tuple[Tensor, ...]]:
        """The whole product with the graph kept; returns the roots and their cotangents, to take it once more.

        Nothing to take it from when the graph can be walked only once (a compiled block that reuses its memory).
        """
        roots, d_out, leaves = self._open_product(i, keep=False)
        with self.reversing():
            if not roots and not any(id(p) in self._partial for p in self.facts[i].shared):
                self.cotangents = (None,) * len(leaves)
                return (), ()
            own = tuple(roots), tuple(d_out)
            try:
                self._captured(i, list(roots), list(d_out), leaves, keep=True)
            except RuntimeError as error:
                if not _only_once(error):
                    raise
                self._captured(i, roots, d_out, leaves)
                return (), ()
        return own

    def product_of_input(self, i: int) -> WeightHalf | WholeAgain:
        """Only the input half of block i's product; returns the other half.

        Nothing is left for the other half when the graph can be walked only once: then both are taken at once.
        """
        roots, d_out, leaves = self._open_product(i, keep=False)
        facts = self.facts[i]
        with self.reversing():
            if not facts.capture:
                self._any_new(i, roots, leaves)
            whole = WholeAgain(tuple(roots), tuple(d_out), facts.parameters)
            if not (roots and leaves):
                self.cotangents = (None,) * len(leaves)
                return whole
            half = weight_half(roots, leaves, facts.parameters)
            try:
                self.cotangents = tuple(_vjp.capture(tuple(roots), tuple(d_out), leaves, keep=True))
            except RuntimeError as error:
                if not _only_once(error):
                    raise
                self._captured(i, roots, d_out, leaves)
                return WholeAgain((), (), ())
        return whole if half is None else half

    def _open_product(self, i: int, *, keep: bool) -> tuple[list[_vjp.Root], list[Tensor], tuple[Tensor, ...]]:
        recorded = self.tape[i] if keep else self.tape.pop(i)
        roots: list[_vjp.Root] = []
        d_out: list[Tensor] = []
        for root, d in zip(recorded.roots, self.cotangents, strict=True):
            if d is not None:
                roots.append(root)
                d_out.append(d)
        return roots, d_out, recorded.leaves

    def _captured(
        self,
        i: int,
        roots: list[_vjp.Root],
        d_out: list[Tensor],
        leaves: tuple[Tensor, ...],
        *,
        keep: bool = False,
        last: bool = False,
    ) -> list[tuple[Tensor, Tensor]]:
        """`last`: nobody reads `d_out` after this product."""
        facts = self.facts[i]
        if self.reduction is not None and self.reduction.by_accumulation:
            self.cotangents = tuple(_vjp.accumulate_and_observe(tuple(roots), tuple(d_out), leaves))
            return []
        if not facts.capture:  # not asked for when it was recorded
            self._any_new(i, roots, leaves)
        for parameter in facts.shared:
            part = self._partial.get(id(parameter))
            if part is not None:
                roots.append(parameter)
                d_out.append(part)
            if parameter._backward_hooks:
                raise SweepError(
                    got="a hook on a parameter that several blocks share: it would run once for each block",
                    wanted="the hook run once, on the whole gradient",
                    where=f"block {self.blocks[i].name}",
                    next_step="use register_post_accumulate_grad_hook, or Sweep(engine='autograd')",
                )
        parameters = facts.parameters
        if last and self._made:
            _vjp.hand_over(roots, d_out)
        self.cotangents = ()
        result = _vjp.capture(tuple(roots), tuple(d_out), leaves + parameters, keep=keep)
        self.cotangents = tuple(result[: len(leaves)])
        if not facts.shared and all(
            d is not None and i not in self._emptied and d.stride() == leaf.stride() and d.dtype == leaf.dtype
            for d, leaf in zip(self.cotangents, leaves, strict=True)
        ):
            facts.capture = len(leaves) > 1
        taken = (*d_out, *self.cotangents)
        shared = {id(p) for p in facts.shared}
        given: list[tuple[Tensor, Tensor]] = []
        for parameter, gradient in zip(parameters, result[len(leaves) :], strict=True):
            if gradient is None:
                continue
            given.append((parameter, gradient))
            if id(parameter) in shared and id(parameter) not in facts.last_use:
                self._partial[id(parameter)] = gradient
                continue
            self._partial.pop(id(parameter), None)
            self.gradients.add(parameter, gradient, taken)
        return given

    def _into_the_data(self) -> None:
        """Data that itself requires a gradient gets it, through whatever graph stands above it."""
        pairs = [(t, d) for t, d in zip(self._outer, self.cotangents, strict=True) if d is not None]
        if pairs and self.into_data:
            roots, d_out = tuple(t for t, _ in pairs), tuple(d for _, d in pairs)
            if self.gradients.only is None:
                _vjp.accumulate(roots, d_out)
            elif self.gradients.only:
                _vjp.accumulate_into(roots, d_out, tuple(self.gradients.only.values()), keep=False)
        self.cotangents = ()


def _only_once(error: RuntimeError) -> bool:
    """Whether a graph refused to be kept: compiled backward passes write into what they saved ("donated buffers")."""
    return "donated buffer" in str(error)


__all__ = ["Cotangents", "Walk"]
