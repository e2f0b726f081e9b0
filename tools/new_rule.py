"""Start a new rule: its file from a template, and three example programs to be made real.

    python tools/new_rule.py G23 gradient-averaged-twice --family "gradient lifecycle" --severity error

Writes audit/rules/g23_gradient_averaged_twice.py and audit/fixtures/g23/{bad,good,near_miss}.py.
The contract tests (tests/contract) find the rule by themselves and fail until it is written.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import get_args

from gradledger.audit import registry
from gradledger.audit.rule import FAMILIES, SEVERITIES, Family, Rule, Severity

ROOT = Path(__file__).resolve().parents[1]

RULE = '''"""# {title}

## What it is
{todo}

## Why it matters
{todo}

## How it is found
{todo}

## Near misses
- {todo}

## Fix
{todo}
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradledger.audit.rule import Finding, Rule
from gradledger.audit.world import World
from gradledger.core.events import Backward, Event
from gradledger.core.site import Site

RULE = Rule(
    code="{code}",
    name="{name}",
    family="{family}",
    summary="{todo}.",
    severity="{severity}",
)

LISTENS = (Backward,)
LINES_KEPT = 200  # a state does not grow with the run


@dataclass
class State:
    """{todo}"""

    seen: dict[Site, int] = field(default_factory=dict)


def init() -> State:
    return State()


def update(state: State, event: Event, world: World) -> None:
    """Note what the judgement needs."""


def finish(state: State, world: World) -> list[Finding]:
    """One finding a line; the engine merges those of one line."""
    return []


def not_checked(state: State, world: World) -> str | None:
    """Why this run could not be judged, or None when it was."""
    return None if world.optimizers else "no optimizer was built"
'''

PROGRAM = '''"""{title}"""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    x = torch.randn(32, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(){mark}
    optimizer.step()
print("loss", round(loss.item(), 4))
'''


def files(rule: Rule) -> dict[Path, str]:
    """The new files and their text."""
    stem = rule.key.removeprefix("GL-").lower()
    title = rule.name.replace("-", " ").capitalize()
    audit = ROOT / "src" / "gradledger" / "audit"
    programs = {
        "bad": PROGRAM.format(title=f"{title}: the program that has it.", mark=f"  # gradledger: expect {rule.key}"),
        "good": PROGRAM.format(title=f"{title}: the same program without it.", mark=""),
        "near_miss": PROGRAM.format(title="Looks like it and is correct.", mark=""),
    }
    text = RULE.format(
        title=title, code=rule.code, name=rule.name, family=rule.family, severity=rule.severity, todo="To be written"
    )
    found = {audit / "rules" / f"{stem}_{rule.name.replace('-', '_')}.py": text}
    return found | {audit / "fixtures" / stem / f"{name}.py": text for name, text in programs.items()}


def parse(argv: list[str]) -> Rule:
    """The rule that a command line describes; exits with 2 and a message when it is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", help="letter and number: G23")
    parser.add_argument("name", help="kebab-case, names the bad pattern")
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--severity", choices=SEVERITIES, default="error")
    a = parser.parse_args(argv)
    if not re.fullmatch(r"[A-Z][1-9]\d?", a.code):
        parser.error(f"code {a.code!r}: wanted a letter and a number, such as G23")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", a.name):
        parser.error(f"name {a.name!r}: wanted kebab-case of two words or more")
    family: Family = next(f for f in get_args(Family) if f == a.family)
    severity: Severity = next(s for s in get_args(Severity) if s == a.severity)
    rule = Rule(a.code, a.name, family, "To be written.", severity)
    for known in registry.load().rules:
        if rule.key == known.rule.key or rule.name == known.rule.name:
            parser.error(f"{rule.key} {rule.name} is taken by {known.rule.key} {known.rule.name}")
    return rule


def main(argv: list[str]) -> int:
    rule = parse(argv)
    new = files(rule)
    taken = [path for path in new if path.exists()]
    if taken:
        print(f"new_rule: {taken[0].relative_to(ROOT)} exists already; nothing was written", file=sys.stderr)
        return 1
    for path, text in new.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    print(f"\nWrite them, then: pytest tests/contract -k {rule.key}, and python tools/generate_docs.py")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
