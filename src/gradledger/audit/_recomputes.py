"""A recomputed part that changes what it reads itself: the write, and what it makes of it the second time (S1, S2)."""

from __future__ import annotations

from gradledger.core.events import Recomputed


def follows(changed: Recomputed, write: Recomputed) -> bool:
    """Whether what comes out otherwise the second time does so because of a write that both runs make: they are of one
    function of the program, or a spectral norm made one step more."""
    if changed.what != "state" or write.what != "statistics" or write.op == "batch_norm":
        return False
    one, other = changed.op_site, write.op_site
    return write.op == "normalize" or (one.file, one.function, one.first_line) == (
        other.file, other.function, other.first_line,
    )  # fmt: skip
