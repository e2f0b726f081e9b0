"""Lanes: vectorised environments with time limits, padding, episodes and an exact way to save and restore them.

ALE's vector environment offers no access to the emulator's state. But after a reset with a seed a lane depends on
nothing but that seed and what was sent to it since, so each lane keeps this short log, and restoring plays it again:
the result is the same to the bit. A lane is given a new seed at the first end of an episode after `reseed_after` steps,
which bounds the log; a reset with a seed reloads the game (90 ms for Pong) and is worth it about once in thousands
of steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.rl.errors import EnvError
from gradledger.rl.simulators import Simulator
from gradledger.rl.transition import Episode, Step

RESET = -1  # in a log: reset by our hand, without a seed


@dataclass(frozen=True)
class LaneSpec:
    """How lanes are seeded and when episodes are left.

    rng_seed: decides all seeds of all lanes. max_steps: an episode is truncated after so many of its steps (27,000 of 4
    frames are half an hour of play); None never. reseed_after: see the module. stagger: lane e plays
    e x stagger / E random steps before the first counted one, so that lanes are at different points of their games.
    """

    rng_seed: int = 0
    max_steps: int | None = 27_000
    reseed_after: int = 2_000
    stagger: int = 0


class Lanes:
    """E environments played in step. `reset`, then `send` and `receive` (or `step`), until enough is seen.

    Attributes: simulator, spec. `frames` (E, *O) is what the lanes show now, `starts` (E,) whether that is a first
    frame.
    """

    def __init__(self, simulator: Simulator, spec: LaneSpec) -> None:
        limit = spec.max_steps
        if (limit is not None and limit < 1) or spec.reseed_after < 1 or spec.stagger < 0 or spec.rng_seed < 0:
            raise EnvError(
                got=str(asdict(spec)),
                wanted="max_steps and reseed_after of at least 1, stagger and rng_seed of at least 0",
                where="rl.env.LaneSpec",
                next_step="correct the LaneSpec",
            )
        self.simulator = simulator
        self.spec = spec
        lanes = simulator.lanes
        self.frames: NDArray[Any] = np.zeros((lanes, *simulator.observation_shape), dtype=simulator.dtype)
        self.starts = np.ones(lanes, dtype=np.bool_)
        self._lives = np.zeros(lanes, dtype=np.int64)
        self._length = np.zeros(lanes, dtype=np.int64)
        self._return = np.zeros(lanes, dtype=np.float64)
        # After the end of an episode: the next step is padding; left by our limit, the game must be reset by our hand.
        self._padding = np.zeros(lanes, dtype=np.bool_)
        self._left = np.zeros(lanes, dtype=np.bool_)
        self._seedings = np.zeros(lanes, dtype=np.int64)
        self._seeds = np.zeros(lanes, dtype=np.int64)
        self._logs: list[list[int]] = [[] for _ in range(lanes)]
        self._sent: NDArray[np.int64] | None = None
        self._running = False

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides what is played, for the run record."""
        return {**self.simulator.settings, **asdict(self.spec)}

    def reset(self) -> NDArray[Any]:
        """Start all lanes anew, from the seeds that rng_seed gives. Returns the first frames (E, *O)."""
        lanes = self.simulator.lanes
        self._seedings[:] = 0
        self._sent = None
        self._seed(np.ones(lanes, dtype=np.bool_))
        self._running = True
        if self.spec.stagger:
            self._stagger()
        # Also a staggered lane's frame is the first that anyone sees of its episode.
        self.starts = np.ones(lanes, dtype=np.bool_)
        return self.frames

    def step(self, actions: NDArray[Any]) -> Step:
        """`send` and `receive` in one."""
        self.send(actions)
        return self.receive()

    def send(self, actions: NDArray[Any]) -> None:
        """Send (E,) integer actions; the simulator may play while the caller does something else.

        Raises:
            EnvError: not reset yet, the last step was not received, or an action that the environment does not have.
        """
        actions = np.ascontiguousarray(actions, dtype=np.int64)
        ready = self._running and self._sent is None
        fits = actions.shape == (self.simulator.lanes,) and bool(
            ((actions >= 0) & (actions < self.simulator.actions)).all()
        )
        if not ready or not fits:
            raise EnvError(
                got=f"actions {actions.tolist()}, {'reset' if self._running else 'not reset'}, "
                f"{'a step under way' if self._sent is not None else 'no step under way'}",
                wanted=f"{self.simulator.lanes} actions in 0..{self.simulator.actions - 1} after reset or receive",
                where="rl.env.Lanes.send",
                next_step="call reset once, then send and receive in turn",
            )
        self.simulator.send(actions)
        self._sent = actions

    def receive(self) -> Step:
        """What the actions brought. Lanes whose episode ended in the step before report padding and a first frame."""
        if self._sent is None:
            raise EnvError(
                got="receive",
                wanted="send before it",
                where="rl.env.Lanes.receive",
                next_step="send the actions first",
            )
        played = self.simulator.receive()
        for log, action in zip(self._logs, self._sent.tolist(), strict=True):
            log.append(action)
        self._sent = None

        padding, valid = self._padding, ~self._padding
        frames, lives = self._begin_episodes(padding, played.frames, played.lives)
        self._length += valid
        rewards = np.where(valid, played.rewards, 0.0).astype(np.float32)
        self._return += rewards
        terminated = played.terminated & valid
        limit = self.spec.max_steps
        truncated = valid & ~terminated & (self._length >= (limit if limit is not None else np.inf))
        life_lost = valid & (lives < self._lives)
        over = terminated | truncated
        episodes = tuple(
            Episode(int(lane), float(self._return[lane]), int(self._length[lane]), bool(truncated[lane]))
            for lane in np.nonzero(over)[0]
        )
        self._length[over] = 0
        self._return[over] = 0.0
        self._padding, self._left = over, truncated
        self._lives = lives.copy()
        self.frames, self.starts = frames, padding.copy()
        return Step(frames, rewards, terminated, truncated, life_lost, valid, padding, episodes)

    def close(self) -> None:
        """Let the simulator go."""
        self.simulator.close()

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and facts from which `load_state` goes on to the bit. Between `receive` and `send` only.

        The arrays hold at most about reseed_after plus one episode of actions a lane: a few kilobytes.
        """
        if not self._running or self._sent is not None:
            raise EnvError(
                got="a state asked for " + ("during a step" if self._running else "before reset"),
                wanted="a call between receive and send",
                where="rl.env.Lanes.state",
                next_step="receive the step under way first",
            )
        arrays: dict[str, NDArray[Any]] = {
            f"log.{lane}": np.asarray(log, dtype=np.int32) for lane, log in enumerate(self._logs)
        }
        arrays |= {name: array.copy() for name, array in self._small_arrays().items()}
        arrays["frames"] = np.ascontiguousarray(self.frames).copy()
        return arrays, {"settings": self.settings}

    def load_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Play the logs again until every lane is where it was; then compare what it shows.

        Takes about as long as the longest log took to play (Pong, 8 lanes: seconds).

        Raises:
            EnvError: the state is of an environment with other settings, or the replay ends at other frames.
        """
        ours, theirs = self.settings, facts["settings"]
        # The number of C++ threads decides how fast, not what.
        differ = sorted(
            key
            for key in ours.keys() | theirs.keys()
            if key not in ("threads", "num_threads") and ours.get(key) != theirs.get(key)
        )
        if differ:
            raise EnvError(
                got=", ".join(f"{key}={ours.get(key)!r}" for key in differ),
                wanted=", ".join(f"{key}={theirs.get(key)!r}" for key in differ),
                where="rl.env.Lanes.load_state",
                next_step="resume with the settings and package versions of the run that was saved",
            )
        lanes = self.simulator.lanes
        self._logs = [arrays[f"log.{lane}"].tolist() for lane in range(lanes)]
        for name, array in self._small_arrays().items():
            array[...] = arrays[name]  # they are ours alone: nothing that was handed out shares them
        shown = self._play_logs()
        if not np.array_equal(shown, arrays["frames"]):
            lane = int(np.nonzero((shown != arrays["frames"]).reshape(lanes, -1).any(axis=1))[0][0])
            raise EnvError(
                got=f"another picture in lane {lane} after its {len(self._logs[lane])} actions were played again",
                wanted="the frames that were saved",
                where="rl.env.Lanes.load_state",
                next_step="resume with the same ale-py or gymnasium and ROM; an environment that draws from a random "
                "stream of its own cannot be restored",
            )
        self.frames = shown
        self._sent = None
        self._running = True

    def _small_arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "starts": self.starts,
            "lives": self._lives,
            "length": self._length,
            "return": self._return,
            "padding": self._padding,
            "left": self._left,
            "seedings": self._seedings,
            "seeds": self._seeds,
        }

    def _seed(self, mask: NDArray[np.bool_]) -> None:
        """Reset the lanes in `mask` with their next seeds; their logs begin here."""
        for lane in np.nonzero(mask)[0]:
            drawn = np.random.SeedSequence([self.spec.rng_seed, int(lane), int(self._seedings[lane])])
            self._seeds[lane] = int(drawn.generate_state(1)[0] >> 1)  # ale-py takes 31 bits
            self._seedings[lane] += 1
            self._logs[lane] = []
        frames, lives = self.simulator.reset(mask, self._seeds[mask])
        self.frames = _merged(mask, frames, self.frames)
        self.starts = mask.copy()
        self._lives = np.where(mask, lives, self._lives)
        self._length[mask] = 0
        self._return[mask] = 0.0
        self._padding, self._left = self._padding & ~mask, self._left & ~mask

    def _begin_episodes(
        self, padding: NDArray[np.bool_], frames: NDArray[Any], lives: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Lanes in `padding` now show a new game, unless our limit left the old one or a new seed is due: see to it."""
        if not padding.any():
            return frames, lives
        due = padding & np.array([len(log) >= self.spec.reseed_after for log in self._logs])
        by_hand = self._left & ~due
        if by_hand.any():
            again, more = self.simulator.reset(by_hand, None)
            for lane in np.nonzero(by_hand)[0]:
                self._logs[lane].append(RESET)
            frames, lives = _merged(by_hand, again, frames), np.where(by_hand, more, lives)
        if due.any():
            self._seed(due)
            frames, lives = _merged(due, self.frames, frames), np.where(due, self._lives, lives)
        return frames, lives

    def _stagger(self) -> None:
        """Every lane plays at random; each is seeded again when its own share of steps is left."""
        lanes = self.simulator.lanes
        share = np.arange(lanes) * self.spec.stagger // lanes
        rng = np.random.default_rng([self.spec.rng_seed, lanes])
        for left in range(int(share.max()), 0, -1):
            begins = share == left
            if begins.any():
                self._seed(begins)
            self.step(rng.integers(0, self.simulator.actions, size=lanes))
        self._seed(share == 0)

    def _play_logs(self) -> NDArray[Any]:
        """Reset each lane with its seed when as many steps are left as its log holds; all arrive together."""
        lanes = self.simulator.lanes
        steps = np.array([sum(entry != RESET for entry in log) for log in self._logs])
        total = int(steps.max())
        everyone = np.ones(lanes, dtype=np.bool_)
        frames, _ = self.simulator.reset(everyone, self._seeds)
        at = np.zeros(lanes, dtype=np.int64)
        for tick in range(total):
            begins = (steps == total - tick) & (tick > 0)
            if begins.any():
                frames, _ = self.simulator.reset(begins, self._seeds[begins])
            playing = steps >= total - tick
            actions = np.zeros(lanes, dtype=np.int64)
            for lane in np.nonzero(playing)[0]:
                actions[lane] = self._logs[lane][at[lane]]
                at[lane] += 1
            self.simulator.send(actions)
            frames = self.simulator.receive().frames
            by_hand = np.array(
                [
                    bool(playing[lane]) and at[lane] < len(self._logs[lane]) and self._logs[lane][at[lane]] == RESET
                    for lane in range(lanes)
                ]
            )
            if by_hand.any():
                frames, _ = self.simulator.reset(by_hand, None)
                at += by_hand
        fresh = (steps == 0) & (total > 0)
        if fresh.any():
            frames, _ = self.simulator.reset(fresh, self._seeds[fresh])
        return np.array(frames)


def _merged(mask: NDArray[np.bool_], chosen: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """(E, *O): `chosen` where `mask` (E,), else `others`."""
    return np.where(mask.reshape(-1, *[1] * (chosen.ndim - 1)), chosen, others)
