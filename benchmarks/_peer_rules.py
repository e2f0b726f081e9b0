"""What the rules of other tools mean in the words of the catalogue, and how their findings are counted.

The reading is generous.  A rule stands for every fault of the catalogue that a person who reads its message would go
and look for, so it may "find" faults it was not written for.  Rules that only advise (speed, memory layout, deprecated
names, style) are never counted against a tool: what they say is true of correct programs too.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from fastscore import short

Said = tuple[Mapping[str, Any], tuple[str, ...]]  # a finding and what its rule stands for
SHOWN = 6  # rules named of one script
ADVICE = "advice"  # marks a rule whose message is never a false alarm
ANY = "any"  # marks a rule that says that something is other than in a correct run, and not what: any fault will do

# tool -> rule -> codes of the catalogue; a rule that is not here stands for no fault and counts as an alarm
MEANS: dict[str, dict[str, tuple[str, ...]]] = {
    "torch-preflight": {
        "TG001": ("G15",),  # a tensor with its graph is kept
        "TG002": ("G16",),  # evaluation without no_grad
        "TG003": ("G1", "G3"),  # backward in a loop without zero_grad
        "TG004": (ADVICE,),  # loader settings
        "TG005": ("L1",),  # softmax before cross entropy
        "TG006": ("L1",),  # sigmoid and binary cross entropy
        "TG007": (ADVICE,),  # waits for the device
        "TG008": ("D3", ADVICE),  # not seeded
        "TG010": (ADVICE,),  # memory projection, off unless a device is named
        "TG011": ("E2",),  # eval() is never undone
        "TG012": ("X2",),  # no distributed sampler
        "TG013": (ADVICE,),  # transfers
        "TG014": ("G8", "G22"),  # accumulation without scaling
    },
    "torchfix": {
        "TOR0": (ADVICE,),  # removed functions, checkpoint without use_reentrant
        "TOR002": ("M7", "M11"),  # `require_grad` assigned
        "TOR1": (ADVICE,),  # deprecated or non-public names, torch.load, expm1 and log1p
        "TOR2": (ADVICE,),  # torchvision
        "TOR4": (ADVICE,),  # noisy ones, off by default
        "TOR9": (ADVICE,),
    },
    "guardtower": {
        "loss": ("G10", "G13"),  # no graph, not finite, not a scalar
        "backward": ("G10", "G5", "G18"),  # backward raised
        "grad_connectivity": ("G20", "G10", "G11", "G2", "G19", "M4", "M5", "T5"),  # no gradient, or one of zeros
        "optimizer_coverage": ("M7", "M4", "M5", "T5"),  # trainable but in no optimizer
        "frozen": ("M7", "M11", ADVICE),
        "weight_tying": ("T3", ADVICE),
        "nonfinite": ("G13",),
        "dead_relu": (),
        "grad_norms": ("G13", "G19"),
        "device_dtype": ("M2", ADVICE),
        "train_mode": ("E2",),
        "lora": (ADVICE,),
    },
    "torch-audit": {
        "TA000": (ADVICE,),  # a validator failed
        "TA100": ("G13",),
        "TA102": ("G13", "G1", "G3"),  # gradient norm explodes
        "TA103": ("G2", "G11", "G19", "G20"),  # gradients of zeros
        "TA104": ("G2", "G4", "G10", "M5", "T5"),  # no gradients at all
        "TA105": (),  # activations of zeros
        "TA2": (ADVICE,),  # alignment, layout, device, precision
        "TA300": ("M2",),
        "TA304": ("L2", ADVICE),  # tiny batch
        "TA400": (ADVICE,),
        "TA401": (ADVICE,),
        "TA402": (ADVICE,),
        "TA403": (ADVICE,),
        "TA404": (ADVICE,),
        "TA500": ("G20", "M4"),  # a layer is never called
        "TA501": ("M8", "S2", "T4"),  # a layer with state is called repeatedly
    },
}


def meaning(tool: str, rule: str) -> tuple[str, ...]:
    """Codes that a rule stands for, and ADVICE; the longest beginning of its name that is in the table decides."""
    if tool == "gradledger":
        return (short(rule),)
    if tool == "traincheck":
        return (ANY,)  # an invariant of a correct run that does not hold
    table = MEANS[tool]
    for end in range(len(rule), 2, -1):
        if rule[:end] in table:
            return table[rule[:end]]
    return ()


@dataclass
class Count:
    """One tool over the scripts that it was run on."""

    tool: str
    scripts: int = 0
    faults: int = 0
    found: list[str] = field(default_factory=list)
    located: list[str] = field(default_factory=list)
    correct: int = 0
    alarmed: list[str] = field(default_factory=list)  # correct programs
    misled: list[str] = field(default_factory=list)  # faulty programs with an alarm about something else
    advised: int = 0  # correct programs with nothing but advice
    broken: list[str] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    bare: dict[str, float] = field(default_factory=dict)  # of the program alone, where the tool brings its own figure
    before: float = 0.0  # CPU seconds spent before the first program could be checked

    def add(self, item: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Count one script: `item` of the manifest, `result` with findings, CPU seconds and how the script ended."""
        name = item["file"]
        self.scripts += 1
        if result.get("cpu") is not None:
            self.cpu[name] = result["cpu"]
        if result.get("bare_cpu"):
            self.bare[name] = result["bare_cpu"]
        self.before += result.get("reference_cpu") or 0.0
        if result.get("broke") and not item.get("loud"):
            self.broken.append(f"{name}: {result['broke']}")
        bugs = bugs_of(item)
        true = {short(b["code"]) for b in bugs} | {short(c) for c in item.get("also", [])}
        said = [(f, meaning(self.tool, f["rule"])) for f in result["findings"]]
        for bug in bugs:
            self._bug(f"{name} {short(bug['code'])}", bug, said)
        wrong = [f for f, codes in said if is_alarm(f, codes, true)]
        if bugs:
            self.misled += [name] if wrong else []
        else:
            self.correct += 1
            self.alarmed += [f"{name}: {_few({f['rule'] for f in wrong})}"] if wrong else []
            self.advised += bool(said) and not wrong

    def _bug(self, label: str, bug: Mapping[str, Any], said: Sequence[Said]) -> None:
        self.faults += 1
        hits = [f for f, codes in said if short(bug["code"]) in codes or ANY in codes]
        if hits:
            self.found.append(label)
        if any(set(bug["line"]) & set(f["lines"]) for f in hits):
            self.located.append(label)


