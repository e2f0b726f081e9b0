"""The plan: hypotheses with arms and seeds in a TOML file, checked before anything runs.

A claim that cannot come out both ways is refused: no experiment answers it.

    name = "order"
    rng_seeds = [0, 1, 2]

    [quantities.val_mse]          # optional: what a quantity can be; claims are checked against it
    low = 0.0
    unit = "m^2"
    tolerance = 0.1               # of a run anew, relative; for `gradledger retrain`

    [arms.random]
    order = "random"
    [arms.sorted]
    order = "sorted"

    [[hypotheses]]
    id = "H1"
    claim = "sorting by q1 makes the validation error more than three times worse"
    quantity = "val_mse"
    arms = ["sorted", "random"]
    predicate = { kind = "ratio", low = 3.0 }
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gradledger.core.records import digest, leaves
from gradledger.evidence.errors import PlanError
from gradledger.evidence.predicate import (
    KINDS,
    Predicate,
    arms_wanted,
    comes_out,
    document,
    second_quantity,
)

OVER: tuple[str, ...] = ("every", "mean", "median")
FINGERPRINT = "fingerprint"  # unit of a quantity that is equal or is not: it has no mean and no interval


@dataclass(frozen=True)
class Quantity:
    """What a recorded quantity can be. low, high: its domain; infinite where nothing is known. unit: "fingerprint" for
    a number that says which, not how much. tolerance: relative; how far a run anew may be from the recorded one, None
    where nothing is said."""

    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    about: str = ""
    tolerance: float | None = None

    def record(self) -> dict[str, Any]:
        """Ready for JSON; without a tolerance where there is none: plans of before have the hash they had."""
        told = {"low": self.low, "high": self.high, "unit": self.unit, "about": self.about}
        return told if self.tolerance is None else told | {"tolerance": self.tolerance}


@dataclass(frozen=True)
class Hypothesis:
    """One claim. over: must hold for every seed, or for the mean or median over seeds. control: two arms of an
    experiment in which the same comparison must find nothing; where it finds something too, there is no verdict."""

    id: str
    claim: str
    quantity: str
    predicate: Predicate
    arms: tuple[str, ...]
    rng_seeds: tuple[int, ...]
    over: Literal["every", "mean", "median"] = "every"
    control: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "id": self.id,
            "claim": self.claim,
            "quantity": self.quantity,
            "predicate": document(self.predicate),
            "arms": list(self.arms),
            "rng_seeds": list(self.rng_seeds),
            "over": self.over,
            "control": list(self.control),
        }


@dataclass(frozen=True)
class Plan:
    """Everything that is registered. arms: name -> config. about: free text."""

    name: str
    arms: Mapping[str, Mapping[str, Any]]
    hypotheses: tuple[Hypothesis, ...]
    rng_seeds: tuple[int, ...]
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    about: str = ""

    def record(self) -> dict[str, Any]:
        """Ready for JSON: equal plans have equal records, whatever the layout of their files."""
        return {
            "name": self.name,
            "about": self.about,
            "rng_seeds": list(self.rng_seeds),
            "quantities": {name: one.record() for name, one in self.quantities.items()},
            "arms": {name: dict(config) for name, config in self.arms.items()},
            "hypotheses": {one.id: one.record() for one in self.hypotheses},
        }

    @property
    def sha256(self) -> str:
        """Hash of the record."""
        return digest(self.record())

    def hypothesis(self, id: str) -> Hypothesis:
        """The hypothesis of that id.

        Raises:
            PlanError: there is none.
        """
        for one in self.hypotheses:
            if one.id == id:
                return one
        raise _refused(f"no hypothesis {id!r}", f"one of {', '.join(h.id for h in self.hypotheses)}", self.name)

    def needed(self) -> list[tuple[str, int]]:
        """(arm, rng_seed) of every trial that the hypotheses ask for, each once, in order of the plan."""
        pairs = [(arm, seed) for one in self.hypotheses for arm in (*one.arms, *one.control) for seed in one.rng_seeds]
        order = list(self.arms)
        return sorted(dict.fromkeys(pairs), key=lambda pair: (order.index(pair[0]), pair[1]))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Dotted names of the fields in which two arms differ, also those that only one has."""
    first, second = dict(leaves(one)), dict(leaves(other))
    names = {*first, *second} - {""}
    return sorted(n for n in names if (n in first) != (n in second) or digest(first.get(n)) != digest(second.get(n)))


def isolated(plan: Plan, arms: Sequence[str]) -> tuple[bool | None, tuple[str, ...]]:
    """(whether two arms differ in one field alone, the fields in which they differ); None for a single arm."""
    if len(arms) < 2:
        return None, ()
    found = tuple(differences(plan.arms[arms[0]], plan.arms[arms[1]]))
    return len(found) == 1, found


