"""GL-M11: freezing or unfreezing that touches nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.build import Run, judge, lines
from gradledger.audit.rules import m11_name_pattern_matches_nothing as m11
from gradledger.core import events as ev
from gradledger.core.site import Frame, Site

LOOP = """\
for name, p in model.named_parameters():
    if {test}:
        p.requires_grad = False
"""
FUNCTION = """\
def freeze(model, prefixes=()):
    for name, p in model.named_parameters():
        if {test}:
            p.requires_grad = False
freeze(model{argument})
"""


def walked(file: Path, text: str, *, line: int = 1, caller: int = 0, flags: tuple[tuple[int, bool], ...] = ()) -> Run:
    """A run of `text` whose loop on `line` walked the parameters of a module; `flags`: (line, value) that were set."""
    file.write_text(text)
    run = Run()
    net = run.module("net", line=3, tensors=4)
    callers = (Frame(str(file), caller, "<module>"),) if caller else ()
    name = "freeze" if caller else "<module>"
    run.emit(
        ev.ParametersIterated, Site(str(file), line, name, callers=callers), module=net.ident,
        method="named_parameters", count=4,
    )  # fmt: skip
    for at_line, value in flags:
        run.emit(
            ev.GradFlagSet, Site(str(file), at_line, name, callers=callers), tensors=net.tensors, value=value, changed=4
        )
    run.end()
    return run


@pytest.mark.parametrize(
    "test",
    [
        'name.startswith("backbone.")',
        '"backbone" in name',
        'name.split(".")[0] == "backbone"',
        'any(key in name for key in ["backbone", "trunk"])',
        'name.startswith(("backbone", "trunk"))',
        're.match("backbone", name)',
    ],
)
def test_a_pattern_that_matched_nothing(tmp_path: Path, test: str) -> None:
    (finding,) = judge(m11, walked(tmp_path / "a.py", LOOP.format(test=test)))
    assert finding.severity == "error"
    assert finding.site.line == 2
    assert lines(finding) >= {1, 3}
    assert finding.evidence["parameters_given"] == 4
    assert "w0" in finding.message


def test_a_pattern_that_matched(tmp_path: Path) -> None:
    text = LOOP.format(test='name.startswith("w")')
    assert judge(m11, walked(tmp_path / "a.py", text, flags=((3, False),))) == []


@pytest.mark.parametrize(
    "test",
    [
        "name in args.frozen",
        "args.freeze and name.startswith(args.prefix)",
        "any(key in name for key in [])",
        'name.startswith("w") and config["freeze"]',
        "p.ndim > 3",
        '"head" not in name',
    ],
)
def test_what_may_be_a_choice_is_silent(tmp_path: Path, test: str) -> None:
    assert judge(m11, walked(tmp_path / "a.py", LOOP.format(test=test))) == []


@pytest.mark.parametrize(
    ("argument", "found"),
    [(', ("backbone",)', 1), (", ()", 0), ("", 0), (", config.prefixes", 0), (', prefixes=["backbone"]', 1)],
)
def test_patterns_handed_to_a_function(tmp_path: Path, argument: str, found: int) -> None:
    text = FUNCTION.format(test="any(name.startswith(x) for x in prefixes)", argument=argument)
    assert len(judge(m11, walked(tmp_path / "a.py", text, line=2, caller=5))) == found


@pytest.mark.parametrize(
    ("value", "seen", "found"),
    [
        ('not name.startswith("backbone")', ((2, True),), 1),
        ('not name.startswith("w")', ((2, False),), 0),
        ('"backbone" in name', ((2, False),), 1),
        ('"w0" in name', ((2, True), (2, False)), 0),
    ],
)
def test_the_pattern_as_the_value(tmp_path: Path, value: str, seen: tuple[tuple[int, bool], ...], found: int) -> None:
    text = f"for name, p in model.named_parameters():\n    p.requires_grad = {value}\n"
    assert len(judge(m11, walked(tmp_path / "a.py", text, flags=seen))) == found


CHILDREN = """\
for name, child in model.named_children():
    if {test}:
        for p in child.parameters():
            p.requires_grad = False
opt = torch.optim.SGD(model.parameters())
"""


@pytest.mark.parametrize(
    ("test", "flagged", "found"),
    [
        ('name in ("conv1", "bn1")', False, 1),
        ('name == "fc"', True, 0),
        ('name != "fc"', False, 0),
        ("name in cfg", False, 0),
    ],
)
def test_loops_over_named_submodules(tmp_path: Path, test: str, flagged: bool, found: int) -> None:
    file = tmp_path / "a.py"
    file.write_text(CHILDREN.format(test=test))
    run = Run()
    net = run.module("net", line=3)
    if flagged:
        run.emit(ev.GradFlagSet, Site(str(file), 4, "<module>"), tensors=net.tensors, value=False, changed=2)
    run.emit(ev.OptimizerMade, Site(str(file), 5, "<module>"), optimizer=1, cls="SGD", groups=(ev.Group(net.tensors),))
    assert len(judge(m11, run)) == found


USED_UP = """\
params = model.parameters()
print(sum(p.numel() for p in params))
for p in params:
    p.requires_grad = False
opt = torch.optim.SGD(model.parameters())
"""


def test_an_iterator_that_is_used_up(tmp_path: Path) -> None:
    file = tmp_path / "a.py"

    def built(text: str) -> Run:
        file.write_text(text)
        run = Run()
        net = run.module("net", line=3)
        run.emit(
            ev.OptimizerMade, Site(str(file), 5, "<module>"), optimizer=1, cls="SGD", groups=(ev.Group(net.tensors),)
        )
        return run

    (finding,) = judge(m11, built(USED_UP))
    assert finding.site.line == 1
    assert 3 in lines(finding)


def test_a_list_can_be_walked_twice(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(USED_UP.replace("model.parameters()\nprint", "list(model.parameters())\nprint"))
    run = Run()
    net = run.module("net", line=3)
    run.emit(ev.OptimizerMade, Site(str(file), 5, "<module>"), optimizer=1, cls="SGD", groups=(ev.Group(net.tensors),))
    assert judge(m11, run) == []
