"""A replay of frames: every frame is kept once, as it came, in a ring of rows x lanes.

Stacks are rebuilt when a transition is drawn, with zeros before the start of an episode, and n-step windows are folded
then too, so that rewards stay raw and n, gamma and the clip may change without a new replay. One row is one step of
all lanes; the real last frame of an episode lies in the padding row that follows its end.

Draws are uniform, or in proportion to how far off the values of a transition were when it was learned from last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradledger.rl.errors import ReplayError
from gradledger.rl.nstep import window
from gradledger.rl.priority import PriorityTree
from gradledger.rl.transition import Batch

# After this many rounds of drawing without a hit the drawable transitions are listed instead.
ROUNDS = 8
# Added to every error, so that a transition whose value was right is still drawn now and then.
LEAST_ERROR = 1e-6


@dataclass(frozen=True)
class ReplaySpec:
    """What a replay holds. capacity: frames over all lanes, rounded down to whole rows.

    lanes: E. observation_shape, dtype: one frame, O. stack: S frames in a state; 1 gives states without a stack axis.
    n_step: longest window. gamma: discount per step. reward_clip: each reward is clamped to +- this when drawn; None
    leaves it. life_loss_terminates: a lost life ends a window without a bootstrap (the stack goes on).
    priority: exponent of prioritised draws, see `Replay.prioritise`; 0 draws uniformly.
    """

    capacity: int
    lanes: int
    observation_shape: tuple[int, ...]
    dtype: str = "uint8"
    stack: int = 4
    n_step: int = 1
    gamma: float = 0.99
    reward_clip: float | None = 1.0
    life_loss_terminates: bool = False
    priority: float = 0.0

    @property
    def rows(self) -> int:
        """Rows of the ring."""
        return self.capacity // self.lanes

    def check(self) -> None:
        """Refuse sizes that cannot hold one window, with the smallest capacity that does."""
        need = self.stack + self.n_step + 1
        if self.lanes < 1 or self.stack < 1 or self.n_step < 1 or self.rows < need:
            raise ReplayError(
                got=f"capacity={self.capacity}, lanes={self.lanes}, stack={self.stack}, n_step={self.n_step}",
                wanted="sizes of at least 1 and stack + n_step + 1 rows",
                where="rl.replay.ReplaySpec",
                next_step=f"use a capacity of at least {need * max(self.lanes, 1)}",
            )
        if not 0.0 <= self.gamma <= 1.0 or (self.reward_clip is not None and not self.reward_clip > 0):
            raise ReplayError(
                got=f"gamma={self.gamma}, reward_clip={self.reward_clip}",
                wanted="gamma in [0, 1] and a clip above 0 or None",
                where="rl.replay.ReplaySpec",
                next_step="pass a discount per step such as 0.99 and a clip such as 1.0",
            )
        if not 0.0 <= self.priority <= 1.0:
            raise ReplayError(
                got=f"priority={self.priority}",
                wanted="an exponent in [0, 1]",
                where="rl.replay.ReplaySpec",
                next_step="pass 0 for uniform draws, or an exponent such as 0.6",
            )


class Replay:
    """The ring. `add` one row a step, `sample` a batch with the caller's random generator.

    Memory is capacity x bytes of a frame, about 10 bytes a frame for the rest: 50,000 frames of 84 x 84 are 353 MB,
    allocated at once, touched by the system only as rows fill.
    """

    def __init__(self, spec: ReplaySpec) -> None:
        spec.check()
        self.spec = spec
        shape = (spec.rows, spec.lanes)
        self._frames: NDArray[Any] = np.zeros((*shape, *spec.observation_shape), dtype=np.dtype(spec.dtype))
        self._action = np.zeros(shape, dtype=np.int32)
        self._reward = np.zeros(shape, dtype=np.float32)
        self._terminated = np.zeros(shape, dtype=np.bool_)
        self._truncated = np.zeros(shape, dtype=np.bool_)
        self._life_lost = np.zeros(shape, dtype=np.bool_)
        self._valid = np.zeros(shape, dtype=np.bool_)
        self._start = np.zeros(shape, dtype=np.bool_)
        self._added = 0  # rows ever added; row r lies at r % rows
        self._tree = PriorityTree(spec.rows * spec.lanes) if spec.priority else None
        self._highest = 1.0  # of all priorities ever: what nobody has learned from yet comes soon

    def __len__(self) -> int:
        """Real transitions in the ring, those included that cannot be drawn yet."""
        return int(self._valid[: min(self._added, self.spec.rows)].sum())

    @property
    def nbytes(self) -> int:
        """Bytes that the ring occupies when it is full, the sums over priorities included."""
        sums = self._tree.nbytes - self._tree.values.nbytes if self._tree else 0
        return sums + sum(array.nbytes for array in self._arrays().values())

    def add(
        self,
        frames: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        *,
        life_lost: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        starts: NDArray[np.bool_],
    ) -> None:
        """Add one row: what each lane showed (E, *O), what was done there, and what it brought; all others (E,).

        `valid` is False for a padding step, whose frame is the last of its episode; `starts` marks first frames.

        Raises:
            ReplayError: shape or dtype of the frames is not the replay's.
        """
        if frames.shape != self._frames.shape[1:] or frames.dtype != self._frames.dtype:
            raise ReplayError(
                got=f"frames {frames.dtype} {frames.shape}",
                wanted=f"{self._frames.dtype} {self._frames.shape[1:]}",
                where="rl.replay.Replay.add",
                next_step="build the ReplaySpec from the environment's own shape and dtype",
            )
        at = self._added % self.spec.rows
        self._frames[at] = frames
        self._action[at] = actions
        self._reward[at] = np.where(valid, rewards, 0.0)
        # A padding row ends nothing: what it reports belongs to no episode.
        self._terminated[at] = terminated & valid
        self._truncated[at] = truncated & valid
        self._life_lost[at] = life_lost & valid
        self._valid[at] = valid
        self._start[at] = starts
        if self._tree:
            first = at * self.spec.lanes
            self._tree.set(np.arange(first, first + self.spec.lanes), np.where(valid, self._highest, 0.0))
        self._added += 1

    def drawable(self) -> NDArray[np.bool_]:
        """(rows, E) bool in the order of age, oldest row first: which transitions `sample` may draw."""
        oldest, newest = self._span()
        rows = np.repeat(np.arange(oldest, newest + 1), self.spec.lanes)
        lanes = np.tile(np.arange(self.spec.lanes), newest + 1 - oldest)
        return self._may_draw(rows, lanes).reshape(-1, self.spec.lanes)

    def sample(self, size: int, rng: np.random.Generator, *, correction: float = 1.0) -> Batch:
        """Draw `size` transitions with replacement from the drawable ones: uniformly, or by `ReplaySpec.priority`.

        Never drawn: padding; windows that reach beyond the newest row; states whose stack reaches into overwritten
        rows.

        Args:
            correction: exponent of the importance weights of prioritised draws. 1 makes up for the unequal
                probabilities in full, 0 not at all. The largest weight of a batch is 1.

        Raises:
            ReplayError: nothing can be drawn yet.

        Reference: Schaul, Quan, Antonoglou and Silver, Prioritized Experience Replay, 2016 (proportional variant).
        """
        rows, lanes = self._draw(size, rng)
        weight = np.ones(size, dtype=np.float32)
        if self._tree and size:
            drawn = self._tree.values[self._leaf(rows, lanes)]
            # The count of transitions and the sum of priorities divide out against the largest weight.
            weight = ((drawn / drawn.min()) ** -correction).astype(np.float32)
        return self._gather(rows, lanes, weight)

    def prioritise(self, slot: torch.Tensor, error: torch.Tensor) -> None:
        """Say how far off the values of drawn transitions were; they are drawn in proportion to error ** `priority`.

        Args:
            slot: (B,) int64, of the batch. A transition that was overwritten since is passed over.
            error: (B,) sizes of the errors, at least 0, finite. A transition drawn twice takes the last one.

        Raises:
            ReplayError: the replay draws uniformly, or an error is negative or no finite number.
        """
        sizes = error.detach().cpu().to(torch.float64).numpy()
        if self._tree is None or not (np.isfinite(sizes).all() and (sizes >= 0).all()):
            raise ReplayError(
                got="a replay with priority=0" if self._tree is None else f"errors from {sizes.min()} to {sizes.max()}",
                wanted="prioritised draws, and finite errors of at least 0",
                where="rl.replay.Replay.prioritise",
                next_step="build the ReplaySpec with priority=0.6, and pass the absolute errors of the drawn batch",
            )
        rows, lanes = np.divmod(slot.cpu().numpy(), self.spec.lanes)
        oldest, newest = self._span()
        here = (rows >= oldest) & (rows <= newest)
        values = (sizes[here] + LEAST_ERROR) ** self.spec.priority
        self._tree.set(self._leaf(rows[here], lanes[here]), values)
        self._highest = max([self._highest, *values.tolist()])

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """The filled part of the ring as tensors (views, in order of the ring) and its position."""
        filled = min(self._added, self.spec.rows)
        tensors = {name: torch.from_numpy(array[:filled]) for name, array in self._arrays().items()}
        return tensors, {"added": self._added, **({"highest": self._highest} if self._tree else {})}

    def load_state(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, float]) -> None:
        """Take over what `state` returned, from a replay of the same spec.

        Raises:
            ReplayError: names, shapes or dtypes are not this replay's.
        """
        arrays = self._arrays()
        added = int(facts["added"])
        filled = min(added, self.spec.rows)
        for name, array in arrays.items():
            given = tensors[name].numpy() if name in tensors else None
            if given is None or given.shape != (filled, *array.shape[1:]) or given.dtype != array.dtype:
                raise ReplayError(
                    got="nothing" if given is None else f"{given.dtype} {given.shape}",
                    wanted=f"{array.dtype} {(filled, *array.shape[1:])}",
                    where=f"rl.replay.Replay.load_state, array '{name}'",
                    next_step="resume with the capacity, lanes and observation of the run that was saved",
                )
            array[:filled] = given
        self._added = added
        if self._tree:
            self._tree.load(self._tree.values.copy())  # the sums above what was just put in
            self._highest = float(facts["highest"])

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "frames": self._frames,
            "action": self._action,
            "reward": self._reward,
            "terminated": self._terminated,
            "truncated": self._truncated,
            "life_lost": self._life_lost,
            "valid": self._valid,
            "start": self._start,
            **({"priority": self._tree.values.reshape(self.spec.rows, -1)} if self._tree else {}),
        }

    def _span(self) -> tuple[int, int]:
        return max(0, self._added - self.spec.rows), self._added - 1

    def _leaf(self, rows: NDArray[np.int64], lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the priorities of (row, lane) lie in the tree, rows counted since the first. (M,) each."""
        return rows % self.spec.rows * self.spec.lanes + lanes

    def _ends(self, at: NDArray[np.int64], lanes: NDArray[np.int64]) -> NDArray[np.bool_]:
        stops = self._terminated[at, lanes]
        return stops | self._life_lost[at, lanes] if self.spec.life_loss_terminates else stops

    def _may_draw(self, rows: NDArray[np.int64], lanes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these (row, lane), rows counted since the first, may be drawn. (M,) each."""
        oldest, newest = self._span()
        size, n, back = self.spec.rows, self.spec.n_step, self.spec.stack - 1
        good = self._valid[rows % size, lanes].copy()
        # The window: the row behind it must exist, be it the n-th or the one after an earlier end.
        # (What a stale row beyond the newest says only moves the reach within what is refused anyway.)
        reach = rows + n
        for j in range(n - 1, -1, -1):
            at = (rows + j) % size
            over = self._ends(at, lanes) | self._truncated[at, lanes]
            reach = np.where(over, rows + j + 1, reach)
        good &= reach <= newest
        # The stack: all of its rows are still there, or the episode began in one that is.
        whole = rows - back >= oldest
        if not whole.all():
            began = np.zeros_like(whole)
            for j in range(back):
                began |= (rows - j >= oldest) & self._start[(rows - j) % size, lanes]
            whole |= began
        return good & whole

    def _draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        oldest, newest = self._span()
        lanes_count = self.spec.lanes
        rows: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        lanes: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        missing = np.arange(count)
        for _ in range(ROUNDS if newest >= oldest else 0):
            if self._tree:
                at, lanes[missing] = np.divmod(self._tree.draw(rng.random(len(missing))), lanes_count)
                rows[missing] = oldest + (at - oldest) % self.spec.rows
            else:
                flat = rng.integers(oldest * lanes_count, (newest + 1) * lanes_count, size=len(missing))
                rows[missing], lanes[missing] = np.divmod(flat, lanes_count)
            missing = missing[~self._may_draw(rows[missing], lanes[missing])]
            if not len(missing):
                return rows, lanes
        age, lane = np.nonzero(self.drawable()) if newest >= oldest else (np.zeros(0, dtype=np.int64),) * 2
        if not len(age):
            raise ReplayError(
                got=f"{len(self)} transitions, none with a whole window and stack",
                wanted="at least one that can be drawn",
                where="rl.replay.Replay.sample",
                next_step=f"add at least {self.spec.stack + self.spec.n_step} rows before the first update",
            )
        if self._tree:
            likely = self._tree.values[self._leaf(age + oldest, lane)]
            chosen = rng.choice(len(age), size=len(missing), p=likely / likely.sum())
        else:
            chosen = rng.integers(0, len(age), size=len(missing))
        rows[missing], lanes[missing] = age[chosen] + oldest, lane[chosen]
        return rows, lanes

    def _gather(self, rows: NDArray[np.int64], lanes: NDArray[np.int64], weight: NDArray[np.float32]) -> Batch:
        size, n, clip = self.spec.rows, self.spec.n_step, self.spec.reward_clip
        at = (rows[:, None] + np.arange(n)) % size
        across = lanes[:, None]
        rewards = self._reward[at, across]
        if clip is not None:
            rewards = rewards.clip(-clip, clip)
        folded = window(rewards, self._ends(at, across), self._truncated[at, across], gamma=self.spec.gamma)
        return Batch(
            state=self._stacked(rows, lanes),
            action=torch.from_numpy(self._action[rows % size, lanes].astype(np.int64)),
            reward=torch.from_numpy(folded.reward),
            next_state=self._stacked(rows + folded.length, lanes),
            discount=torch.from_numpy(folded.discount),
            length=torch.from_numpy(folded.length),
            terminated=torch.from_numpy(folded.terminated),
            truncated=torch.from_numpy(folded.truncated),
            slot=torch.from_numpy(rows * self.spec.lanes + lanes),
            weight=torch.from_numpy(weight),
        )

    def _stacked(self, rows: NDArray[np.int64], lanes: NDArray[np.int64]) -> torch.Tensor:
        """(B, S, *O): the frame of each row behind the S - 1 before it, zeros before the start of its episode."""
        size, stack = self.spec.rows, self.spec.stack
        if stack == 1:
            return torch.from_numpy(self._frames[rows % size, lanes])
        back = (rows[:, None] - np.arange(stack - 1, -1, -1)) % size
        frames = self._frames[back, lanes[:, None]]
        begins = self._start[back, lanes[:, None]]
        # Position i is before the episode when an episode begins at a later position of the stack.
        later = np.logical_or.accumulate(begins[:, :0:-1], axis=1)[:, ::-1]
        hidden = np.nonzero(later)
        if len(hidden[0]):
            frames[hidden] = 0
        return torch.from_numpy(frames)
