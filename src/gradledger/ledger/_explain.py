"""Which combination of known gradients a consumed gradient is: sums over all elements, solved in double precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

SLACK = 256  # roundings, each of the precision of the gradients, that a sum may be off and still count as equal
TIED = 5e-9  # gradients whose cosine is this near to 1 or -1 cannot be told apart
FLAT = 1e-8  # least eigenvalue of the cosines below which coefficients cannot be found

Vector = Mapping[int, torch.Tensor]  # a gradient in parts: number of the leaf -> its part


@dataclass(frozen=True, slots=True)
class Solution:
    """`fit`: "written", "scaled", "free" or "none" (see `OracleExplained`); per column its coefficient, how exactly it
    is known (infinity: not at all), and the number of the tie that it is in (0: none)."""

    fit: str
    coefficients: tuple[float, ...]
    bounds: tuple[float, ...]
    ties: tuple[int, ...]
    scale: float
    residual: float
    tolerance: float


@dataclass(slots=True)
class _Sums:
    """Dot products of all columns, of each with the consumed gradient, and of that with itself."""

    gram: torch.Tensor
    right: torch.Tensor
    total: float
    norms: list[float] = field(default_factory=list)


def solve(consumed: Vector, columns: Sequence[Vector], written: Sequence[float]) -> Solution:
    """Explain `consumed` by `columns`, first as `written`, then all of it scaled, then freely."""
    sums = _sums(consumed, columns)
    expected = torch.tensor(list(written), dtype=torch.float64)
    tolerance = SLACK * max(torch.finfo(g.dtype).eps for g in consumed.values())
    ties, leads = _ties(sums)
    tries = [("written", 1.0, expected)]
    along = float(expected @ sums.right)
    size = float(expected @ sums.gram @ expected)
    if size > 0 and along != 0:
        tries.append(("scaled", along / size, expected * (along / size)))
    free, apart = _free(sums, expected, leads)
    if free is not None:
        tries.append(("free", 1.0, free))
    best: Solution | None = None
    for fit, scale, found in tries:
        left = _left(consumed, columns, found)
        weighed = sums.total + sum(abs(float(c)) * n for c, n in zip(found, sums.norms, strict=True))
        relative = left / weighed if weighed > 0 else 0.0
        bounds = tuple(tolerance * weighed / n if n > 0 and apart else float("inf") for n in sums.norms)
        one = Solution(fit, tuple(found.tolist()), bounds, ties, scale, relative, tolerance)
        if relative <= tolerance:
            return one
        if best is None or relative < best.residual:
            best = one
    assert best is not None
    return Solution("none", best.coefficients, best.bounds, ties, best.scale, best.residual, tolerance)


def _rows(leaf: int, like: torch.Tensor, columns: Sequence[Vector]) -> torch.Tensor:
    """One row a column: its part at this leaf, in double precision."""
    zero = torch.zeros(like.numel(), dtype=torch.float64, device=like.device)
    return torch.stack([c[leaf].detach().double().reshape(-1) if leaf in c else zero for c in columns])


def _sums(consumed: Vector, columns: Sequence[Vector]) -> _Sums:
    n = len(columns)
    sums = _Sums(torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64), 0.0)
    squared = 0.0
    for leaf, gradient in consumed.items():
        wide = gradient.detach().double().reshape(-1)
        rows = _rows(leaf, gradient, columns)
        sums.gram += (rows @ rows.T).cpu()
        sums.right += (rows @ wide).cpu()
        squared += float(wide @ wide)
    sums.total = squared**0.5
    sums.norms = sums.gram.diagonal().clamp(min=0).sqrt().tolist()
    return sums


def _left(consumed: Vector, columns: Sequence[Vector], found: torch.Tensor) -> float:
    """Norm of what the combination leaves over."""
    squared = 0.0
    for leaf, gradient in consumed.items():
        rows = _rows(leaf, gradient, columns)
        rest = gradient.detach().double().reshape(-1) - found.to(rows.device) @ rows
        squared += float(rest @ rest)
    return float(squared**0.5)


def _ties(sums: _Sums) -> tuple[tuple[int, ...], list[int]]:
    """Columns in one direction get one number (0: alone); `leads`: for each column the first of its direction."""
    n = len(sums.norms)
    leads = list(range(n))
    for i in range(n):
        for j in range(i):
            both = sums.norms[i] * sums.norms[j]
            if leads[j] == j and leads[i] == i and both > 0 and 1 - abs(float(sums.gram[i, j])) / both < TIED:
                leads[i] = j
    tied = {lead for i, lead in enumerate(leads) if lead != i}
    numbers = {lead: k for k, lead in enumerate(sorted(tied), start=1)}
    return tuple(numbers.get(lead, 0) for lead in leads), leads


def _free(sums: _Sums, expected: torch.Tensor, leads: Sequence[int]) -> tuple[torch.Tensor | None, bool]:
    """Least squares, and whether the directions are independent; without that there is no one answer.

    Tied columns share what is found for their direction as `expected` would have it.
    """
    kept = [i for i, lead in enumerate(leads) if lead == i and sums.norms[i] > 0]
    if not kept:
        return None, True
    norms = torch.tensor([sums.norms[i] for i in kept], dtype=torch.float64)
    cosines = sums.gram[kept][:, kept] / norms[:, None] / norms
    if float(torch.linalg.eigvalsh(cosines)[0]) < FLAT:
        return None, False
    solved = torch.linalg.solve(cosines, sums.right[kept] / norms) / norms
    found = torch.zeros_like(expected)
    for lead, value in zip(kept, solved.tolist(), strict=True):
        members = [i for i, other in enumerate(leads) if other == lead]
        ratios = [float(sums.gram[i, lead]) / sums.norms[lead] ** 2 for i in members]
        hoped = sum(float(expected[i]) * r for i, r in zip(members, ratios, strict=True))
        for i, ratio in zip(members, ratios, strict=True):
            found[i] = float(expected[i]) * value / hoped if hoped else value / ratio / len(members)
    return found, True


__all__ = ["SLACK", "Solution", "Vector", "solve"]