def read(path: Path) -> Plan:
    """The plan in a TOML file.

    Raises:
        PlanError: no such file, no TOML, an unknown key, or a plan that `parse` refuses.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise PlanError(
            got=f"{type(cause).__name__}: {cause}",
            wanted="a plan, a TOML file",
            where=str(path),
            next_step="check the path; docs/evidence.md shows a plan",
        ) from cause
    return parse(text, where=str(path))


def parse(text: str, *, where: str = "plan") -> Plan:
    """A plan from TOML text.

    Raises:
        PlanError: names the key, what was wanted of it, and what to do.
    """
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise _refused(f"no TOML ({cause})", "a plan in TOML", where, "correct the file") from cause
    known = ("name", "about", "rng_seeds", "quantities", "arms", "hypotheses")
    _only(told, known, where)
    name = _typed(told, "name", str, where)
    seeds = _seeds(told.get("rng_seeds", []), f"{where}: rng_seeds")
    quantities = {
        key: _built(Quantity, value, f"{where}: quantities.{key}")
        for key, value in _table(told, "quantities", where).items()
    }
    for key, one in quantities.items():
        if not one.low < one.high:
            raise _refused(f"low {one.low}, high {one.high}", "low < high", f"{where}: quantities.{key}")
        if one.tolerance is not None and not 0 <= one.tolerance < math.inf:
            raise _refused(f"tolerance {one.tolerance}", "a number from 0 up", f"{where}: quantities.{key}")
    arms = _table(told, "arms", where)
    for key, value in arms.items():
        if not isinstance(value, dict):
            raise _refused(repr(value), "a table of settings", f"{where}: arms.{key}", f"write [arms.{key}]")
    rows = told.get("hypotheses", [])
    if not isinstance(rows, list) or not rows:
        raise _refused("no hypotheses", "[[hypotheses]], one or more", where, "say what you expect before you run")
    plan = Plan(
        name,
        arms,
        tuple(_hypothesis(row, seeds, f"{where}: hypotheses[{at}]") for at, row in enumerate(rows)),
        seeds,
        quantities,
        _typed(told, "about", str, where, default=""),
    )
    check(plan, where=where)
    return plan


def check(plan: Plan, *, where: str = "plan") -> None:
    """Refuse a plan that cannot be judged.

    Raises:
        PlanError: the first hypothesis that names no arm of the plan, has no seeds, or cannot come out both ways.
    """
    ids = [one.id for one in plan.hypotheses]
    twice = next((id for id in ids if ids.count(id) > 1), None)
    if twice is not None:
        raise _refused(f"the id {twice!r} twice", "an id for each hypothesis", where, "number them")
    for one in plan.hypotheses:
        _check_hypothesis(plan, one, f"{where}: {one.id}")


def _check_hypothesis(plan: Plan, one: Hypothesis, where: str) -> None:
    for arm in (*one.arms, *one.control):
        if arm not in plan.arms:
            near = difflib.get_close_matches(arm, plan.arms, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"add [arms.{arm}]"
            raise _refused(f"the arm {arm!r}", f"one of {', '.join(plan.arms) or '(none)'}", where, hint)
    wanted = arms_wanted(one.predicate)
    if len(one.arms) != wanted:
        what = "one arm" if wanted == 1 else "two arms: the first is compared with the second"
        raise _refused(f"{len(one.arms)} arms for {one.predicate.kind!r}", what, where, "correct arms")
    if one.control and (len(one.control) != 2 or one.predicate.kind != "separates"):
        raise _refused(
            f"control {list(one.control)} for {one.predicate.kind!r}",
            "two arms, beside the predicate 'separates'",
            where,
            "or write a hypothesis of its own with 'not_separated'",
        )
    if not one.rng_seeds:
        raise _refused("no rng_seeds", "one or more", where, "rng_seeds = [0, 1, 2], here or for the whole plan")
    if one.over != "every" and one.predicate.kind in ("flat", "is_none", "identity", "trajectory"):
        raise _refused(f"over = {one.over!r} for {one.predicate.kind!r}", "'every'", where, "leave `over` out")
    _check_both_ways(plan, one, where)


def _check_both_ways(plan: Plan, one: Hypothesis, where: str) -> None:
    for pair in (one.arms, one.control):
        if len(pair) == 2 and not differences(plan.arms[pair[0]], plan.arms[pair[1]]):
            raise _one_way(
                f"arms {pair[0]!r} and {pair[1]!r} with equal settings", "the comparison is of a run with itself", where
            )
    if second_quantity(one.predicate) == one.quantity:
        raise _one_way(f"{one.quantity!r} compared with itself", "the answer is known", where)
    for item in fields(one.predicate):
        value = getattr(one.predicate, item.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise _refused(f"{item.name} = {value}", "a finite number", where, "leave a bound out where there is none")
        if item.name in ("tolerance", "margin", "slack", "least") and value < 0:
            raise _refused(f"{item.name} = {value}", "a number from 0 up", where)
    domain = plan.quantities.get(one.quantity, Quantity())
    answers = comes_out(one.predicate, domain.low, domain.high)
    if answers != {True, False}:
        bounds = f"values of {one.quantity} from {domain.low:g} to {domain.high:g}"
        way = "supported" if answers == {True} else "refuted" if answers == {False} else "unanswered"
        raise _one_way(f"a claim that is {way} by all {bounds}", "nothing measured could change it", where)


def _hypothesis(row: Any, seeds: tuple[int, ...], where: str) -> Hypothesis:
    if not isinstance(row, dict):
        raise _refused(repr(row), "a table", where, "write [[hypotheses]]")
    if isinstance(row.get("id"), str):
        where = f"{where} ({row['id']})"
    _only(row, ("id", "claim", "quantity", "predicate", "arms", "rng_seeds", "over", "control"), where)
    told = _typed(row, "predicate", dict, where)
    kind = told.get("kind")
    if kind not in KINDS:
        raise _refused(f"predicate.kind = {kind!r}", f"one of {', '.join(KINDS)}", where, "choose a predicate")
    over = _typed(row, "over", str, where, default="every")
    if over not in OVER:
        raise _refused(f"over = {over!r}", f"one of {', '.join(OVER)}", where)
    arms = row.get("arms", [])
    control = row.get("control", [])
    for key, value in (("arms", arms), ("control", control)):
        if not isinstance(value, list) or not all(isinstance(arm, str) for arm in value):
            raise _refused(f"{key} = {value!r}", "a list of names", where)
    return Hypothesis(
        _typed(row, "id", str, where),
        _typed(row, "claim", str, where),
        _typed(row, "quantity", str, where),
        _built(KINDS[kind], told, f"{where}: predicate"),
        tuple(arms),
        _seeds(row["rng_seeds"], f"{where}: rng_seeds") if "rng_seeds" in row else seeds,
        over,
        tuple(control),
    )


def _built(kind: Any, told: Any, where: str) -> Any:
    """A frozen record from a table: every key known, every value of the type that the field has."""
    if not isinstance(told, dict):
        raise _refused(repr(told), "a table", where)
    hints = get_type_hints(kind)
    _only(told, tuple(item.name for item in fields(kind)), where)
    values: dict[str, Any] = {}
    for item in fields(kind):
        if item.name in told:
            values[item.name] = _fitting(told[item.name], hints[item.name], f"{where}.{item.name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise _refused(f"no {item.name}", "it", where, f"add {item.name} = ...")
    return kind(**values)


def _fitting(value: Any, hint: Any, where: str) -> Any:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise _refused(repr(value), f"one of {', '.join(map(str, get_args(hint)))}", where)
        return value
    kinds = get_args(hint) if get_origin(hint) is UnionType or isinstance(hint, UnionType) else (hint,)
    kinds = tuple(kind for kind in kinds if kind is not NoneType)
    if float in kinds and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) != (bool in kinds) or not isinstance(value, kinds):
        raise _refused(repr(value), " or ".join("number" if k is float else k.__name__ for k in kinds), where)
    return value


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    good = isinstance(value, list) and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in value)
    if not good or len(set(value)) != len(value):
        raise _refused(repr(value), "a list of whole numbers from 0 up, each once", where)
    return tuple(value)


def _table(told: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value: dict[str, Any] = _typed(told, key, dict, where, default={})
    return value


def _typed(told: Mapping[str, Any], key: str, kind: Any, where: str, *, default: Any = None) -> Any:
    value: Any = told.get(key, default)
    if not isinstance(value, kind) or (kind is str and default is None and not value.strip()):
        got = f"{key} = {value!r}" if key in told else f"no {key}"
        raise _refused(got, "text" if kind is str else "a table", where, f"add {key} = ...")
    return value


def _only(told: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in told:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "remove it"
            raise _refused(f"the key {key!r}", f"of {', '.join(known)}", where, hint)


def _one_way(got: str, why: str, where: str) -> PlanError:
    return _refused(got, f"a claim that can come out both ways: here {why}", where, "claim what could turn out false")


def _refused(got: str, wanted: str, where: str, next_step: str = "correct the plan") -> PlanError:
    return PlanError(got=got, wanted=wanted, where=where, next_step=next_step)


__all__ = ["Hypothesis", "Plan", "Quantity", "check", "differences", "isolated", "parse", "read"]
