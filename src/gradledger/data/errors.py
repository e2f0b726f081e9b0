"""What data code refuses."""

from __future__ import annotations

from gradledger.core.errors import GradledgerError


class DataError(GradledgerError):
    """A file, an argument or a set of samples that cannot be used."""

    slug = "data"


class SchemaError(DataError):
    """A schema that contradicts itself, or a batch that does not keep it."""

    slug = "schema"


class SplitError(DataError):
    """Samples that cannot be split as asked, or a split that does not hold what it says."""

    slug = "split"


class LoaderError(DataError):
    """A loader that could not be exact, or a position that belongs to another loader."""

    slug = "loader"


class LearnabilityError(DataError):
    """A goal that no model can reach on this data."""

    slug = "learnability"


class LeRobotError(DataError):
    """A folder that is no whole LeRobotDataset v3, or data that cannot become one."""

    slug = "lerobot"
