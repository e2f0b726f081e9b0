"""# Bootstrapping at the end of an episode

## What it is
A TD target adds the discounted value of the next state.  After a terminal state there is no next state: the value must
be masked out.  When a time limit merely interrupts an episode, there is one: the value must stay in.

## Why it matters
Without the mask, the values of terminal states, which nothing ever corrects, leak into all others.  With time limits
taken for ends, a state is worth what is left of the clock, and values are biased downward.

## How it is found
In watched iterations, the target of a loss is read as `reward + discount * value of a module`.  It is reported

- when no mask multiplies that value, although the code around the target is given a flag of terminal states that it
  never reads;
- when the target comes from a loop that runs back through time and carries a discounted sum (advantages, returns), and
  this loop is given such a flag and never reads it;
- when a mask does, but it is zero nearly everywhere and the code does not negate the flag of the end (or negates
  `not_done`): only terminal states bootstrap;
- when it is zero nowhere, while a flag that the memory keeps is read by no one, or the function that stores transitions
  is given one that it never reads;
- when it is a running product of flags over the rows of the batch, in place of the steps of time;
- when a loop back through time reads `done[t]` beside `value[t + 1]`, although the flag of the last step is another
  variable: flags that were kept before the step belong to `t + 1`;
- when a loop back through time masks what comes after step t by the flag of an episode's first step at t, in place of
  that at t + 1;
- when the loop reads `done[t]` beside `value[t + 1]`, and the rollout keeps the flag before it makes the step;
- when it reads `done[t + 1]` there, and the rollout keeps each flag after the step that gave it;
- when it masks the next value by `done[t + 1]`, and carries its sum through the ends of a rollout unmasked;
- when it masks the sum that it carries, and not the value of t + 1 in the same rollout;
- when it carries its sum with a discount of each step that is 0 at ends, and multiplies the next value by a plain one;
- when the mask multiplies one of several values before the smallest of them is taken;
- when only rows whose successor is None are masked, none ever was, and the program keeps None nowhere, nor the flag
  that its step gives;
- when a sum over several steps of one long stream, or over a window of the latest that nothing empties, asks for the
  flag of its last step only;
- when transitions over several steps are kept with the flag of the first and the next state of the last;
- when a function that is given the memory's array of flags writes the first ones there, and the later ones elsewhere;
- when a function is given whether the episode ended, and writes into the memory that it did without a look;
- when a mask does, and the flag is `terminated or truncated` (by whatever name, joined by `or`, `|`, a maximum), kept
  in the memory, where neither of the two is used for anything else; or the memory keeps the time limit alone; or the
  program's own `step` counts its calls and says at a limit that the episode ended;
- when what such a `step` gives masks the next value at once, without a memory;
- when the function that makes the targets joins the two, and masks the next value by the result;
- when such a flag is kept, and the function that makes advantages masks by it the value of the step's next observation.

## Near misses
- Continuing tasks: no flag at all, or environments known never to end.
- `terminated or truncated` that decides about the reset only, with `terminated` in the memory.
- Truncated episodes whose last value is added by hand.
- Tasks whose episodes are a step or two long, where the code negates the flag.
- A loop over one episode, which carries its sum through no end.
- Flags kept after the step, read at `t` for all steps alike.
- A minimum of values that are all masked, or that is masked as a whole.
- Sums over windows of single episodes, or whose starts are chosen by the flags.
- Transitions over several steps with the flag of the last, or with the product of all.
- An environment of the program's own whose fourth value is another kind of end, or a count that the agent sees.
- A `step` that ends the episode by a count which the agent sees, or which only some calls raise.

## Fix
`y = r + gamma * (1 - terminated) * value(next_state)`, with `terminated` (not `done`) in the memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gradledger.audit import (
    _back_in_time,
    _kept_faults,
    _loop_faults,
    _none_kept,
    _rollouts,
    _terminals,
    _time_limits,
)
from gradledger.audit._loop_faults import Fault
from gradledger.audit._phrases import distinct, number
from gradledger.audit._source import source_lines
from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Comparison, Event, Operand
from gradledger.core.site import Site

RULE = Rule(
    "R1",
    "wrong-bootstrap-at-episode-end",
    "rl",
    "A TD target bootstraps through terminal states, or takes a time limit for the end of an episode.",
)
LISTENS = (Comparison,)
NEEDS_DETAIL = True
KEPT = 128
FEW = 64  # elements of masks, before the share of zeros says anything
MANY = 512
INVERTED = 0.7  # share of zeros: an episode of less than one and a half steps
_ENDLESS = re.compile(r"Pendulum-v|HalfCheetah|Swimmer|Reacher|Pusher")


@dataclass(slots=True)
class State:
    """Bootstrap targets by line: the first comparison and the operand.  `fixed`: all targets without a graph and
    without a mask; `mixed`: with one, in other forms than a bootstrap.  `zeros`: of the masks of a line, elements that
    are zero, and all."""

    targets: dict[tuple[str, int], tuple[Comparison, Operand]] = field(default_factory=dict)
    zeros: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    fixed: dict[tuple[str, int], tuple[Comparison, Operand]] = field(default_factory=dict)
    mixed: dict[tuple[str, int], tuple[Comparison, Operand]] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    if not isinstance(event, Comparison):
        return
    for operand in (event.left, event.right):
        if operand.bootstrap and operand.site.file and len(state.targets) < KEPT:
            state.targets.setdefault(operand.site.key(), (event, operand))
            if operand.mask_uneven is not None:
                state.targets[operand.site.key()] = event, operand
            zero, of = state.zeros.get(operand.site.key(), (0, 0))
            more = operand.mask_zeros or (0, 0)
            state.zeros[operand.site.key()] = zero + more[0], of + more[1]
        kept = state.mixed if operand.masked else state.fixed
        if not operand.has_graph and not (operand.masked and operand.bootstrap) and operand.site.file:
            if len(kept) < KEPT:
                kept.setdefault(operand.site.key(), (event, operand))


def finish(state: State, world: World) -> list[Finding]:
    found: list[Finding] = []
    for key, (event, operand) in state.targets.items():
        if operand.mask_uneven is not None:
            finding: Finding | None = _uneven(event, operand, operand.mask_uneven)
        else:
            finding = (_masked if operand.masked else _unmasked)(event, operand, *state.zeros[key])
        if finding is not None:
            found.append(finding)
    if not found:
        carried = (_carried(*one) or _limit(*one, carried=True) for one in state.fixed.values())
        loops = (_told(*one, _loop_faults.of_loop) for one in (*state.targets.values(), *state.fixed.values()))
        mixed = (_merged(*one) for one in state.mixed.values() if one[1].calls)
        kept = (_kept_mask(*one) for one in (*state.fixed.values(), *state.mixed.values()) if one[1].calls)
        found += [finding for finding in (*carried, *loops, *mixed, *kept) if finding is not None][:1]
    return found


def _found(event: Comparison, operand: Operand, line: int, lines: tuple[int, ...], message: str, fix: str) -> Finding:
    """A finding on a line of the target's file; `lines`: others that belong to it."""
    at = Site(operand.site.file, line, "")
    others = (Site(operand.site.file, other, "") for other in lines)
    return Finding(
        "R1",
        "error",
        at,
        message,
        fix,
        related=distinct(at, (*others, operand.site, event.site)),
        evidence={"masked": operand.masked},
        confidence="likely",
        iteration=event.iteration,
    )


