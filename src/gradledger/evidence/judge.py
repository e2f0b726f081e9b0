"""Verdicts: each hypothesis of a plan against what its trials recorded; supported, refuted or inconclusive."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gradledger.evidence.hypothesis import Hypothesis, Plan, isolated
from gradledger.evidence.predicate import ABSENT, Answer, Unknown, described, second_quantity

Verdict = Literal["supported", "refuted", "inconclusive"]
# (arm, rng_seed) -> quantity -> value, of the trials that came to their end
Measured = Mapping[tuple[str, int], Mapping[str, Any]]


@dataclass(frozen=True)
class Judgement:
    """A verdict and its ground. measured: by rng_seed, the values that the predicate saw. isolated: None where nothing
    was compared; differs: the fields in which the arms differ."""

    id: str
    claim: str
    predicted: str
    measured: dict[str, list[Any]]
    verdict: Verdict
    why: str
    isolated: bool | None
    differs: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "id": self.id,
            "claim": self.claim,
            "predicted": self.predicted,
            "measured": self.measured,
            "verdict": self.verdict,
            "why": self.why,
            "isolated": self.isolated,
            "differs": list(self.differs),
        }


def judge(plan: Plan, measured: Measured) -> list[Judgement]:
    """Every hypothesis, in the order of the plan; none is left out."""
    return [_judge(plan, one, measured) for one in plan.hypotheses]


def _judge(plan: Plan, one: Hypothesis, measured: Measured) -> Judgement:
    seen = {seed: _seen(one, one.arms, seed, measured) for seed in one.rng_seeds}
    verdict, why = _verdict(one, seen)
    if one.control and verdict != "inconclusive":
        control = {seed: _seen(one, one.control, seed, measured) for seed in one.rng_seeds}
        found, _ = _verdict(one, control)
        if found == "supported":
            verdict, why = "inconclusive", f"the control ({' and '.join(one.control)}) separates as well"
        elif found == "inconclusive":
            verdict, why = "inconclusive", f"no answer from the control ({' and '.join(one.control)})"
    alone, fields = isolated(plan, one.arms)
    if alone is False:
        why += f"; not isolated: the arms differ in {', '.join(fields)}"
    shown = {str(seed): [None if value is ABSENT else value for value in values] for seed, values in seen.items()}
    return Judgement(one.id, one.claim, described(one.predicate), shown, verdict, why, alone, fields)


def _verdict(one: Hypothesis, seen: Mapping[int, Sequence[Any]]) -> tuple[Verdict, str]:
    if one.over != "every":
        return _over(one, seen)
    answers = {seed: one.predicate.holds(values) for seed, values in seen.items()}
    against = [seed for seed, answer in answers.items() if answer is False]
    if against:
        return "refuted", f"does not hold for rng_seed {_list(against)} of {len(answers)}"
    open_ones = {seed: answer.why for seed, answer in answers.items() if isinstance(answer, Unknown)}
    if open_ones:
        seed, reason = next(iter(open_ones.items()))
        return "inconclusive", f"no answer for rng_seed {_list(list(open_ones))}: {reason} (rng_seed {seed})"
    return "supported", f"holds for {'the one seed' if len(answers) == 1 else f'all {len(answers)} seeds'}"


def _over(one: Hypothesis, seen: Mapping[int, Sequence[Any]]) -> tuple[Verdict, str]:
    """The predicate on the mean or median over seeds of each of its values."""
    for seed, values in seen.items():
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float):
                told = "it was not recorded" if value is ABSENT else f"{value!r} is no number"
                return "inconclusive", f"no {one.over} over seeds: {told} (rng_seed {seed})"
    middle = statistics.fmean if one.over == "mean" else statistics.median
    over = [float(middle(column)) for column in zip(*seen.values(), strict=True)]
    answer: Answer = one.predicate.holds(over)
    shown = ", ".join(f"{value:.6g}" for value in over)
    if isinstance(answer, Unknown):
        return "inconclusive", answer.why
    what = f"the {one.over} over {len(seen)} seeds is {shown}"
    return ("supported", what) if answer else ("refuted", what)


def _seen(one: Hypothesis, arms: Sequence[str], seed: int, measured: Measured) -> list[Any]:
    names = [one.quantity, second_quantity(one.predicate)]
    return [measured.get((arm, seed), {}).get(name, ABSENT) for arm in arms for name in names if name is not None]


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds[:8])) + (f" and {len(seeds) - 8} more" if len(seeds) > 8 else "")
