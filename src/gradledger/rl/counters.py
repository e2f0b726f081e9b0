"""What a run counts. None of these is called "step": they differ by factors of four, eight and a thousand."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """The six counts.

    env_step: actions that had an effect, over all lanes (padding steps are none). frame: emulated frames of those
    steps, `frame_skip` each. optimizer_step: updates of the online network. target_sync: copies into the target
    network. episode: training episodes that ended. evaluated_episode: episodes played for evaluation, in
    environments of their own.
    """

    env_step: int = 0
    frame: int = 0
    optimizer_step: int = 0
    target_sync: int = 0
    episode: int = 0
    evaluated_episode: int = 0

    def state(self) -> dict[str, int]:
        """The counts by name, for a checkpoint or a record."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, int]) -> Counters:
        """The counters that `state` describes; an unknown or missing name is a TypeError."""
        return cls(**state)
