"""What is wrong with the flags by which a bootstrapped value is masked, near the line of a target, in words: faults
that the text tells."""

from __future__ import annotations

from dataclasses import dataclass

from gradledger.audit import _back_in_time, _clocked_masks, _half_masked, _kept_after, _merged_ends, _rollouts, _starts


@dataclass(frozen=True, slots=True)
class Fault:
    """On `line`, with `lines` that belong to it."""

    line: int
    lines: tuple[int, ...]
    message: str
    fix: str


def of_loop(file: str, line: int) -> Fault | None:
    """Of a loop that runs back through time."""
    return (
        _one_step_off(file, line)
        or _kept_before(file, line)
        or _kept_after_step(file, line)
        or _own_start(file, line)
        or _plain_discount(file, line)
        or of_merged_mask(file, line)
        or _half(file, line)
    )


def _one_step_off(file: str, line: int) -> Fault | None:
    late = _back_in_time.one_step_off(file, line)
    if late is None or _kept_after.keeps_after_step(file, late.flag):
        return None
    return Fault(
        late.line,
        (late.last_line,),
        f"the value of step t + 1 is masked by `{late.flag}` of step t, while the last step takes its flag from "
        f"`{late.last}` (line {late.last_line}): flags kept before the step belong to t + 1, so ends are taken one "
        "step off.",
        f"read `{late.flag}` at the same index as the next value",
    )


def _kept_before(file: str, line: int) -> Fault | None:
    early = _rollouts.kept_before(file, line)
    if early is None:
        return None
    return Fault(
        early.line,
        (early.kept, early.step),
        f"the value of step t + 1 is masked by `{early.flag}` of step t, but the rollout keeps the flag (line "
        f"{early.kept}) before it makes the step (line {early.step}): it belongs to the step before, and ends are "
        "taken one step off.",
        f"read `{early.flag}` at the same index as the next value; after the last step, the step's own flag",
    )


def _kept_after_step(file: str, line: int) -> Fault | None:
    late = _kept_after.kept_after(file, line)
    if late is None:
        return None
    return Fault(
        late.line,
        (late.kept, late.step),
        f"the value of step t + 1 is masked by `{late.flag}` of t + 1, but the rollout keeps a flag (line "
        f"{late.kept}) after the step that gave it (line {late.step}): that of t says whether t was the last, so "
        "that terminal steps bootstrap and those before them do not.",
        f"read `{late.flag}` at t",
    )


def _own_start(file: str, line: int) -> Fault | None:
    own = _starts.cut_by_own_start(file, line)
    if own is None:
        return None
    return Fault(
        own.line,
        (own.made,) if own.made else (),
        f"`{own.flag}` says where an episode begins, and masks here what comes after the step itself: the last step of "
        "an episode takes the value of the next one's first state, and every first step loses its future.",
        f"mask what comes after step t by `{own.flag}` of t + 1",
    )


def _plain_discount(file: str, line: int) -> Fault | None:
    left = _rollouts.plain_discount(file, line)
    if left is None:
        return None
    return Fault(
        left.line,
        (left.carried, left.made),
        f"the next value is multiplied by `{left.plain}` at every step, also after the end of an episode: "
        f"`{left.each}`, 0 at ends (line {left.made}), is used only where the sum is carried (line {left.carried}).",
        f"use `{left.each}` in place of `{left.plain}`",
    )


def of_merged_mask(file: str, line: int) -> Fault | None:
    """A mask made of the end and of the time limit."""
    merged = _merged_ends.merged_mask(file, line)
    if merged is None:
        return None
    return Fault(
        merged.line,
        (merged.used,),
        f"`{merged.flag}` joins the end of an episode and its time limit (`{merged.cut}`), and masks `{merged.value}` "
        f"(line {merged.used}): where only the time ran out, the value of what would have come is taken as 0.",
        f"mask `{merged.value}` by the end alone, and let `{merged.cut}` cut what is carried back in time",
    )


def of_kept_mask(file: str, line: int) -> Fault | None:
    """A flag that the memory keeps, made of the end and of the time limit."""
    kept = _merged_ends.kept_mask(file)
    if kept is None:
        return None
    return Fault(
        kept.line,
        (kept.used,),
        "a time limit counts as an end here, in the flag that the memory keeps: on line "
        f"{kept.used} it masks `{kept.value}`, so that what would have come after an interrupted one is taken as 0.",
        f"keep both flags: mask `{kept.value}` by `terminated`, and cut what is carried back in time by either",
    )


def _half(file: str, line: int) -> Fault | None:
    half = _half_masked.half_masked(file, line)
    if half is None:
        return None
    if half.value:
        return Fault(
            half.line,
            (half.flag_line,),
            f"`{half.text}` is added unmasked, while `{half.flag}` (line {half.flag_line}) masks what is carried: "
            "after the last step of an episode it is the value of the next one's first state.",
            f"multiply both, `{half.text}` and the sum that is carried, by the mask",
        )
    return Fault(
        half.line,
        (half.flag_line,),
        f"`{half.text}` is carried on unmasked, while `{half.flag}` (line {half.flag_line}) masks the next value: what "
        "comes after the end of an episode, from the next one, flows back into it.",
        f"multiply both, the next value and `{half.text}`, by the mask",
    )


def of_clock(file: str, line: int) -> Fault | None:
    """A time limit of the program's own `step`."""
    clocked = _clocked_masks.masked_by_clock(file, line)
    if clocked is None:
        return None
    return Fault(
        clocked.line,
        (clocked.taken,),
        f"`step` counts its calls and says at a limit that the episode ended: `{clocked.flag}` (line {clocked.taken}) "
        "masks the value of a state in which only the time ran out, and which would have had a future.",
        "give the time limit apart from the end; mask by the end, and reset at either",
    )
