"""pytest: `--gradledger` audits every test that trains; the fixture `gradledger_watch` audits one test and lets it ask.

pytest --gradledger                          a test whose training has an error fails, with the report
pytest --gradledger --gradledger-fail-on warning

def test_training(gradledger_watch):
    train()
    assert gradledger_watch.findings == ()
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

from gradledger.watch import Watch, render_text, watch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("gradledger", "audit of training code")
    group.addoption("--gradledger", action="store_true", help="audit every test that trains a PyTorch model")
    group.addoption(
        "--gradledger-fail-on",
        default="error",
        choices=("error", "warning", "never"),
        help="severity of findings at which a test fails (default: error)",
    )


@pytest.fixture
def gradledger_watch() -> Generator[Watch, None, None]:
    """A running watch over the test: ask for `.findings` or `.report()`."""
    with watch() as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Audit one test, when asked to and when torch is there to be audited."""
    if not item.config.getoption("--gradledger") or "torch" not in sys.modules:
        return (yield)
    running = Watch(program=item.nodeid)
    with running:
        result = yield
    report = running.report()
    if report.findings:
        text = render_text(report)
        item.add_report_section("call", "gradledger", text)
        if report.reaches(item.config.getoption("--gradledger-fail-on")):
            pytest.fail(f"the training in this test is not what it says:\n\n{text}", pytrace=False)
    return result
