"""Arms beside each other: every quantity summarised over seeds, and two arms on the seeds that both have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradledger.evidence.errors import StatisticsError
from gradledger.evidence.hypothesis import differences
from gradledger.evidence.record import Attempt
from gradledger.evidence.stats import Paired, Summary, paired, summarise


@dataclass(frozen=True)
class Column:
    """One quantity of one arm. left_out: rng_seed -> why its value is in no mean; it stays in the table."""

    arm: str
    quantity: str
    values: dict[int, float]
    left_out: dict[int, str]
    summary: Summary | None


@dataclass(frozen=True)
class Comparison:
    """Two arms in one quantity. differs: the settings in which they differ; isolated: exactly one."""

    first: str
    second: str
    quantity: str
    differs: tuple[str, ...]
    isolated: bool
    paired: Paired


def columns(attempts: Mapping[str, Attempt]) -> list[Column]:
    """Every quantity that is a number in some trial, by arm, in the order in which arms and quantities came."""
    names: dict[tuple[str, str], None] = {}
    for one in attempts.values():
        for name, value in (one.quantities or {}).items():
            if _is_number(value):
                names[one.trial.arm, name] = None
    return [_column(arm, name, attempts) for arm, name in names]


def compare(attempts: Mapping[str, Attempt], first: str, second: str, quantity: str) -> Comparison:
    """Differences first - second on the seeds that both have.

    Raises:
        StatisticsError: no such arm, or no seed for which both recorded a finite number.
    """
    configs = {one.trial.arm: one.trial.config for one in attempts.values()}
    for arm in (first, second):
        if arm not in configs:
            raise StatisticsError(
                got=f"the arm {arm!r}",
                wanted=f"one of {', '.join(configs)}" if configs else "a folder with trials, and this one has none",
                where="compare",
                next_step="name two arms" if configs else "name the --out folder of a run",
            )
    one, other = _column(first, quantity, attempts), _column(second, quantity, attempts)
    found = paired(one.values, other.values)
    differs = tuple(differences(configs[first], configs[second]))
    return Comparison(first, second, quantity, differs, len(differs) == 1, found)


def _column(arm: str, quantity: str, attempts: Mapping[str, Attempt]) -> Column:
    values: dict[int, float] = {}
    left_out: dict[int, str] = {}
    for one in attempts.values():
        if one.trial.arm != arm:
            continue
        seed = one.trial.rng_seed
        value: Any = (one.quantities or {}).get(quantity)
        if one.status != "finished":
            left_out[seed] = f"{one.status}{': ' + one.error if one.error else ''}"
        elif not _is_number(value):
            left_out[seed] = "not recorded as a number"
        elif not math.isfinite(float(value)):
            left_out[seed] = f"not finite: {value}"
        else:
            values[seed] = float(value)
    ordered = dict(sorted(values.items()))
    return Column(arm, quantity, ordered, left_out, summarise(list(ordered.values())) if ordered else None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
