"""The page: whole, self-contained, readable without script, and closed to what a program may be called."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from audit.build import Run
from audit.render.html_structure import Page
from gradledger.audit._source import source_lines
from gradledger.audit.compare import Comparison, Difference
from gradledger.audit.engine import Judge
from gradledger.audit.render import _style, html
from gradledger.audit.render._html import el, escape, join, markdown, prose
from gradledger.audit.report import Cost, Note, Report, Suppressed
from gradledger.audit.rule import Finding, NotChecked
from gradledger.audit.story import Storyteller
from gradledger.core import events as ev
from gradledger.core.site import Site

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;\u202egpj.exe\x00\ud800"


def faulty(count: int = 6) -> Run:
    run = Run()
    net = run.module("net", line=3, tensors=2)
    opt = run.optimizer(net, line=4)
    for n in range(count):
        if n % 3 == 0:
            run.zero_grad(opt, line=6)
        run.forward(net, line=7)
        run.backward(net, line=8)
        run.step(opt, line=9)
    return run


def told(run: Run, **values: Any) -> Report:
    teller = Storyteller()
    judge = Judge(listeners=[teller.put])
    started = ev.RunStarted(program="train.py", argv=("--lr", "3"), torch="2.13.0", python="3.11")
    for event in [started, *run.events[1:]]:
        judge.put(event)
    report = dataclasses.replace(judge.finish(), story=teller.story(judge.world), cost=Cost(3.0, 2048, "/runs/x"))
    return dataclasses.replace(report, **values)


def page(report: Report) -> Page:
    found = Page(html.render(report))
    assert found.problems == []
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    source = ["import x", "", "net = Net()", "opt = Adam()", "for batch in data:", "    opt.zero_grad()",
              "    out = net(batch)", "    loss.backward()", "    opt.step()"]  # fmt: skip
    (tmp_path / "train.py").write_text("\n".join(source) + "\n")
    source_lines.cache_clear()
    return tmp_path


def test_a_faulty_run_shows_everything() -> None:
    report = told(faulty())
    assert [f.key for f in report.findings] == ["GL-G03"]
    shown = page(report)
    for words in (
        "1 error in train.py", "GL-G03", "certain", "train.py:6", "opt.zero_grad()", "Evidence", "Fix",
        "allow[GL-G03] why it is meant", "gradledger audit train.py --lr 3", "2.13.0", "2 KiB in /runs/x",
        "Not checked", "What GL-G03 means", "iteration 1", "6 reverse passes",
    ):  # fmt: skip
        assert words in shown.text, words
    labels = [value for tag, name, value in shown.attributes if (tag, name) == ("svg", "aria-label")]
    assert any(
        "iteration 2: fill on line 8, 3 standing, step on line 9 uses 3 contributions, 2 of them" in label
        for label in labels
    )
    assert shown.tags["mark"] == 1
    hatched = [value for tag, name, value in shown.attributes if (tag, name) == ("path", "class")].count("s-hatch")
    old = [value for tag, name, value in shown.attributes if (tag, name) == ("rect", "class")].count("s-old")
    assert hatched == old > 0, "what an earlier step had used is told apart without colour"
    assert "Steps looked at, iterations 0 to 5: 2 × step used one pass, 4 × " in shown.text


def test_a_clean_run_and_an_empty_one() -> None:
    run = faulty(0)
    net = run.module("other", line=3, tensors=1)
    opt = run.optimizer(net, line=4)
    for _ in range(3):
        run.zero_grad(opt, line=6)
        run.backward(net, line=8)
        run.step(opt, line=9)
    assert "no fault found in train.py" in page(told(run)).text
    nothing = Report(None, None, (), (), (), (), (), {})
    assert "nothing was recorded" in page(nothing).text
    assert "cut off before its end" in page(nothing).text


def test_what_the_program_calls_itself_stays_text(folder: Path) -> None:
    evil_file = folder / "e<b>v&'il\".py"
    evil_file.write_text("x = 1  # </pre><script>alert(3)</script>\n")
    site = Site(str(evil_file), 1, EVIL)
    finding = Finding(
        code="G1", severity="error", site=site, message=EVIL + "`" + EVIL + "`", fix=EVIL,
        related=(site, Site(EVIL, 3, EVIL)), evidence={EVIL: EVIL, "list": [EVIL, {EVIL: EVIL}]}, subject=EVIL,
    )  # fmt: skip
    run = faulty()
    events = [
        dataclasses.replace(e, cls=f"m.{EVIL}") if isinstance(e, (ev.ModuleMade, ev.OptimizerMade)) else
        dataclasses.replace(e, name=EVIL) if isinstance(e, (ev.TensorRegistered, ev.ChildRegistered)) else e
        for e in run.events
    ]  # fmt: skip
    run.events[:] = events
    report = told(
        run,
        started=ev.RunStarted(program=EVIL, argv=(EVIL,), torch=EVIL, python=EVIL),
        ended=ev.RunEnded(exception=EVIL, message=EVIL, failures=(EVIL,), not_watched=(EVIL,), exit_code=1),
        findings=(finding,),
        suppressed=(Suppressed(finding, EVIL),),
        notes=(Note(EVIL, 2, EVIL),),
        not_checked=(NotChecked("G2", EVIL),),
        names={"GL-G01": EVIL},
        checked=("GL-G01",),
        sampled=EVIL,
        cost=Cost(1.0, 10, EVIL),
        comparison=Comparison(EVIL, (Difference(EVIL, EVIL, EVIL, EVIL, 3, site),), 3),
    )
    document = html.render(report, footer=[EVIL])
    document.encode("utf-8")
    shown = Page(document)
    assert shown.problems == []
    assert len(shown.scripts) == 1
    assert (shown.tags["img"], shown.tags["script"], shown.tags["b"] > 0) == (0, 1, True)
    assert shown.text.count("alert(1)") > 20, "it is shown, as text"
    assert "\u202e" not in document
    assert "\\u202egpj.exe\\u0000\\ud800" in shown.text


def test_the_page_needs_no_script_and_no_network() -> None:
    document = html.render(told(faulty()))
    assert not re.search(r"https?://|@import|url\(", document)
    policy = next(v for t, n, v in Page(document).attributes if (t, n) == ("meta", "content") and "default-src" in v)
    assert policy.startswith("default-src 'none'")
    (script,) = Page(document).scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    hidden = [(t, v) for t, n, v in Page(document).attributes if n == "hidden"]
    assert all(tag == "div" for tag, _ in hidden), "only the tools wait for the script"


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def palettes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root\{([^}]*)\}", _style.CSS)
    read = [dict(re.findall(r"--([\w-]+):(#[0-9a-fA-F]{3,6})", block)) for block in (light, dark)]
    return {"light": read[0], "dark": read[0] | read[1]}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "grounds"),
    [
        ("ink", ["bg", "panel", "code", "mark", "add", "del"]), ("muted", ["bg", "panel", "code"]),
        ("link", ["bg", "panel"]), ("error", ["error-bg", "panel", "bg"]), ("warning", ["warning-bg", "panel"]),
        ("info", ["info-bg", "panel"]), ("ok", ["ok-bg", "panel"]),
    ],
)  # fmt: skip
def test_contrast_of_text(theme: str, ink: str, grounds: list[str]) -> None:
    colours = palettes()[theme]
    for ground in grounds:
        one, other = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        assert (one + 0.05) / (other + 0.05) >= 4.5, (ink, ground)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_of_pictures(theme: str) -> None:
    colours = palettes()[theme]
    for mark in ("new", "old", "several", *(f"k{n}" for n in range(6))):
        one, other = sorted((luminance(colours[mark]), luminance(colours["panel"])), reverse=True)
        assert (one + 0.05) / (other + 0.05) >= 3.0, mark


@pytest.mark.parametrize(
    ("fix", "kinds"),
    [
        ("opt.zero_grad(set_to_none=True)", ["del", "add"]),
        ("scheduler.step()\nlog(loss)", ["add", "add"]),
        ("move it into the loop", []),
        ("detach", []),
    ],
)
def test_a_fix_is_a_difference_an_addition_or_words(folder: Path, fix: str, kinds: list[str]) -> None:
    finding = Finding(code="G1", severity="info", site=Site(str(folder / "train.py"), 6, ""), message="m", fix=fix)
    shown = page(told(faulty(0), findings=(finding,)))
    assert [v for t, n, v in shown.attributes if t == "span" and n == "class" and v in ("add", "del")] == kinds
    assert fix.splitlines()[0] in shown.text


def test_pieces() -> None:
    assert el("a", "<", ["&", None, 3], href='"', data_x=True, hidden=False) == '<a href="&quot;" data-x>&lt;&amp;3</a>'
    assert join("<", escape("<")) == "&lt;&lt;"
    assert prose("use `a<b` now") == "use <code>a&lt;b</code> now"
    assert markdown("## T\ntext `x`\n\n- one\n  more\n- two\n\n```python\nx < 1\n```") == (
        "<h4>T</h4><p>text <code>x</code></p><ul><li>one more</li><li>two</li></ul><pre><code>x &lt; 1</code></pre>"
    )
    with pytest.raises(TypeError, match="cannot stand in a page"):
        el("p", object())


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("<!doctype html>\n<p>", "<p> is never closed"),
        ("<!doctype html>\n<b><i></b>", "closes something else"),
        ('<!doctype html>\n<p onclick="x">', "has a handler"),
        ('<!doctype html>\n<img src="x">', "loads x"),
        ('<!doctype html>\n<a href="javascript:x">', "a link to javascript:x"),
        ('<!doctype html>\n<a href="#x">', "x leads nowhere"),
        ("<!doctype html>\n<svg></svg>", "a picture without a name"),
    ],
)
def test_the_check_of_pages_can_fail(document: str, says: str) -> None:
    assert any(says in problem for problem in Page(document).problems)
