"""What evidence refuses."""

from __future__ import annotations

from gradledger.core.errors import GradledgerError


class EvidenceError(GradledgerError):
    """Something that cannot become evidence."""

    slug = "evidence"


class PlanError(EvidenceError):
    """A plan that cannot be judged, that was edited after the first run, or a claim that cannot come out both ways."""

    slug = "plan"


class TrialError(EvidenceError):
    """A trial that is not a pure function of (config, rng_seed), or whose result cannot be recorded."""

    slug = "trial"


class StatisticsError(EvidenceError):
    """Numbers from which the statistic asked for cannot be computed."""

    slug = "statistics"


class CardError(EvidenceError):
    """A card with an empty section, or a number in it that refers to nothing in the folder."""

    slug = "card"


class BundleError(EvidenceError):
    """A folder that is no bundle, or that is not what was sealed."""

    slug = "bundle"


class ExportError(EvidenceError):
    """A folder that cannot be shown elsewhere: the other program is not there, or refuses."""

    slug = "export"
