"""What the presets of `dqn_atari` set; all else is as `Args` has it. What each is for stands in its `RECIPE`."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "seed": {},
    "smoke": {
        "total_steps": 3_000,
        "replay": 2_000,
        "learning_starts": 500,
        "target_sync": 500,
        "epsilon_steps": 2_000,
        "eval_episodes": 2,
        "log_every": 500,
        "checkpoint_every": 1_500,
    },
    "pong-fast": {"double": True, "n_step": 3, "update_every": 1},
    "pong-hour": {
        "total_steps": 260_000,
        "double": True,
        "initial": "he",
        "n_step": 5,
        "priority": 0.5,
        "update_every": 2,
        "target_sync": 1_000,
        "learning_rate": 2.5e-4,
        "learning_rate_last": 2e-5,
        "learning_rate_steps": 220_000,
        "epsilon_last": 0.01,
    },
}
