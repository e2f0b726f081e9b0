"""Which moments are watched in full: the first iterations, samples of the later ones, and what follows a change."""

from __future__ import annotations

from collections.abc import Container

FULL_ITERATIONS = 20  # watched in full from the start
SAMPLE_EVERY = 50  # later: two consecutive iterations out of this many, and out of five times as many
SAMPLE_LESS_AFTER = 500  # from this iteration on
SAMPLE_LENGTH = 2
SUSPICION_LENGTH = 3  # iterations watched in full after something unusual
LATE_CALLS = 4  # of a change that has been watched often: an evaluation and two iterations after it
PHASE_CALLS = 12  # module calls watched in full after a change of phase (mode switch, new pass over a loader)


class Attention:
    """`wanted`: iterations to be watched in full whatever the sampling says; `calls_left`: of a change of phase."""

    def __init__(self) -> None:
        self.wanted: Container[int] = range(0)
        self.calls_left = 0
        self._suspicion_until = -1
        self._phases: dict[tuple[object, ...], tuple[int, int]] = {}  # how often, and when it was watched last

    def wants(self, iteration: int) -> bool:
        """Whether this moment is to be watched in full."""
        return (
            iteration < FULL_ITERATIONS
            or iteration % (SAMPLE_EVERY if iteration < SAMPLE_LESS_AFTER else 5 * SAMPLE_EVERY) < SAMPLE_LENGTH
            or iteration <= self._suspicion_until
            or self.calls_left > 0
            or iteration in self.wanted
        )

    def suspect(self, iteration: int) -> None:
        """Something unusual happened: the coming iterations."""
        self._suspicion_until = iteration + SUSPICION_LENGTH

    def phase_calls(self, iteration: int, key: tuple[object, ...]) -> int:
        """Count one more change of phase, told apart by `key`; how many calls after it are to be watched in full.

        The first eight changes, then every power of two, so that a loop of short epochs is not watched in full for
        ever; and briefly one in as many iterations as the late samples are apart.
        """
        seen, last = self._phases.get(key, (0, 0))
        seen += 1
        often = seen <= 8 or seen & (seen - 1) == 0
        due = often or iteration - last >= 5 * SAMPLE_EVERY
        self._phases[key] = (seen, iteration if due else last)
        return PHASE_CALLS if often else LATE_CALLS if due else 0

    def call_done(self) -> bool:
        """A call made by the program itself is complete; whether it was the last one to be watched."""
        if self.calls_left > 0:
            self.calls_left -= 1
            return self.calls_left == 0
        return False
