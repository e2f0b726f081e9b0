"""The front end: a budget as people write it, and the planner that keeps it.

Bytes (a whole number), "25%" of what keeping every tape needs, "512MB" (decimal) or "1.5GiB" (binary), "min" for the
smallest that can be kept, "keep" for no recompute at all.
"""

from __future__ import annotations

import math
import re
from typing import Any

from gradledger.core.errors import UsageError
from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Plan
from gradledger.sweep._planners import BudgetError, Planner, find, infeasible
from gradledger.sweep._simulate import simulate
from gradledger.sweep.plans.keep_all import plan as keep_all
from gradledger.sweep.plans.optimal import least_plan

_TEXT = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(%|[a-zA-Z]*)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_budget(budget: int | str, *, keep_peak: int) -> int | None:
    """Bytes that a budget means; None for "keep" and for "min", which are no number.

    Args:
        budget: as the module says.
        keep_peak: bytes that "100%" stands for.

    Raises BudgetError for text that cannot be read and for a budget of nothing.

    Example:
        >>> parse_budget("25%", keep_peak=1000), parse_budget("1.5KiB", keep_peak=1000)
        (250, 1536)
    """
    if isinstance(budget, str):
        if budget.strip() in ("min", "keep"):
            return None
        number = _read(budget.strip(), keep_peak)
    else:
        number = budget if isinstance(budget, int) and not isinstance(budget, bool) else None
    if number is None or number <= 0:
        raise BudgetError(
            got=f"budget={budget!r}",
            wanted='bytes above zero (a whole number), or a text such as "25%", "512MB", "1.5GiB", "min" or "keep"',
            where="planner budget",
            next_step='write the number and its unit together, as in "25%" or "1.5GiB"',
        )
    return number


def _read(text: str, keep_peak: int) -> int | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    if unit == "%":
        # a percentage stands with its number
        return None if " " in text else math.floor(float(number) * keep_peak / 100)
    letters = unit.lower()
    binary = letters.endswith("ib")
    prefix = letters.removesuffix("ib") if binary else letters.removesuffix("b")
    if prefix not in _POWERS or (not letters and "." in text) or (binary and not prefix) or (letters == prefix != ""):
        return None
    scale: int = (1024 if binary else 1000) ** _POWERS[prefix]
    return math.floor(float(number) * scale)


def plan(
    costs: Costs,
    *,
    budget: int | str | None = None,
    plain_peak: int | None = None,
    reserve: int = 0,
    planner: str = "optimal",
    **options: Any,
) -> Plan:
    """The plan of a planner under a budget as people write it.

    Args:
        costs: of n blocks, the loss last.
        budget: as the module says; None is "keep".
        plain_peak: bytes a plain step was measured to need; percentages are of it.  Default: the simulated peak of
            keeping every tape.
        reserve: bytes of the budget that are left alone, for what the costs do not show.
        planner: by name.
        options: handed to the planner.

    Raises BudgetError for a text that cannot be read, and with the smallest feasible number where no plan fits.
    """
    if planner == "budget":
        raise UsageError(
            got="planner='budget'",
            wanted="a planner below it",
            where="planner budget",
            next_step="leave it out for optimal",
        )
    if isinstance(reserve, bool) or not isinstance(reserve, int) or reserve < 0:
        raise UsageError(
            got=f"reserve={reserve!r}",
            wanted="bytes, a whole number, 0 or more",
            where="planner budget",
            next_step="leave it out for 0",
        )
    below = find(planner)
    kept = keep_all(costs)
    if budget is None or (isinstance(budget, str) and budget.strip() == "keep"):
        return kept
    peak = simulate(kept, costs).peak if plain_peak is None else plain_peak
    number = parse_budget(budget, keep_peak=peak)
    if number is not None:
        try:
            return below.plan(costs, budget=max(1, number - reserve), **options)
        except BudgetError as error:
            if error.smallest is None:
                raise
            raise infeasible(number, error.smallest + reserve, name=planner) from None
    if planner == "optimal":
        return least_plan(costs, **options)
    try:
        return below.plan(costs, budget=1, **options)
    except BudgetError as error:  # it says what the smallest is
        if error.smallest is None:
            raise
        return below.plan(costs, budget=error.smallest, **options)


PLANNER = Planner(name="budget", summary='reads budgets such as "25%", "512MB", "min", and plans for them', plan=plan)
