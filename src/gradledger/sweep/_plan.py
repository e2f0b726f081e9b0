"""A plan as a tree: which blocks keep their tape, and which are run again when the reverse walk arrives.  No torch.

`0 1 (2 3 4) ((5 6) 7) 8`: blocks 0, 1 and 8 keep their tapes; 2 to 4 run without, only the input of 2 is held, and are
recorded when the walk arrives; of 5 to 7 the walk first runs 5 and 6, records 7, and later records 5 and 6.
`3@host`: what tape 3 saves is moved out and fetched back; `(4 5)@disk`: the held input of the segment is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gradledger.sweep._action import PLACES, Action, Place, PlanError, grid

if TYPE_CHECKING:
    from gradledger.sweep._cost import Costs


@dataclass(frozen=True, slots=True)
class Keep:
    """Block whose tape stays from its (last) run until its reverse; `place`: moved out in between."""

    block: int
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """Blocks that run without tapes; their input is held (at `place`) and they are run again by the inner items."""

    items: tuple[Item, ...]
    place: Place | None = None


Item = Keep | Segment


def keeps(items: tuple[Item, ...]) -> Iterator[tuple[Keep, int]]:
    """Every block in order of the text, with the number of segments around it."""
    stack: list[tuple[Item, int]] = [(item, 0) for item in reversed(items)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, Keep):
            yield item, depth
        else:
            stack.extend((inner, depth + 1) for inner in reversed(item.items))


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule of one training step, as a tree.

    Example:
        >>> plan = Plan.parse("0 (1 2) 3")
        >>> print(plan)
        0 (1 2) 3
    """

    items: tuple[Item, ...]

    @property
    def text(self) -> str:
        """`0 1 (2 3 4)@disk 5@host`; `Plan.parse` gives an equal plan back."""
        out: list[str] = []
        stack: list[Item | str] = list(reversed(self.items))
        while stack:  # a loop: a plan may be nested deeper than the interpreter's stack
            item = stack.pop()
            if isinstance(item, str):
                out.append(item)
            elif isinstance(item, Keep):
                out.append(f"{item.block}@{item.place}" if item.place else str(item.block))
            else:
                out.append("(")
                stack.append(f")@{item.place}" if item.place else ")")
                stack.extend(reversed(item.items))
        return re.sub(r" \)", ")", " ".join(out).replace("( ", "("))

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Read the text form.

        Raises PlanError that points at the character which cannot be read.
        """
        levels: list[list[Item]] = [[]]
        at = 0
        for match in re.finditer(r"\s*(?:(\d+)(?:@(\w+))?(?=[\s()]|$)|(\()|(\))(?:@(\w+)(?=[\s()]|$))?)", text):
            if match.start() != at:
                break
            number, place, opens, closes, held_at = match.groups()
            place = place or held_at
            if place is not None and place not in PLACES:
                raise _unreadable(text, match.end() - len(place), f"place {place!r}", "host or disk after @")
            at_place = cast("Place | None", place)
            if number is not None:
                levels[-1].append(Keep(int(number), at_place))
            elif opens:
                levels.append([])
            elif closes:
                if len(levels) == 1:
                    raise _unreadable(text, match.start(4), "a ) without its (", "brackets in pairs")
                inner = tuple(levels.pop())
                if not inner:
                    raise _unreadable(text, match.start(4), "an empty segment", "blocks between ( and )")
                levels[-1].append(Segment(inner, at_place))
            at = match.end()
        at += len(text[at:]) - len(text[at:].lstrip())
        if text[at:]:
            raise _unreadable(text, at, repr(text[at : at + 10]), "block numbers, ( ) and @host or @disk")
        if len(levels) > 1:
            raise _unreadable(text, len(text), "the end inside a segment", "brackets in pairs")
        return cls(tuple(levels[0]))

    def validate(self, n: int, *, forced: Mapping[int, str] | None = None) -> None:
        """Does this plan fit a chain of n blocks, the loss last?

        Args:
            n: number of blocks, the loss included.
            forced: blocks that may not be recomputed and why, as `Costs.forced` gives them.

        Raises PlanError with the grid, pointing at the first fault.
        """
        order = list(keeps(self.items))
        rows = [(k.block, "R" if d == 0 else str(min(d, 9)), _row_words(k, d)) for k, d in order]

        def wrong(at: int, got: str, wanted: str, next_step: str) -> PlanError:
            where = f"plan, place {at}"
            return PlanError(got=got, wanted=wanted, where=where, next_step=next_step, grid=grid(rows, n, fault=at))

        for at, (keep, depth) in enumerate(order):
            if at >= n:
                raise wrong(at, f"block {keep.block} after the last", f"{n} blocks", "make the plan for this chain")
            if keep.block != at:
                raise wrong(at, f"block {keep.block}", f"block {at}: each once, in order", "mend the order")
            if depth and at == n - 1:
                raise wrong(at, "the loss in a segment", "the loss kept at the top", "move it behind the bracket")
            if depth and forced and at in forced:
                reason = f"block {at} in a segment, which cannot be replayed: {forced[at]}"
                raise wrong(at, reason, f"block {at} kept", "take it out of the bracket")
        if len(order) != n:
            raise wrong(len(order), f"{len(order)} blocks", f"{n} blocks", f"add block {len(order)}")
        stack = list(self.items)
        while stack:
            item = stack.pop()
            if isinstance(item, Segment):
                if not item.items:
                    raise wrong(0, "an empty segment", "blocks in every segment", "remove it")
                if item.place and next(keeps(item.items))[0].block == 0:
                    raise wrong(0, f"data moved to {item.place}", "a boundary of ours", "leave its place out")
                stack.extend(item.items)

    def actions(self) -> tuple[Action, ...]:
        """The flat list that an executor obeys; `drop` as early and `fetch` one computing step before its use.

        The plan is taken as valid: see `validate`.
        """
        return _with_fetches(_schedule(self.items))

    def describe(self, costs: Costs) -> str:
        """Table: each block kept, recomputed (how often), forced and why, or moved out; predicted peak and seconds."""
        from gradledger.sweep._describe import describe

        return describe(self, costs)


def _row_words(keep: Keep, depth: int) -> str:
    return (f"keep {keep.block}" if not depth else f"recompute {keep.block}, {depth} deep") + (
        f", tape on {keep.place}" if keep.place else ""
    )


def _unreadable(text: str, at: int, got: str, wanted: str) -> PlanError:
    at = max(0, min(at, len(text)))
    start = max(0, at - 40)
    return PlanError(
        got=got,
        wanted=wanted,
        where=f"plan text, character {at}",
        next_step="write plans as `0 1 (2 3)@disk 4@host 5`",
        grid=f"  {text[start : at + 40]}\n  {' ' * (at - start)}^",
    )


def _schedule(items: tuple[Item, ...]) -> list[Action]:
    """Actions without the fetches."""
    out: list[Action] = []
    held: set[int] = set()
    # Work left, last first: ("walk", item) lays an item down, ("back", item) takes it back.
    work: list[tuple[bool, Item]] = [(False, i) for i in items] + [(True, i) for i in reversed(items)]
    work.reverse()
    while work:
        back, item = work.pop()
        if isinstance(item, Keep):
            i = item.block
            if back:
                out.append(Action("reverse", i))
                continue
            out.append(Action("record", i))
            if i in held:
                held.remove(i)
                out.append(Action("drop", i))
            if item.place:
                out.append(Action("offload", i, item.place))
        elif back:
            work.extend((True, inner) for inner in item.items)
            work.extend((False, inner) for inner in reversed(item.items))
        else:
            blocks = [k.block for k, _ in keeps(item.items)]
            first = blocks[0]
            if first not in held:
                held.add(first)
                out.append(Action("hold", first))
            out.append(Action("run", first))
            if item.place:
                out.append(Action("offload_held", first, item.place))
            out.extend(Action("run", i) for i in blocks[1:])
    return out


def _with_fetches(actions: list[Action]) -> tuple[Action, ...]:
    """Put a fetch before the computing step that comes before its use, so that the copy overlaps with it."""
    before: dict[int, list[Action]] = {}
    moved: dict[tuple[bool, int], int] = {}  # (held?, block) -> where it was moved out
    last_step = 0
    for at, action in enumerate(actions):
        kind, i = action.kind, action.block
        if kind == "offload" or kind == "offload_held":
            moved[kind == "offload_held", i] = at
            continue
        if kind in ("run", "record", "reverse"):
            key = (kind != "reverse", i)
            if key in moved:
                position = max(last_step, moved.pop(key) + 1)
                before.setdefault(position, []).append(Action("fetch_held" if key[0] else "fetch", i))
            last_step = at
    out: list[Action] = []
    for at, action in enumerate(actions):
        out.extend(before.get(at, ()))
        out.append(action)
    return tuple(out)
