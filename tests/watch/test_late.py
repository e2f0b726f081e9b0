"""A fault that starts long after the first iterations is still found, and at its line."""

from __future__ import annotations

import torch

from gradledger.ledger._thin import KEEP
from gradledger.watch import Watch, watch

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


# ------------------------------------------------------------------ modes, and no loader whose pass would show it

LATE = 1000
EVERY = 100


def noisy() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    return net, torch.optim.SGD(net.parameters(), lr=1e-4)


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.ones(4, 3)).pow(2).mean().backward()
    optimizer.step()


def evaluate(net: torch.nn.Module, *, switch: bool = True, back: bool = True) -> None:
    if switch:
        net.eval()
    with torch.no_grad():
        net(torch.ones(32, 3)).pow(2).mean().item()
    if back:
        net.train()


def errors(running: Watch) -> list[tuple[str, int | None]]:
    return [(f.code, f.iteration) for f in running.findings if f.severity == "error"]


def test_an_evaluation_that_forgets_the_mode_late() -> None:
    net, optimizer = noisy()
    with watch(select=["E"]) as running:
        for number in range(1, LATE + EVERY):
            step(net, optimizer)
            if number % EVERY == 37:
                evaluate(net, switch=number < LATE)
    assert errors(running) == [("E1", LATE + 37)]
    assert running.findings[0].site.function == "evaluate"


def test_the_first_evaluation_is_late_and_in_train_mode() -> None:
    net, optimizer = noisy()
    with watch(select=["E"]) as running:
        for _ in range(LATE + 3):
            step(net, optimizer)
        evaluate(net, switch=False)
    assert errors(running) == [("E1", LATE + 3)]


def test_training_goes_on_in_eval_mode_late() -> None:
    net, optimizer = noisy()
    with watch(select=["E"]) as running:
        for number in range(LATE + 4 * EVERY):
            if number % EVERY == 37:
                evaluate(net, back=number < LATE)
            step(net, optimizer)
    ((code, iteration),) = errors(running)
    assert code == "E2"
    assert iteration is not None
    assert LATE + 37 <= iteration <= LATE + 300, "samples are 250 iterations apart here"


def test_modes_that_are_always_right() -> None:
    net, optimizer = noisy()
    with watch(select=["E"]) as running:
        for number in range(LATE + EVERY):
            step(net, optimizer)
            if number % EVERY == 37:
                evaluate(net)
    assert running.findings == ()