def _merged(event: Comparison, operand: Operand) -> Finding | None:
    return _told(event, operand, _loop_faults.of_merged_mask)


def _kept_mask(event: Comparison, operand: Operand) -> Finding | None:
    return _told(event, replace(operand, masked=True), _loop_faults.of_kept_mask)  # (by way of a loop over the steps)


def _lines(operand: Operand) -> list[int]:
    """The target's, and those that computed the values in it: a loop over the steps stands between the two."""
    file = operand.site.file
    return list(dict.fromkeys((operand.site.line, *(c.site.line for c in operand.calls if c.site.file == file))))


def _told(event: Comparison, operand: Operand, look: Callable[[str, int], Fault | None]) -> Finding | None:
    file = operand.site.file
    fault = next((fault for line in _lines(operand) if (fault := look(file, line)) is not None), None)
    return _found(event, operand, fault.line, fault.lines, fault.message, fault.fix) if fault is not None else None


def _carried(event: Comparison, operand: Operand) -> Finding | None:
    site = operand.site
    if _ENDLESS.search("\n".join(source_lines(site.file))):
        return None
    loops = (_back_in_time.carried_through(site.file, line) for line in _lines(operand))
    loop = next((loop for loop in loops if loop is not None), None)
    if loop is None:
        return None
    at = Site(site.file, loop.line, "")
    return Finding(
        "R1",
        "error",
        at,
        f"the sum that line {site.line} learns from is carried back here from step to step, also from a new episode "
        f"into the one before it: `{loop.flag}` (line {loop.flag_line}) is given and never read.",
        f"multiply what is carried, and the bootstrapped value, by (1 - {loop.flag})",
        related=distinct(at, (Site(site.file, loop.loop, ""), Site(site.file, loop.flag_line, ""), site, event.site)),
        evidence={"flag": loop.flag, "masked": False},
        confidence="likely",
        iteration=event.iteration,
    )


