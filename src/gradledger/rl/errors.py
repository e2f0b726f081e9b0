"""What the environments, the replay and the evaluation refuse."""

from __future__ import annotations

from gradledger.core.errors import GradledgerError


class EnvError(GradledgerError):
    """An environment was described, stepped or restored in a way that it cannot follow."""

    slug = "env"


class ReplayError(GradledgerError):
    """A replay was given something it cannot store, or asked for what it does not hold."""

    slug = "replay"
