"""Where padding that a loss of classes counted comes from: the lines that pad the target and build the criterion."""

from __future__ import annotations

import ast

from gradledger.audit._code import last_name, parsed, walk
from gradledger.audit._loops import calls_at
from gradledger.core.events import PaddingCounted
from gradledger.core.site import Site

_CLASSES = frozenset({"cross_entropy", "nll_loss"})
_MOST = 3


def lines_that_pad(event: PaddingCounted) -> list[Site]:
    """For a comparison of classes: the calls of `pad_sequence` whose result has the name of an argument there (all of
    them when none has), and the line that makes the criterion it calls.  Either may say what is to be ignored."""
    site = event.site
    tree = parsed(site.file) if event.op in _CLASSES and site.file else None
    if tree is None:
        return []
    calls = calls_at(*site.key())
    given = {n.id for call in calls for a in call.args for n in walk(a) if isinstance(n, ast.Name)}
    criteria = {last_name(call.func) for call in calls}
    padded: list[int] = []
    named: list[int] = []
    built: list[int] = []
    for node in walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) == "pad_sequence":
            padded.append(node.lineno)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names = {last_name(target) for target in node.targets}
            if last_name(node.value.func) == "pad_sequence" and names & given:
                named.append(node.value.lineno)
            elif last_name(node.value.func) in ("CrossEntropyLoss", "NLLLoss") and names & criteria:
                built.append(node.value.lineno)
    return [Site(site.file, line, "") for line in (*(named or padded)[:_MOST], *built[:_MOST])]