def _unmasked(event: Comparison, operand: Operand, zeros: int, of: int) -> Finding | None:
    site = operand.site
    if operand.discount is None or not 0 < operand.discount < 1 or _ENDLESS.search("\n".join(source_lines(site.file))):
        return None
    flag = _terminals.unused_flag(site.file, site.line)
    if flag is None:
        return _none_kept_of(event, operand) if of >= MANY and zeros == 0 else None
    name, line = flag
    return Finding(
        "R1",
        "error",
        site,
        f"the target adds {number(operand.discount)} times the value of the next state for every transition, also "
        f"after a terminal one: `{name}` (line {line}) is given and never used.",
        f"multiply the bootstrapped value by (1 - {name})",
        related=distinct(site, (event.site, Site(site.file, line, site.function))),
        evidence={"discount": operand.discount, "flag": name, "masked": False},
        confidence="likely",
        iteration=event.iteration,
    )


def _masked(event: Comparison, operand: Operand, zeros: int, of: int) -> Finding | None:
    if operand.mask_across is not None:
        return _across(event, operand, operand.mask_across)
    mixed = _told(event, operand, _kept_faults.of_mixed_ends)
    if mixed is not None:
        return mixed
    if of >= FEW and zeros >= INVERTED * of and _terminals.inverted(operand.site.file, operand.site.line):
        return _inverted(event, operand, zeros, of)
    if of >= MANY and zeros == 0:
        return _never_zero(event, operand, of)
    if zeros:
        finding = _told(event, operand, _kept_faults.of_kept)
        if finding is not None:
            return finding
    return _limit(event, operand)


def _uneven(event: Comparison, operand: Operand, at: Site) -> Finding:
    message = (
        "the mask of terminal states multiplies some of the values of which the smallest is taken here, and not all: "
        "at an end, an unmasked value that is below 0 is taken, and bootstraps."
    )
    return _found(event, operand, at.line, (), message, "multiply the minimum by the mask")


def _none_kept_of(event: Comparison, operand: Operand) -> Finding | None:
    kept = _none_kept.never_none(operand.site.file, operand.site.line)
    if kept is None:
        return None
    message = (
        f"successors that are None are left out (line {kept.line}), and the memory keeps an observation for each step, "
        f"also after a terminal one: `{kept.flag}` (line {kept.step}) does not come to it, and the value of the next "
        "state is added for every transition."
    )
    fix = f"keep None in place of the next state where `{kept.flag}`, or keep the flag itself"
    return _found(event, operand, kept.kept, (kept.line, kept.step), message, fix)


