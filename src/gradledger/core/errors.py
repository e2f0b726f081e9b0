"""One tree of errors.  Each has a slug, and its text says what was got, what was wanted, where, and what to do next."""

from __future__ import annotations


class GradledgerError(Exception):
    """Base of every error this library raises on purpose."""

    slug = "error"

    def __init__(self, *, got: str, wanted: str, where: str, next_step: str) -> None:
        self.got, self.wanted, self.where, self.next_step = got, wanted, where, next_step
        super().__init__(f"[{self.slug}] {where}: got {got}, wanted {wanted}. Next: {next_step}")


class UsageError(GradledgerError):
    """The command line or a call was given something it cannot use."""

    slug = "usage"


class LedgerError(GradledgerError):
    """A stored ledger is missing, torn, or of a version this library does not read."""

    slug = "ledger"


class RuleError(GradledgerError):
    """A rule file does not keep the contract of a rule."""

    slug = "rule"


class SweepError(GradledgerError):
    """A model, a plan or a call that the explicit reverse pass cannot carry out."""

    slug = "sweep"
