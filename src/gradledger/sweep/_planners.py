"""All planners, found by one scan of `sweep/plans/` for files that define `PLANNER`.  No torch.

Nothing registers itself: adding a planner is adding a file, and the contract tests take it up.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from gradledger.core.errors import UsageError
from gradledger.sweep import plans
from gradledger.sweep._action import PlanError
from gradledger.sweep._cost import Costs
from gradledger.sweep._plan import Plan
from gradledger.sweep._simulate import simulate


class BudgetError(PlanError):
    """A budget that cannot be read, or in which no plan fits.

    `smallest`: bytes, the smallest budget that the planner can keep, where it is known.
    """

    slug = "budget"

    def __init__(self, *, got: str, wanted: str, where: str, next_step: str, smallest: int | None = None) -> None:
        super().__init__(got=got, wanted=wanted, where=where, next_step=next_step)
        self.smallest = smallest


@dataclass(frozen=True, slots=True)
class Planner:
    """One way from costs to a plan.

    `plan(costs, *, budget=None, **options)`: a plan whose simulated peak is at most `budget` bytes (None: no budget).
    Raises BudgetError with the smallest feasible number when the planner has no such plan, UsageError for options it
    does not take.
    """

    name: str
    summary: str
    plan: Callable[..., Plan]


@lru_cache(maxsize=1)
def load() -> tuple[Planner, ...]:
    """Every planner, by name (the folder is scanned once a process).

    Raises PlanError for a file that does not keep the contract.
    """
    found: list[Planner] = []
    for stem in sorted(m.name for m in pkgutil.iter_modules(plans.__path__) if not m.name.startswith("_")):
        module = importlib.import_module(f"{plans.__name__}.{stem}")
        planner = getattr(module, "PLANNER", None)
        if not isinstance(planner, Planner) or planner.name != stem:
            raise PlanError(
                got=f"PLANNER = {planner!r}",
                wanted=f"a constant PLANNER of type Planner with the name {stem!r}",
                where=f"sweep/plans/{stem}.py",
                next_step="see gradledger.sweep._planners.Planner",
            )
        found.append(planner)
    return tuple(found)


def find(name: str) -> Planner:
    """The planner of this name.

    Raises UsageError when there is none.
    """
    for planner in load():
        if planner.name == name:
            return planner
    raise UsageError(
        got=repr(name),
        wanted=f"one of {', '.join(p.name for p in load())}",
        where="planner",
        next_step="choose one; `optimal` is the usual choice under a byte budget",
    )


def check_budget(budget: object) -> int | None:
    """Budget in bytes as the planners take it.

    Raises BudgetError for anything but a positive whole number or None.
    """
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, int) or budget <= 0:
        raise BudgetError(
            got=f"budget={budget!r}",
            wanted="bytes, a whole number above zero",
            where="planner",
            next_step='give bytes, or let the `budget` planner read texts such as "25%", "512MB" or "min"',
        )
    return budget


def within(plan: Plan, costs: Costs, budget: int | None, *, name: str, smallest: int | None = None) -> Plan:
    """`plan`, when its simulated peak keeps the budget.

    Raises BudgetError with the smallest feasible number: `smallest`, or the peak of this plan.
    """
    if budget is None:
        return plan
    peak = simulate(plan, costs).peak
    if peak <= budget:
        return plan
    raise infeasible(budget, peak if smallest is None else smallest, name=name)


def infeasible(budget: int, smallest: int, *, name: str) -> BudgetError:
    """The error for a budget that no plan of this planner keeps."""
    other = (
        "" if name in ("optimal", "budget", "offload") else ", or another planner (`optimal` goes lowest by recompute)"
    )
    return BudgetError(
        got=f"a budget of {budget} bytes",
        wanted=f"at least {smallest} bytes, the smallest feasible budget",
        where=f"planner {name}",
        next_step=f"give budget={smallest} or more{other}; smaller blocks or a smaller batch need less",
        smallest=smallest,
    )
