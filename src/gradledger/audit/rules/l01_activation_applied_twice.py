"""# A softmax or sigmoid that does not fit the loss

## What it is
`cross_entropy` takes logits and applies log-softmax itself; a network that ends in softmax is squashed twice.  The same
holds for a sigmoid before `binary_cross_entropy_with_logits`.  `nll_loss` and `kl_div` take *logarithms* of
probabilities.  And a softmax over the wrong axis (the batch, the queries of an attention) gives weights that do not sum
to one where they are used as such.

## Why it matters
The program runs, and the loss even falls.  Squashed twice, five classes can never get below a loss of 0.9, gradients
are small, and confident predictions are impossible.  Probabilities in place of their logarithms turn a divergence into
something else, often negative.

## How it is found
In watched iterations, the input of each such loss is followed back through changes of shape and precision to the
activation that made it.  Only pairs that a reverse pass walks count.  For attention, the axis of the softmax is
compared with the axis that the product with the values sums over, when the scores are a square product of two
activations.  Weights [B, K] that are normalised over the batch, by a softmax or by hand (`e / e.sum(0, keepdim=True)`
of an exponential), and summed over K with values of the same rows are reported, too.

## Near misses
- `nll_loss` of a log-softmax, `binary_cross_entropy` of a sigmoid: made for each other.
- Distillation with a temperature: softmax of the teacher as *target*, log-softmax of the student as input.
- `softmax(...).log()` before `nll_loss` or `kl_div`; a softmax that feeds another layer, as in attention or a gate.
- A softmax over slots, clusters or experts that is summed over something else on purpose.

## Fix
Give the loss what it asks for: drop the activation at the end of the network (and apply it where probabilities are
read), or use the loss that takes probabilities.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from gradledger.audit._code import parsed, walk
from gradledger.audit._phrases import distinct
from gradledger.audit._source import source_line
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import ActivationFed, Event
from gradledger.core.site import Site

RULE = Rule(
    "L1",
    "activation-applied-twice",
    "loss conventions",
    "A loss is given the result of an activation that it applies itself, or probabilities where it takes logarithms.",
)
LISTENS = (ActivationFed,)
NEEDS_DETAIL = True
_LAYERS = {"softmax": "Softmax", "log_softmax": "LogSoftmax", "sigmoid": "Sigmoid"}
_APPLIES = {
    "cross_entropy": "log-softmax",
    "binary_cross_entropy_with_logits": "a sigmoid",
    "softmax": "softmax",
    "log_softmax": "log-softmax",
    "logsumexp": "the normalisation of logits",
    "sigmoid": "a sigmoid",
}


@dataclass(slots=True)
class State:
    """The first event of each pair of lines, and how many there were."""

    first: dict[tuple[tuple[str, int], tuple[str, int]], ActivationFed] = field(default_factory=dict)
    seen: dict[tuple[tuple[str, int], tuple[str, int]], int] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if isinstance(event, ActivationFed):
        key = (event.maker_site.key(), event.site.key())
        if key in state.first or len(state.first) < 256:
            state.first.setdefault(key, event)
            state.seen[key] = state.seen.get(key, 0) + event.weight


def finish(state: State, world: World) -> list[Finding]:
    return [_finding(event, state.seen[key], world) for key, event in state.first.items()]


def _finding(event: ActivationFed, seen: int, world: World) -> Finding:
    made = _layer(event, world)
    site = made[0] if made else event.maker_site
    if not site.file:
        site = event.site
    message, fix = _words(event)
    harmless = event.op == "cross_entropy" and event.maker == "log_softmax"
    return Finding(
        "L1",
        "warning" if harmless else "error",
        site,
        message,
        fix,
        related=distinct(site, (event.site, event.maker_site, *made)),
        evidence={
            "loss": event.op,
            "activation": event.maker,
            "shape": list(event.shape),
            "axis": event.axis,
            "used_axis": event.used_axis,
        },
        count=seen,
        iteration=event.iteration,
    )


def _words(event: ActivationFed) -> tuple[str, str]:
    op, maker, line = event.op, event.maker, event.site.line
    if event.used_axis is not None and event.axis is not None:
        shape = list(event.shape)
        if op == "categorical":
            return (
                (
                    f"`{maker}` of {shape} is taken over axis {event.axis}, the batch, and line {line} makes a "
                    f"distribution over axis {event.used_axis} of it: each row's probabilities depend on the others."
                ),
                f"take the {maker} over the actions: dim={event.used_axis}",
            )
        if op in ("nll_loss", "gather", "getitem"):
            return (
                (
                    f"`{maker}` of {shape} is taken over axis {event.axis}, but line {line} picks along axis "
                    f"{event.used_axis}: each row's probabilities do not sum to one."
                ),
                f"take the {maker} over the classes: dim={event.used_axis}",
            )
        if op == "sum":
            return (
                (
                    f"`{maker}` of {shape} is taken over axis {event.axis}, the batch, but line {line} sums over axis "
                    f"{event.used_axis} with it: the weights of a row do not sum to one, and depend on the other rows."
                ),
                f"take the {maker} over what is summed: dim={event.used_axis}",
            )
        return (
            (
                f"attention weights {shape} are normalised over axis {event.axis}, but line {line} sums over "
                f"axis {event.used_axis}: the weights of one query do not sum to one."
            ),
            f"normalise over the keys: dim={event.used_axis - len(event.shape)}",
        )
    if op == "kl_div" and event.operand == "target":
        return (
            (
                f"the target of `kl_div` on line {line} is the result of `{maker}`, which does not agree with "
                f"its `log_target`."
            ),
            "log_target=True for logarithms, log_target=False for probabilities",
        )
    if op in ("kl_div", "nll_loss"):
        return (
            (
                f"`{op}` on line {line} takes logarithms of probabilities and is given the result of "
                f"`{maker}`, which are probabilities."
            ),
            "use log_softmax here" if maker == "softmax" else "use logsigmoid here",
        )
    if op == "cross_entropy" and maker == "log_softmax":
        return (
            (
                f"`cross_entropy` on line {line} applies log-softmax to the result of a log-softmax: the value "
                f"is the same, the work is done twice."
            ),
            "use nll_loss, or drop the log_softmax",
        )
    return (
        (
            f"`{op}` on line {line} applies {_APPLIES.get(op, 'an activation')} to what `{maker}` has squashed "
            f"already: outputs lie in [0, 1], so the loss cannot get near its minimum."
        ),
        f"drop the {maker} here and give `{op}` the logits",
    )


def _layer(event: ActivationFed, world: World) -> tuple[Site, ...]:
    """Lines that built layers of this kind, when the line that ran it does not name it (it is inside a Sequential)."""
    layer = _LAYERS[event.maker]
    if re.search(rf"\b{event.maker}\b|\b{layer}\b", world.source(event.maker_site)):
        return ()
    made = [m.site for m in world.modules.values() if m.builtin and m.short_cls == layer and m.site.file]
    return distinct(event.site, [_named(site, layer) for site in made])[:4]


def _named(site: Site, layer: str) -> Site:
    """The line of the statement at `site` that names the layer last (the end of a Sequential over several lines)."""
    tree = parsed(site.file)
    covering = [n for n in walk(tree) if isinstance(n, ast.stmt) and _covers(n, site.line)] if tree else []
    if not covering:
        return site
    inner = max(covering, key=lambda n: n.lineno)
    lines = range(site.line, (inner.end_lineno or site.line) + 1)
    named = [n for n in lines if re.search(rf"\b{layer}\b", source_line(site.file, n))]
    return Site(site.file, named[-1], site.function) if named else site


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
