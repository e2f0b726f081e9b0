"""What is measured of a path from bytes to an answer: its latency, and what it says to malformed input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradledger.core.errors import GradledgerError
from gradledger.evidence import environment, latency

Stages = Sequence[tuple[str, Callable[[Any], Any]]]


def measured(stages: Stages, inputs: Sequence[Any], *, calls: int) -> latency.Latency:
    """Single calls with one thread of torch, whatever the number is outside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return latency.measure(stages, inputs, calls=calls)
    finally:
        torch.set_num_threads(threads)


def timed(stages: Stages, inputs: Sequence[Any], *, calls: int, what: str, more: str = "") -> dict[str, Any]:
    """`latency.json`. what: from where to where a call goes; more: what else has to be known."""
    about = (
        f"{calls} single calls from {what}, in random order, on a CPU with one thread{more}; the first call is told "
        "apart and is in no quantile. ms."
    )
    told = measured(stages, inputs, calls=calls).record()
    return {"about": about, "threads": 1, "cpu": environment.hardware()["cpu"], **told}


def refusals(
    malformed: Mapping[str, Any], answer: Callable[[Any], Any], refusal: type[GradledgerError], *, what: str
) -> dict[str, Any]:
    """`rejections.json`: what `answer` says to each malformed input, where a refusal is a `refusal`."""
    rows = []
    for name, raw in malformed.items():
        try:
            answer(raw)
        except refusal as error:
            rows.append({"input": name, "answer": "refused", "got": error.got, "wanted": error.wanted})
        else:
            rows.append({"input": name, "answer": "answered", "got": "", "wanted": ""})
    return {"about": f"Malformed {what}, and what the path says to each.", "rows": rows}
