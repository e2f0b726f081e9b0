"""What the executor obeys: a flat list of actions, its text form, and the check that it can be obeyed.  No torch.

One boundary is *current* (the output of the last run or record); `run` and `record` take their input from it, else from
what is held; the data (boundary 0) is always at hand.  A `reverse` lets the current boundary go before it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from gradledger.core.errors import SweepError

Kind = Literal["hold", "run", "record", "reverse", "drop", "offload", "fetch", "offload_held", "fetch_held"]
Place = Literal["host", "disk"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
PLACES: Final[tuple[Place, ...]] = get_args(Place)
MARKS: Final[dict[Kind, str]] = dict(
    hold="h", run="r", record="R", reverse="V", drop="d", offload="o", fetch="f", offload_held="O", fetch_held="F"
)
"""One letter a kind, as the grid shows it."""

_MOVES_OUT: Final = ("offload", "offload_held")
_COMPUTES: Final = ("run", "record", "reverse")
_WORD = re.compile(r"([a-z_]+) +(\d+)(?:\.\.(\d+))?(?: +([a-z]+))?")


class PlanError(SweepError):
    """A plan, or a list of actions, that cannot be read or obeyed.  `grid` shows where."""

    slug = "plan"

    def __init__(self, *, got: str, wanted: str, where: str, next_step: str, grid: str = "") -> None:
        super().__init__(got=got, wanted=wanted, where=where, next_step=next_step)
        self.grid = grid
        if grid:
            self.args = (f"{self.args[0]}\n{grid}",)


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a schedule.

    hold i: keep boundary i until `drop i`.
    run i: forward without a tape; boundary i + 1 becomes current, boundary i goes unless held.
    record i: forward with a tape; boundary i + 1 becomes current.
    reverse i: VJP of tape i with the cotangent of boundary i + 1; frees both, gives the cotangent of boundary i.
    drop i: let held boundary i go.
    offload i place / fetch i: what tape i saves moves out, and comes back as fresh copies.
    offload_held i place / fetch_held i: the same for held boundary i.
    """

    kind: Kind
    block: int
    place: Place | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.block}" + (f" {self.place}" if self.place else "")


def format_actions(actions: Sequence[Action]) -> str:
    """Compact text: `record 0..1; hold 2; run 2..4; ...`; neighbours of one kind that count up or down are joined."""
    words: list[str] = []
    at = 0
    while at < len(actions):
        first, end = actions[at], at + 1
        step = actions[end].block - first.block if end < len(actions) else 0
        if first.kind in _COMPUTES and step in (1, -1):
            while (
                end < len(actions)
                and actions[end].kind == first.kind
                and actions[end].block - actions[end - 1].block == step
            ):
                end += 1
        last = actions[end - 1]
        words.append(str(first) if end - at == 1 else f"{first.kind} {first.block}..{last.block}")
        at = end
    return "; ".join(words)


def parse_actions(text: str) -> tuple[Action, ...]:
    """Actions from the text of `format_actions`.

    Raises PlanError at the first piece that is no action.
    """
    actions: list[Action] = []
    for number, piece in enumerate(p.strip() for p in text.split(";")):
        if not piece and not text.strip():
            break
        match = _WORD.fullmatch(piece)
        kind, first, last, place = match.groups() if match else ("", "", "", "")
        if (
            kind not in KINDS
            or (place is not None and place not in PLACES)
            or ((place is None) == (kind in _MOVES_OUT))
        ):
            raise PlanError(
                got=repr(piece),
                wanted=f"one of {', '.join(KINDS)}, a block number, and host or disk after offload and offload_held",
                where=f"actions, piece {number}",
                next_step="write actions as format_actions prints them, such as `record 0..1; hold 2; run 2..4`",
            )
        low, high = int(first), int(last if last is not None else first)
        blocks = range(low, high + 1) if high >= low else range(low, high - 1, -1)
        actions.extend(Action(cast(Kind, kind), block, cast("Place | None", place)) for block in blocks)
    return tuple(actions)


def grid(rows: Sequence[tuple[int, str, str]], n: int, *, fault: int | None = None) -> str:
    """Blocks across, time down; the row of the fault is pointed at.

    Args:
        rows: one (block, mark, words) a step; the mark is drawn in the block's column, the words stand at the end.
        n: number of blocks.
        fault: index of the row to point at; len(rows) points below the last.

    Of long schedules and chains the part around the fault is shown (21 steps, 24 blocks).
    """
    middle = fault if fault is not None else 0
    top = max(0, min(middle - 15, len(rows) - 21))
    focus = rows[min(middle, len(rows) - 1)][0] if rows else 0
    left = max(0, min(focus - 12, n - 24))
    columns = range(left, min(n, left + 24))
    lines = ["   step  " + "".join(f"{c:>2}"[-2:] for c in columns) + ("   (blocks)" if columns else "")]
    for i in range(top, min(len(rows), top + 21)):
        block, mark, words = rows[i]
        cells = "".join(f" {mark}" if c == block else " ." for c in columns)
        lines.append(f"{'->' if i == fault else '  '} {i:>4}  {cells}   {words}")
    if fault is not None and fault >= len(rows):
        lines.append(f"-> {len(rows):>4}  {' ' * (2 * len(columns))}   (the end)")
    return "\n".join(lines)


