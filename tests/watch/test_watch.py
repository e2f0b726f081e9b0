"""The watch in code: what it sees, what it leaves behind, how watches meet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradledger.audit.engine import audit
from gradledger.core.errors import UsageError
from gradledger.ledger._store import read
from gradledger.watch import Watch, watch


def train(steps: int = 12, *, clear: bool = False) -> torch.nn.Module:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        if clear:
            optimizer.zero_grad()
        loss = net(torch.randn(8, 3)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return net


def codes(running: Watch) -> list[str]:
    return [f.key for f in running.findings]


def test_a_fault_in_the_block_is_found_in_this_file() -> None:
    with watch() as running:
        train()
    assert codes(running) == ["GL-G01"]
    (finding,) = running.findings
    assert finding.site.file == __file__
    assert finding.count == 11
    assert running.report().ended is not None


def test_a_correct_block_gives_nothing() -> None:
    with watch() as running:
        train(clear=True)
    assert codes(running) == []
    assert "GL-G01" in running.report().checked


def test_select_is_obeyed() -> None:
    with watch(select=["T"]) as running:
        train()
    assert codes(running) == []
    with pytest.raises(UsageError, match="got 'Z9'"):
        watch(select=["Z9"])


def test_nothing_is_left_behind() -> None:
    before = (torch.optim.SGD.step, torch.Tensor.backward, torch.nn.Module.__call__, torch.nn.Module.__setattr__)
    with watch():
        train()
    assert before == (
        torch.optim.SGD.step,
        torch.Tensor.backward,
        torch.nn.Module.__call__,
        torch.nn.Module.__setattr__,
    )


def test_the_random_state_and_the_result_are_those_without_it() -> None:
    torch.manual_seed(3)
    plain, state = train(clear=True), torch.random.get_rng_state()
    torch.manual_seed(3)
    with watch():
        watched = train(clear=True)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))


def test_an_error_of_the_block_comes_through_and_is_recorded() -> None:
    running = watch()

    def fail() -> None:
        train()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), running:
        fail()
    ended = running.report().ended
    assert ended is not None
    assert (ended.exit_code, ended.exception) == (1, "ZeroDivisionError")
    assert codes(running) == ["GL-G01"]


def test_a_watch_inside_another_joins_it() -> None:
    with watch() as outer:
        train()
        with watch() as inner:
            train()
        assert codes(inner) == codes(outer)
    assert codes(outer)
    with watch() as fresh:
        train(clear=True)
    assert codes(fresh) == []


def test_a_watch_is_started_once() -> None:
    with watch() as running:
        pass
    with pytest.raises(UsageError, match="call watch"):
        running.start()


def test_the_stored_run_gives_the_same_findings(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with watch(store=path) as running:
        train(40)
    replayed = audit(read(path))
    assert replayed.findings == running.findings
    assert replayed.checked == running.report().checked


def test_a_store_that_cannot_be_made_does_not_stop_the_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with watch(store=tmp_path / "no" / "such" / "folder" / "ledger.sqlite") as running:
        train()
    assert "the run is not stored" in capsys.readouterr().err
    assert codes(running) == ["GL-G01"]
    assert not running.stored
