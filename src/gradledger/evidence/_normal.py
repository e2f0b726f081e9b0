"""The normal and Student's t distribution and the binomial one, as far as intervals need them; no scipy at run time."""

from __future__ import annotations

import math
from statistics import NormalDist


def normal_cdf(x: float) -> float:
    """P(Z <= x)."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def normal_quantile(probability: float) -> float:
    """The point below which Z lies with `probability`."""
    return NormalDist().inv_cdf(probability)


def t_quantile(probability: float, freedom: int) -> float:
    """The point below which Student's t lies with `probability` (0.5 or above, below 1)."""
    low, high = 0.0, 1.0
    while _t_below(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, freedom) < probability else (low, middle)
        if high - low <= 1e-13 * high:
            break
    return (low + high) / 2


def _t_below(t: float, freedom: int) -> float:
    """P(T <= t) for t >= 0, by the finite sums for whole degrees of freedom; normal above 2000 of them."""
    if freedom > 2000:
        # first terms of the expansion in 1 / freedom
        z = t * (1 - 1 / (4 * freedom)) / math.sqrt(1 + t * t / (2 * freedom))
        return normal_cdf(z)
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2:
        term = total = cosine if freedom > 1 else 0.0
        for k in range(3, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = (angle + sine * total) * 2 / math.pi
    else:
        term = total = 1.0
        for k in range(2, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = sine * total
    return (1 + inside) / 2


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) of n draws with chance p."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    logs = math.log(p), math.log1p(-p)
    whole = math.lgamma(n + 1)
    below = k <= n * p  # sum the shorter tail
    terms = range(k + 1) if below else range(k + 1, n + 1)
    total = math.fsum(
        math.exp(whole - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * logs[0] + (n - i) * logs[1]) for i in terms
    )
    return min(1.0, total) if below else max(0.0, 1.0 - total)
