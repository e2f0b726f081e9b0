"""A fault that starts long after the first iterations is still found, and at its line."""

from __future__ import annotations

import torch

from gradledger.ledger._thin import KEEP
from gradledger.watch import watch

START = 3 * KEEP


def test_clears_that_stop_late() -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    with watch(select=["G"]) as running:
        for step in range(START + 60):
            if step < START:
                optimizer.zero_grad()
            net(torch.ones(4, 3)).pow(2).mean().backward()
            optimizer.step()
    found = [f for f in running.findings if f.severity == "error"]
    assert [f.code for f in found] in (["G1"], ["G3"])
    assert found[0].site.file == __file__
    assert found[0].iteration is not None
    assert START <= found[0].iteration <= START + 2
    assert "events kept" in running.report().sampled


def test_a_term_that_is_cut_late() -> None:
    net, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=1e-4)
    with watch(select=["G"]) as running:
        for step in range(START + 400):
            hidden = net(torch.ones(4, 3))
            penalty = hidden.pow(2).mean()
            if step >= START:
                penalty = penalty.detach()
            loss = head(hidden).pow(2).mean() + penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [f.code for f in running.findings if f.severity == "error"] == ["G11"]


def test_a_correct_loop_of_the_same_length() -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    with watch() as running:
        for _ in range(START + 60):
            optimizer.zero_grad()
            net(torch.ones(4, 3)).pow(2).mean().backward()
            optimizer.step()
    assert [f for f in running.findings if f.severity != "info"] == []