def _few(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ", ".join(ordered[:SHOWN]) + more


def bugs_of(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The faults of a script: [{"code", "line"}], empty for a correct program."""
    return item.get("bugs") or ([{"code": item["code"], "line": item.get("line", [])}] if item["code"] else [])


def is_alarm(finding: Mapping[str, Any], codes: Sequence[str], true: Iterable[str]) -> bool:
    """Whether it says, as an error or a warning, that something is wrong which is not."""
    if ANY in codes:
        return not set(true)
    return finding["severity"] != "info" and ADVICE not in codes and not set(codes) & set(true)


def slowdown(one: Count, bare: Count) -> tuple[float, float, int] | None:
    """Median of the CPU ratios over the scripts that both ran, all seconds over all seconds, and how many they are."""
    alone = one.bare or bare.cpu
    both = [name for name in one.cpu if alone.get(name)]
    if not both:
        return None
    ratios = [one.cpu[name] / alone[name] for name in both]
    return statistics.median(ratios), sum(one.cpu[n] for n in both) / sum(alone[n] for n in both), len(both)


def markdown(counts: Mapping[str, Count], how: Mapping[str, str], versions: Mapping[str, str], scripts: int) -> str:
    """The table of all tools; `scripts`: how many there are, of which a tool may have run fewer."""
    head = (
        "tool",
        "how it looks",
        "scripts",
        "found",
        "located",
        "correct programs with a false alarm",
        "programs it ends",
        "CPU s a script, median",
        "CPU s in all",
        "times the bare program, median",
        "in all",
    )
    rows = [head, ("---",) * len(head)]
    for name, one in counts.items():
        ran = str(one.scripts) if one.scripts == scripts else f"{one.scripts} of {scripts}"
        seconds = tuple(f"{f(one.cpu.values()):.2f}" if one.cpu else "-" for f in (statistics.median, sum))
        if name == "bare":
            rows.append(("the program alone", "", ran, *("",) * 4, *seconds, "1", "1"))
            continue
        ratio = slowdown(one, counts.get("bare", Count("bare")))
        rows.append(
            (
                f"{name} {versions.get(name, '')}".strip(),
                how[name],
                ran,
                f"{len(one.found)} of {one.faults}",
                str(len(one.located)),
                f"{len(one.alarmed)} of {one.correct}",
                str(len(one.broken)),
                *seconds,
                *((f"{ratio[0]:.2f}x", f"{ratio[1]:.2f}x") if ratio else ("-", "-")),
            )
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def details(counts: Mapping[str, Count]) -> str:
    """What each tool found and where it raised alarms, for those who want to check the mapping."""
    parts = []
    for name, one in counts.items():
        if name in ("bare", "gradledger"):
            continue
        codes = Counter(label.split()[1] for label in one.found)
        parts.append(
            f"{name}: found {' '.join(f'{c}x{n}' if n > 1 else c for c, n in sorted(codes.items())) or 'nothing'}; "
            f"false alarms {'; '.join(one.alarmed) or 'none'}; wrong alarms on {len(one.misled)} faulty programs; "
            f"advice alone on {one.advised} correct programs; ended {'; '.join(one.broken) or 'none'}"
            + (f"; {one.before:.0f} CPU s before the first check" if one.before else "")
        )
    return "\n".join(parts)
