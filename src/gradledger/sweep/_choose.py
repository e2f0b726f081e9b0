"""Which plan a sweep runs for a kind of input that it has not met: the one given, or one made for this batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradledger.core.errors import SweepError
from gradledger.sweep._chain import Chain, Key
from gradledger.sweep._plan import Keep, Plan, Segment, keeps
from gradledger.sweep._planning import Budget, Planned, check_fits, make_plan
from gradledger.sweep._profile import NO_TARGET, Profiler

Given = Planned | Plan | str | None


def plan_for_kind(
    chain: Chain, given: Given, budget: Budget, known: Mapping[Key, Planned | Plan], key: Key, x: Any, y: Any
) -> Planned | Plan:
    """The plan for inputs of this kind, `known` the plans of other kinds.

    Raises:
        SweepError: a budget is set and there is no target to plan with; or the given plan recomputes what cannot be.
        BudgetError: nothing fits.
    """
    collective = chain.reduction is not None and chain.reduction.collective
    if collective and known:  # looking again would communicate, where other processes may not look
        return next(iter(known.values()))
    if isinstance(given, Planned) and given.key == key:
        if chain.knows(key):
            return given
        facts = chain.facts(key)  # the plan was made on another model of the same kind
        if any(depth for _, depth in keeps(given.plan.items)):
            Profiler(chain.blocks, facts, chain.generators, x, y).check()
            check_fits(given.plan, facts)
        return replace(given, facts=facts)
    if isinstance(given, Planned):
        own = given.budget if given.budget is not None else "keep"
        return make_plan(chain, x, y, budget=own, planner=given.planner, **given.options)
    if budget is not None or (isinstance(given, str) and given not in ("keep_all", "recompute_all")):
        if y is NO_TARGET:
            raise SweepError(
                got="forward under a budget, before any batch was planned",
                wanted="a plan: making one needs the target and the loss too",
                where="Sweep.forward",
                next_step="call sweep.plan(model, example=(x, y), loss=..., budget=...) and give it as plan=",
            )
        planner = given if isinstance(given, str) else "optimal"
        return make_plan(chain, x, y, budget=budget, planner=planner)
    n = len(chain.blocks)
    plan = given if isinstance(given, Plan) else Plan(tuple(Keep(i) for i in range(n)))
    recomputes = given == "recompute_all" or any(depth for _, depth in keeps(plan.items))
    if recomputes:
        facts = chain.facts(key)
        if chain.reduction is not None:
            chain.reduction.ready()
        Profiler(chain.blocks, facts, chain.generators, x, NO_TARGET if collective else y).check()
        if given == "recompute_all":
            free = [not f.keep_reason for f in facts]
            plan = Plan(tuple(Segment((Keep(i),)) if free[i] and i < n - 1 else Keep(i) for i in range(n)))
        check_fits(plan, facts)
    return plan


def one_plan(given: Planned | Plan | str | None, budget: Budget) -> Plan | str | None:
    """The plan of a chain whose blocks communicate when they run: all processes must run the same one."""
    if budget is not None or (isinstance(given, str) and given != "keep_all"):
        raise wrong(
            f"budget={budget!r}" if budget is not None else f"plan={given!r}",
            "one plan for all processes, since the blocks communicate (fully_shard, SyncBatchNorm) when they are run, "
            "and each process would measure its own",
            "make it before sharding, on one process: plan = sweep.plan(model, example=(x, y), loss=..., budget=...), "
            "and give its text to all: Sweep(model, loss_fn, plan=str(plan.plan))",
        )
    return given.plan if isinstance(given, Planned) else given


def bytes_of(given: Budget) -> int:
    """Of `keep_grads`: a number, or a text such as "32MB"."""
    from gradledger.sweep.plans.budget import parse_budget

    if given is None or given == 0:
        return 0
    number = parse_budget(given, keep_peak=0)
    if number is None:
        raise wrong(f"keep_grads={given!r}", "bytes or a text such as '32MB'", "give a number of bytes")
    return number


def wrong(got: str, wanted: str, next_step: str) -> SweepError:
    """An error of the constructor of `Sweep`."""
    return SweepError(got=got, wanted=wanted, where="Sweep", next_step=next_step)
