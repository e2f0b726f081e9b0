"""GL-T06: a deep-copied reference trains along."""

from __future__ import annotations

import pytest

from audit.build import Run, judge, lines, mean_term
from audit.targets import compare, deep_copy, side
from gradledger.audit.rules import t06_reference_trains_along as t06


def anchored(steps: int, *, held: bool = True, frozen: bool = False, own: str = "policy", name: str = "copy") -> Run:
    """A policy and its deep copy: one term holds both, `own` says whose further terms there are."""
    run = Run()
    policy = run.module("policy", line=5)
    ref = deep_copy(run, policy, name=name)
    if frozen:
        run.freeze(ref, line=6)
    opt = run.optimizer(policy, *([ref] if held else []), line=7)
    for _ in range(steps):
        run.zero_grad(opt, line=14)
        mine, theirs = run.forward(policy, line=10), run.forward(ref, line=11, graph=not frozen)
        both = mean_term(leaves=(*policy.tensors, *(() if frozen else ref.tensors)))
        terms = [both]
        if own in ("policy", "both"):
            terms.append(mean_term(leaves=policy.tensors))
        if own == "both":
            terms.append(mean_term(leaves=ref.tensors))
        backward = run.backward(policy, ref, line=15, terms=tuple(terms))
        compare(run, backward, side(mine), side(theirs, graph=not frozen), op="kl_div")
        run.step(opt, line=16)
    return run


def test_a_reference_in_the_optimizer() -> None:
    (finding,) = judge(t06, anchored(8))
    assert finding.severity == "error"
    assert finding.site.line == 7
    assert lines(finding) >= {6, 7, 11, 13, 15}
    assert finding.evidence["parameters_in_optimizer"] == 2
    assert finding.evidence["compared_by"] == "kl_div"


def test_a_reference_that_only_collects_gradients_gates_nothing() -> None:
    (finding,) = judge(t06, anchored(8, held=False))
    assert finding.severity == "info"
    assert finding.site.line == 6


@pytest.mark.parametrize("case", [{"frozen": True}, {"own": "both"}, {"own": "neither"}])
def test_near_misses(case: dict[str, object]) -> None:
    assert judge(t06, anchored(8, **case)) == []  # type: ignore[arg-type]


def test_a_followed_copy_is_a_target_and_left_to_other_rules() -> None:
    run = anchored(4)
    events = run.events
    policy, ref = (e for e in events if e.KIND == "module_made")
    del policy, ref
    from gradledger.core import events as ev

    copy = next(e for e in events if isinstance(e, ev.DeepCopied))
    run.emit(ev.Copied, copy.site, how="lerp_", source=copy.source, target=copy.target, pairs=copy.pairs, tau=0.1)
    assert judge(t06, run) == []
