"""What the oracle found: the gradient that a step consumed, explained by gradients recomputed on copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradledger.core.events._base import Event
from gradledger.core.site import NOWHERE, Site


@dataclass(frozen=True, slots=True)
class Share:
    """One summand of a consumed gradient: `coefficient` times the gradient of a term (without its written factor).

    `kind`: "term" (an additive term of a loss walked since the last step that used it), "constant" (such a term
    without graph: its gradient is zero), "earlier" (the whole gradient of a reverse pass that a step had used before;
    with `op` "stood" what stood in `.grad` before the first pass that was recomputed, several passes together) or
    "stood" (the same, when no step had used it).  `op`, `site`: what made the term; for "earlier" the line of the
    pass.  `backwards`: the reverse passes whose share this is, and `more` further ones that the ledger only counted.
    `written`: the coefficient that the ledger expects: the factors written in the loss, once for each time that the
    term stands there and its loss was walked.  `bound`: the coefficient is known up to this much.
    `tied`: shares of one number (above 0) have proportional gradients, so only their sum is known.
    """

    kind: str
    op: str
    site: Site
    backwards: tuple[int, ...]
    written: float
    coefficient: float
    bound: float = 0.0
    tied: int = 0
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleExplained(Event):
    """A step of `optimizer` in a sampled iteration, for those of its `tensors` whose gradients have one history.

    `fit`: "written" (the consumed gradient is the sum of the shares as the ledger expects it), "scaled" (that sum
    times `scale`: clipping, a scaler, a division by the program), "free" (other coefficients, found by least squares)
    or "none" (no combination of the shares gives it: `shares` then hold the best one).  `residual`: what is left,
    relative to the summands, and `tolerance`: up to which that counts as nothing.  `site`: the line of the step."""

    KIND: ClassVar[str] = "oracle_explained"
    optimizer: int
    tensors: tuple[int, ...]
    fit: str
    shares: tuple[Share, ...]
    scale: float
    residual: float
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleAbstained(Event):
    """A step in a sampled iteration (at `site`) whose gradients could not be recomputed exactly.

    `optimizer`: 0 when it is not known (a step with a closure).  `reason`: "random", "in-place", "custom function",
    "unseen", "argument", "subclass", "autocast", "precision", "too large", "assigned", "closure", "ranks", "profiler",
    "not recorded", "differs" or "failed"; `what`: the same in words; `where`: the line that prevents it, if any."""

    KIND: ClassVar[str] = "oracle_abstained"
    optimizer: int
    reason: str
    what: str
    where: Site = NOWHERE