def validate_actions(actions: Iterable[Action], n: int) -> None:
    """Can an executor obey these over n blocks, the loss last?  Every block is reversed once, n - 1 first.

    Raises PlanError with the grid, pointing at the first action that cannot be obeyed.
    """
    actions = tuple(actions)
    current: int | None = 0
    held: dict[int, str] = {}  # boundary -> "here" or the place it was moved to
    tapes: dict[int, str] = {}
    next_reverse = n - 1

    def wrong(at: int, got: str, wanted: str, next_step: str) -> PlanError:
        rows = [(a.block, MARKS.get(a.kind, "?"), str(a)) for a in actions]
        return PlanError(
            got=got, wanted=wanted, where=f"action {at}", next_step=next_step, grid=grid(rows, n, fault=at)
        )

    for at, action in enumerate(actions):
        kind, i = action.kind, action.block
        if not 0 <= i < n:
            raise wrong(at, f"`{action}`", f"a block from 0 to {n - 1}", "make the plan for this chain")
        if (action.place is not None) != (kind in _MOVES_OUT):
            raise wrong(at, f"`{action}`", "a place with offload and offload_held, none elsewhere", "add or remove it")
        if kind in ("run", "record"):
            if i != current and i != 0 and held.get(i) != "here":
                state = f"held boundary {i} is on {held[i]}" if i in held else f"boundary {i} is gone"
                raise wrong(
                    at, f"`{action}` where {state}", f"boundary {i} current or held", f"`hold {i}` before it goes"
                )
            if kind == "record" and i in tapes:
                raise wrong(at, f"`{action}` twice", "one tape a block", f"reverse tape {i} first")
            if i > next_reverse:
                raise wrong(at, f"`{action}` after its reverse", f"a block up to {next_reverse}", "leave it out")
            if kind == "run" and i == n - 1:
                raise wrong(at, f"`{action}` of the loss", "the loss recorded, never run twice", f"`record {i}`")
            if kind == "record":
                tapes[i] = "here"
            current = i + 1
        elif kind == "hold":
            if i in held:
                raise wrong(at, f"`{action}` twice", "a boundary held once", f"`drop {i}` first, or hold it once")
            if i != current and i != 0:
                raise wrong(
                    at, f"`{action}` where boundary {i} is not current", "a boundary at hand", "hold it earlier"
                )
            held[i] = "here"
        elif kind == "drop":
            if held.pop(i, None) is None:
                raise wrong(at, f"`{action}` of what is not held", f"`hold {i}` before it", "leave the drop out")
        elif kind == "reverse":
            if i != next_reverse:
                raise wrong(at, f"`{action}`", f"`reverse {next_reverse}`: blocks are reversed last first", "reorder")
            if tapes.get(i) != "here":
                state = f"its tape is on {tapes[i]}" if i in tapes else "it has no tape"
                raise wrong(at, f"`{action}` where {state}", "a tape at hand", f"`record {i}` or `fetch {i}` before it")
            del tapes[i]
            next_reverse -= 1
            current = None
        else:
            store = held if kind.endswith("_held") else tapes
            what = f"held boundary {i}" if kind.endswith("_held") else f"tape {i}"
            if kind == "offload_held" and i == 0:
                raise wrong(at, f"`{action}`", "a boundary of ours: the data is the caller's", "leave it out")
            out = kind in _MOVES_OUT
            if i not in store or (store[i] == "here") != out:
                state = "is not there" if i not in store else "is here" if not out else f"is on {store[i]}"
                raise wrong(
                    at, f"`{action}` where {what} {state}", "out once, back once", "pair each move out with one back"
                )
            store[i] = (action.place or "here") if out else "here"
    if next_reverse >= 0:
        raise wrong(len(actions), f"the end with block {next_reverse} not reversed", "every block reversed", "add it")
    if tapes or held:
        left = [f"tape {i}" for i in tapes] + [f"held boundary {i}" for i in held]
        raise wrong(len(actions), f"the end with {left[0]} left", "nothing left over", "drop what was held")
