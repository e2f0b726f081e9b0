"""From a model, a batch and a budget to a plan: profile, check that blocks can be replayed, solve."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch

from gradledger.core.errors import SweepError
from gradledger.sweep._action import Place
from gradledger.sweep._chain import Chain, Key
from gradledger.sweep._cost import Costs
from gradledger.sweep._describe import describe, picture
from gradledger.sweep._facts import Facts
from gradledger.sweep._plan import Keep, Plan
from gradledger.sweep._planners import find
from gradledger.sweep._profile import Profiler
from gradledger.sweep._shipment import bandwidth
from gradledger.sweep._simulate import Simulation, simulate

Budget = int | str | None


@dataclass(frozen=True)
class Planned:
    """A plan with what it was made from.

    Attributes:
        plan: which blocks are kept, recomputed, moved out.
        costs: what the chain was measured to cost.
        predicted: the schedule played through: peak bytes, seconds, level at every action.
        keep_peak: bytes that keeping everything needs.
        budget: bytes that were asked for; None where none was.
        slack: bytes of the budget set aside for copies of random states and buffers.
        bandwidth: bytes a second to and from where things are moved, as the prediction takes them.
        planner, options: who made it, for making it again.
    """

    plan: Plan
    costs: Costs
    predicted: Simulation
    keep_peak: int
    budget: int | None
    slack: int
    key: Key = field(repr=False, default=())
    facts: list[Facts] = field(repr=False, default_factory=list)
    bandwidth: Mapping[Place, float] = field(default_factory=dict)
    planner: str = "optimal"
    options: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def peak(self) -> int:
        """Predicted peak in bytes, the slack included."""
        return self.predicted.peak + self.slack

    def picture(self, width: int = 78) -> str:
        """Memory over the schedule, drawn in text."""
        return picture(self.predicted, width, budget=self.budget)

    def __str__(self) -> str:
        return describe(self.plan, self.costs, bandwidth=self.bandwidth)


def plan(
    model: Any,
    *,
    example: tuple[Any, Any],
    loss: Callable[..., Any],
    budget: Budget = "keep",
    planner: str = "optimal",
    generators: Sequence[torch.Generator] = (),
    repeats: int = 3,
    **options: Any,
) -> Planned:
    """Measure a chain on one batch and plan its reverse pass.

    Args:
        model: as `sweep.blocks` takes it.
        example: (x, y), a batch like those to come.
        loss: (state, y) -> loss.
        budget: bytes above what is allocated when the step begins, as a number, "512MB", "25%" (of what keeping
            everything needs), "min" or "keep".
        planner: which planner decides under the budget, by name.
        generators: random generators that blocks draw from and no module carries.
        repeats: how often each time is taken.
        options: handed to the planner (`k` of every_k, `snapshots` of revolve; of offload `place`, left out "disk" for
            a chain on a CPU and "host" for one on a GPU, and `bandwidth`, left out measured).

    Returns:
        the plan; `print` shows it block by block with predicted peak and time.

    Raises:
        SweepError: the chain cannot be swept; BudgetError: no plan keeps the budget, with the smallest feasible number.
    """
    chain = Chain(model, loss, generators)
    return make_plan(chain, *example, budget=budget, planner=planner, repeats=repeats, **options)


def make_plan(
    chain: Chain, x: Any, y: Any, *, budget: Budget, planner: str = "optimal", repeats: int = 3, **options: Any
) -> Planned:
    """`plan`, for a chain that is there."""
    key = chain.key(x)
    facts = chain.facts(key)
    profiler = Profiler(chain.blocks, facts, chain.generators, x, y, repeats)
    if planner == "offload":
        options = _where_to(profiler.device, options)
    costs = profiler.measure()
    return solve(costs, key, facts, budget=budget, planner=planner, **options)


def solve(costs: Costs, key: Key, facts: list[Facts], *, budget: Budget, planner: str, **options: Any) -> Planned:
    """The plan for measured costs."""
    from gradledger.sweep.plans.budget import parse_budget

    slack = _slack(facts)
    kept = simulate(Plan(tuple(Keep(i) for i in range(len(costs)))), costs).peak + slack
    asked = None if budget is None else parse_budget(budget, keep_peak=kept)
    if planner in ("keep_all", "recompute_all", "every_k", "revolve"):
        if asked is not None:
            made = find("budget").plan(costs, budget=asked, reserve=slack, planner=planner, **options)
        else:
            made = find(planner).plan(costs, **options)
    elif budget is None or budget == "keep":
        made = find("keep_all").plan(costs)
    else:
        made = find("budget").plan(
            costs, budget=asked if asked is not None else budget, reserve=slack, planner=planner, **options
        )
    speed: dict[Place, float] = {}
    if options.get("bandwidth") is not None:
        speed[options.get("place", "host")] = options["bandwidth"]
    predicted = simulate(made, costs, bandwidth=speed)
    return Planned(made, costs, predicted, kept, asked, slack, key, facts, speed, planner, options)


def _where_to(device: torch.device, options: dict[str, Any]) -> dict[str, Any]:
    """The place and its bandwidth, where the caller has left them out.

    Raises SweepError for the host's memory where the chain is in it already.
    """
    place: Place = options.get("place", "disk" if device.type == "cpu" else "host")
    if place == "host" and device.type == "cpu":
        raise SweepError(
            got="place='host' for a chain on the CPU, whose tensors are in the host's memory already",
            wanted="another place to move them to",
            where="sweep.plan",
            next_step="leave place out for a file in TMPDIR, or recompute instead: planner='optimal'",
        )
    if place in get_args(Place) and options.get("bandwidth") is None:
        options = {**options, "bandwidth": bandwidth(place, device)}
    return {**options, "place": place}


def _slack(facts: Sequence[Facts]) -> int:
    """Copies of random states and buffers that replay needs, and a little for scalars."""
    state = torch.get_rng_state().numel()
    total = 4096 + 64 * len(facts) + state
    for one in facts:
        if one.random:
            total += 2 * state * (1 + len(one.generators))
        for module, name in (*one.buffers, *one.small):
            buffer = module._buffers.get(name)
            if buffer is not None:
                total += 2 * buffer.numel() * buffer.element_size()
    return total


def read_plan(given: Any, n: int) -> Plan | str | Planned | None:
    """What a user hands in as a plan: None, a Plan, a Planned, the text of one, or a planner's name."""
    if given is None or isinstance(given, Plan | Planned):
        return given
    if isinstance(given, str) and re.fullmatch(r"[a-z_]+", given):
        find(given)
        return given
    if isinstance(given, str):
        return Plan.parse(given)
    raise SweepError(
        got=f"plan of type {type(given).__name__}",
        wanted="None, a Plan, what sweep.plan returned, the text of a plan, or the name of a planner",
        where="Sweep",
        next_step='leave it out to keep everything, or plan=sweep.plan(blocks, example=(x, y), loss=..., budget="25%")',
    )


def check_fits(chosen: Plan, facts: Sequence[Facts]) -> None:
    """Raise PlanError where the plan is of another chain, or recomputes a block that cannot be replayed."""
    forced = {i: f.keep_reason for i, f in enumerate(facts) if f.keep_reason}
    chosen.validate(len(facts), forced=forced)
