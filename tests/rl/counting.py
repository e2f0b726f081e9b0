"""An environment whose every frame says where it comes from, so that a wrong frame cannot pass for the right one.

A frame is (lane, episode, position in the episode). The reward of a step is the number of the step. Episodes end after
lengths that come from a list; some of them lose lives on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradledger.rl.simulators import Played


class Counting:
    """A `Simulator` of E lanes; lane e's episodes have `lengths[e]` steps in turn, cyclically; a life goes every
    `life_every` steps. `strays`: draws from a stream that no seed reaches, which breaks the promise of a simulator.
    """

    def __init__(self, lengths: list[list[int]], *, life_every: int = 0, strays: bool = False) -> None:
        self.lanes = len(lengths)
        self.actions = 3
        self.observation_shape = (3,)
        self.dtype: np.dtype[Any] = np.dtype(np.int32)
        self.frame_skip = 4
        self.settings: dict[str, Any] = {"simulator": "counting", "lengths": lengths, "life_every": life_every}
        self.sent: list[NDArray[np.int64]] = []
        self.resets: list[tuple[int, int | None]] = []
        self._lengths = lengths
        self._life_every = life_every
        self._strays = np.random.default_rng() if strays else None
        self._episode = np.zeros(self.lanes, dtype=np.int64)
        self._position = np.zeros(self.lanes, dtype=np.int64)
        self._ended = np.zeros(self.lanes, dtype=np.bool_)
        self._mark = np.zeros(self.lanes, dtype=np.int64)

    def _frames(self) -> NDArray[Any]:
        strays = 0 if self._strays is None else self._strays.integers(1, 1000)
        lanes = np.arange(self.lanes)
        return np.stack([lanes + strays, self._mark * 1000 + self._episode, self._position], axis=1).astype(np.int32)

    def _lives(self) -> NDArray[np.int64]:
        lost = self._position // self._life_every if self._life_every else 0
        return np.full(self.lanes, 100, dtype=np.int64) - lost

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64] | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        for number, lane in enumerate(np.nonzero(mask)[0]):
            self.resets.append((int(lane), None if seeds is None else int(seeds[number])))
            self._position[lane] = 0
            self._ended[lane] = False
            if seeds is None:
                self._episode[lane] += 1
            else:
                self._episode[lane] = 0
                self._mark[lane] = seeds[number] % 1000
        return self._frames(), self._lives()

    def send(self, actions: NDArray[np.int64]) -> None:
        self.sent.append(actions.copy())

    def receive(self) -> Played:
        resets = self._ended.copy()
        self._episode[resets] += 1
        self._position = np.where(resets, 0, self._position + 1)
        target = np.array([mine[self._episode[lane] % len(mine)] for lane, mine in enumerate(self._lengths)])
        self._ended = ~resets & (self._position >= target)
        rewards = np.where(resets, 0, self._position).astype(np.float32)
        return Played(self._frames(), rewards, self._ended.copy(), self._lives())

    def close(self) -> None: ...
