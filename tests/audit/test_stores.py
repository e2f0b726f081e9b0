"""Which lines of a program keep a tensor, read off its source."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from gradledger.audit._stores import stores
from gradledger.core.site import Frame, Site

count = iter(range(1000))


def keeping(tmp_path: Path, source: str, line: int, *callers: int) -> list[int]:
    file = tmp_path / f"program_{next(count)}.py"
    file.write_text(dedent(source).lstrip("\n"), encoding="utf-8")
    frames = tuple(Frame(str(file), c, "f") for c in callers)
    return [site.line for site in stores(Site(str(file), line, "f", callers=frames))]


@pytest.mark.parametrize(
    ("statement", "kept"),
    [
        ("history.append(loss)", True),
        ("history.append({'step': 1, 'loss': loss})", True),
        ("history += [loss]", True),
        ("total += loss * len(x)", True),
        ("total = total + loss", True),
        ("log['loss'] = loss", True),
        ("self.last = loss", True),
        ("meter.update(loss, n=3)", True),
        ("history.append(loss.item())", False),
        ("history.append(float(loss))", False),
        ("total += loss.detach()", False),
        ("total = 0.9 * total + 0.1 * loss.data", False),
        ("loss += penalty", False),
        ("print(loss)", False),
        ("history.append(other)", False),
    ],
)
def test_a_statement(tmp_path: Path, statement: str, kept: bool) -> None:
    source = f"for x in data:\n    loss = net(x).mean()\n    loss.backward()\n    {statement}\n"
    assert keeping(tmp_path, source, 3) == ([4] if kept else [])
    assert keeping(tmp_path, source, 2) == ([4] if kept else [])


def test_a_returned_loss_is_followed_to_the_caller(tmp_path: Path) -> None:
    source = """
        def train_step(x):
            loss = net(x).mean()
            loss.backward()
            return loss

        for x in data:
            losses.append(train_step(x))
        for x in data:
            value = train_step(x)
            losses.append(value)
    """
    assert keeping(tmp_path, source, 3, 7) == [7]
    assert keeping(tmp_path, source, 3, 9) == [10]


def test_other_functions_and_broken_sources_are_left_alone(tmp_path: Path) -> None:
    source = """
        def a(loss):
            history.append(loss)

        loss = net(x)
        loss.backward()
    """
    assert keeping(tmp_path, source, 5) == []
    assert keeping(tmp_path, "loss = (\n", 1) == []
    assert stores(Site("no such file", 3, "f")) == ()


def test_what_is_computed_from_an_output_keeps_it_too(tmp_path: Path) -> None:
    source = """
    def f(net, tracker, x):
        out = net(x)
        plain = out.detach().mean()
        loss = (out - x).square().mean()
        scaled = 2 * loss
        tracker.add(plain)
        tracker.add(scaled)
    """
    file = tmp_path / "derived.py"
    file.write_text(dedent(source).lstrip("\n"), encoding="utf-8")
    site = Site(str(file), 2, "f")
    assert [s.line for s in stores(site)] == []
    assert [s.line for s in stores(site, derived=True)] == [7]


def test_a_function_of_the_program_that_keeps_what_it_is_given(tmp_path: Path) -> None:
    source = """
    class Monitor:
        def observe(self, z, weight=1.0):
            mean = z.mean(0)
            self.window.append(mean * weight)

        def look(self, z):
            self.last.append(z.detach().mean(0))

    def f(net, monitor, x):
        out = net(x)
        monitor.look(out)
        monitor.observe(out)
        loss = out.sum()
    """
    file = tmp_path / "keeper.py"
    file.write_text(dedent(source).lstrip("\n"), encoding="utf-8")
    assert [s.line for s in stores(Site(str(file), 10, "f"), derived=True)] == [4, 12]