def _across(event: Comparison, operand: Operand, at: Site) -> Finding:
    return Finding(
        "R1",
        "error",
        at,
        "the flags that mask the bootstrapped value are multiplied up over the rows of the batch here, not over the "
        "steps of each row: one sample's end silences all samples after it, and its own future is let through.",
        "take the running product over the axis of time",
        related=distinct(at, (operand.site, event.site)),
        evidence={"masked": True, "rows": operand.shape[0] if operand.shape else 0},
        iteration=event.iteration,
    )


def _inverted(event: Comparison, operand: Operand, zeros: int, of: int) -> Finding:
    site = operand.site
    places = _terminals.flags_kept(site.file)
    return Finding(
        "R1",
        "error",
        site,
        f"the value of the next state is multiplied by 0 in {zeros:,} of {of:,} transitions: what lets it through is "
        "the flag of the end, or its opposite negated once more, and only terminal states bootstrap.",
        "multiply by (1 - terminated); call what is stored by what it holds, `done` or `not_done`",
        related=distinct(site, (*(Site(site.file, line, "") for line in places), event.site)),
        evidence={"masked": True, "mask_zeros": zeros, "mask_elements": of},
        confidence="likely",
        iteration=event.iteration,
    )


def _never_zero(event: Comparison, operand: Operand, of: int) -> Finding | None:
    site = operand.site
    kept = _terminals.kept_unread(site.file)
    if kept is None:
        given = _terminals.given_unread(site.file)
        if given is None:
            return None
        flag, line, made = given
        message = (
            f"the factor of the bootstrapped value was 0 in none of {of:,} transitions, and `{flag}`, which the "
            f"function that stores them is given (line {line}), is never read: values run on through terminal states."
        )
        *_, factor, stored = made if len(made) > 1 else (line, *made)
        return _found(event, operand, factor, (line, stored, site.line), message, f"store 0 where `{flag}`")
    name, line, reader = kept
    return Finding(
        "R1",
        "error",
        Site(site.file, reader or line, ""),
        f"the mask of the bootstrapped value was 0 in none of {of:,} transitions, and the flag of the end that the "
        f"memory keeps in `{name}` (line {line}) is read nowhere: sums and values run on through terminal states.",
        f"build the mask from `{name}`; let sums over several steps stop there",
        related=distinct(site, (Site(site.file, line, ""), event.site)),
        evidence={"masked": True, "mask_zeros": 0, "mask_elements": of, "flag": name},
        confidence="likely",
        iteration=event.iteration,
    )


def _limit(event: Comparison, operand: Operand, carried: bool = False) -> Finding | None:
    """`carried`: the target itself shows no mask; a loop that runs back through time may have used the flag."""
    site = operand.site
    for limit in _time_limits.limits_as_ends(site.file):
        if carried and not limit.alone and not (limit.proved and _rollouts.reads(site.file, limit.kept, limit.name)):
            continue
        at = Site(site.file, limit.line, "")
        what = (
            f"the memory keeps `{limit.name}` (line {limit.kept}), the fourth value of `env.step`: that is the time "
            "limit.  The end itself, the third, is not kept, so that finished episodes bootstrap and"
            if limit.alone
            else f"a time limit counts as an end here: the flag is kept on line {limit.kept} and masks the "
            f"bootstrapped value on line {site.line}, so that"
        )
        return Finding(
            "R1",
            "error",
            at,
            f"{what} an interrupted episode is taken for a finished one.",
            "keep `terminated` for the target; use `terminated or truncated` for the reset only",
            related=distinct(at, (site, event.site, Site(site.file, limit.kept, ""))),
            evidence={"discount": operand.discount, "masked": True},
            confidence="likely",
            iteration=event.iteration,
        )
    return None if carried else _told(event, operand, _loop_faults.of_clock)


def not_checked(state: State, world: World) -> str | None:
    return None if state.targets or state.fixed else "no loss had a bootstrapped target"
