"""The oracle: known combinations come out as they were put in, what cannot be made again is said, and nothing is moved.

The expected numbers stand beside each program; that they are right is shown once more without the oracle's own code, by
`torch.autograd.grad` on the program's losses in double precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from harness import Watched
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gradledger.core.errors import UsageError
from gradledger.core.events import OracleAbstained, OracleExplained
from gradledger.ledger import _tape
from gradledger.ledger._explain import SLACK, solve
from gradledger.ledger._oracle import FIRST, LENGTH, Sampling
from gradledger.ledger._session import Session
from gradledger.ledger._sink import MemorySink
from gradledger.watch import watch

EXACT = 1e-6  # coefficients of programs in single precision, relative


@contextmanager
def asked(every: int = 10) -> Iterator[Watched]:
    """All probes with the oracle on; no failure of ours may have been counted at the end."""
    sink = MemorySink()
    session = Session.open(sink)
    session.oracle = every
    session.install()
    try:
        yield Watched(session, sink)
    finally:
        session.uninstall()
    session.recorder.close()
    assert list(session.recorder.failures) == []


@dataclass
class Truth:
    """What a program knows of its own steps: the terms of the losses it walked, in double precision, and what its
    optimizer consumed."""

    net: nn.Module
    terms: list[dict[str, list[np.ndarray]]] = field(default_factory=list)
    consumed: list[np.ndarray] = field(default_factory=list)
    now: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def term(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Keep the gradient of a term; gives the term back."""
        found = torch.autograd.grad(value, list(self.net.parameters()), retain_graph=True, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(self.net.parameters(), found, strict=True)]
        self.now.setdefault(name, []).append(np.concatenate([g.double().numpy().ravel() for g in flat]))
        return value

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep what the optimizer is about to consume, and step."""
        self.consumed.append(np.concatenate([p.grad.double().numpy().ravel() for p in self.net.parameters()]))
        self.terms.append(self.now)
        self.now = {}
        optimizer.step()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 4), torch.randn(16, 1)


def weights(net: nn.Sequential) -> torch.Tensor:
    return net[0].weight.pow(2).sum() + net[2].weight.abs().sum()


Known = Callable[[], Truth]


def as_written() -> Truth:
    net = network()
    optimizer, truth = torch.optim.SGD(net.parameters(), lr=0.01), Truth(net)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch()
        task = truth.term("mse_loss", F.mse_loss(net(x), y))
        size = truth.term("sum", net[0].weight.pow(2).sum())
        weight = torch.tensor(4.0)
        (3 * task + size / weight - 0.05 * size).backward()
        truth.step(optimizer)
    return truth


def penalty_walked_twice() -> Truth:
    net = network()
    optimizer, truth = torch.optim.Adam(net.parameters()), Truth(net)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        x, y = batch()
        task = truth.term("mse_loss", F.mse_loss(net(x), y))
        size = truth.term("sum", net[0].weight.pow(2).sum())
        size.backward(retain_graph=True)
        (task + size).backward()
        truth.step(optimizer)
    return truth


def retained() -> Truth:
    net = network()
    optimizer, truth = torch.optim.SGD(net.parameters(), lr=0.01), Truth(net)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch()
        loss = truth.term("mse_loss", F.mse_loss(net(x), y))
        loss.backward(retain_graph=True)
        loss.backward()
        truth.step(optimizer)
    return truth


def recomputed_term() -> Truth:
    net = network()
    optimizer, truth = torch.optim.SGD(net.parameters(), lr=0.01), Truth(net)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch()
        loss = truth.term("mse_loss", F.mse_loss(net(x), y))
        for _ in range(2):
            loss = loss + 0.5 * truth.term("sum", net[0].weight.pow(2).sum())
        loss.backward()
        truth.step(optimizer)
    return truth


def accumulated() -> Truth:
    net = network()
    optimizer, truth = torch.optim.SGD(net.parameters(), lr=0.01), Truth(net)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(4):
            x, y = batch()
            truth.term("mse_loss", F.mse_loss(net(x), y)).backward()
        truth.step(optimizer)
    return truth


def clipped() -> Truth:
    net = network()
    optimizer, truth = torch.optim.SGD(net.parameters(), lr=0.01), Truth(net)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch()
        truth.term("mse_loss", F.mse_loss(net(x), y)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        truth.step(optimizer)
    return truth


def scaled() -> Truth:
    net = network()
    optimizer, truth = torch.optim.SGD(net.parameters(), lr=0.01), Truth(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch()
        scaler.scale(truth.term("mse_loss", F.mse_loss(net(x), y))).backward()
        scaler.unscale_(optimizer)
        truth.step(optimizer)
        scaler.update()
    return truth


def of_a_policy() -> Truth:
    """`broadcast_tensors` of a distribution gives back one of the tensors that it is given."""
    net = network()
    optimizer, truth = torch.optim.SGD(net.parameters(), lr=0.01), Truth(net)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch()
        policy = torch.distributions.Normal(net(x), net[2].bias.exp())
        gain = truth.term("mean", (policy.log_prob(policy.rsample().detach()) * y).mean())
        chaos = truth.term("sum", policy.entropy().sum())
        (-gain - 0.01 * chaos).backward()
        truth.step(optimizer)
    return truth


def by_hand() -> Truth:
    """The second gradient of a window is halved by the program: no combination that the ledger expects."""
    net = network()
    optimizer, truth = torch.optim.SGD(net.parameters(), lr=0.01), Truth(net)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch()
        truth.term("mse_loss", F.mse_loss(net(x), y)).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.grad *= 0.5
        truth.term("l1_loss", F.l1_loss(net(x), y)).backward()
        truth.step(optimizer)
    return truth


KNOWN: dict[Known, tuple[str, dict[str, list[float]]]] = {
    as_written: ("written", {"mse_loss": [3.0], "sum": [0.2]}),
    penalty_walked_twice: ("written", {"mse_loss": [1.0], "sum": [2.0]}),
    retained: ("written", {"mse_loss": [2.0]}),
    recomputed_term: ("written", {"mse_loss": [1.0], "sum": [0.5, 0.5]}),
    accumulated: ("written", {"mse_loss": [1.0] * 4}),
    of_a_policy: ("written", {"mean": [-1.0], "sum": [-0.01]}),
    clipped: ("scaled", {}),
    scaled: ("scaled", {"mse_loss": [1.0]}),
    by_hand: ("free", {"mse_loss": [0.5], "l1_loss": [1.0]}),
}


@pytest.mark.parametrize("program", KNOWN, ids=lambda p: p.__name__)
def test_a_known_combination_comes_out(program: Known) -> None:
    fit, expected = KNOWN[program]
    with asked() as seen:
        truth = program()
    assert seen.all(OracleAbstained) == []
    said = seen.all(OracleExplained)
    assert [e.fit for e in said] == [fit] * 3
    for event, terms, consumed in zip(said, truth.terms, truth.consumed, strict=True):
        found: dict[str, list[float]] = {}
        for share in event.shares:
            found.setdefault(share.op, []).append(share.coefficient)
        if program is clipped:
            (gradient,) = terms["mse_loss"]
            expected = {"mse_loss": [0.25 / (float(np.linalg.norm(gradient)) + 1e-6)]}
        assert found == {op: pytest.approx(of, rel=EXACT) for op, of in expected.items()}
        total = sum(c * g for op, of in found.items() for c, g in zip(of, terms[op], strict=True))
        assert np.linalg.norm(total - consumed) <= event.tolerance * np.linalg.norm(consumed)
        assert event.residual <= event.tolerance == SLACK * torch.finfo(torch.float32).eps


def test_gradients_that_nobody_clears() -> None:
    net = network()
    with asked(every=30) as seen:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(33):
            x, y = batch()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    said = seen.all(OracleExplained)
    assert [e.iteration for e in said] == [0, 1, 2, 3, 4, 30, 31]
    for event in said:
        (fresh,) = [s for s in event.shares if s.kind == "term"]
        earlier = [s for s in event.shares if s.kind == "earlier"]
        assert sum(len(s.backwards) + s.more for s in earlier) == event.iteration
        assert [s.coefficient for s in (fresh, *earlier)] == pytest.approx([1.0] * (1 + len(earlier)), rel=EXACT)
        assert {s.op for s in earlier} <= ({"pass"} if event.iteration < FIRST else {"stood", "pass"})
    (stood,) = [s for s in said[-2].shares if s.op == "stood"]
    assert (stood.backwards[0], stood.backwards[-1], stood.more) == (1, 30, 19)


def test_only_a_part_is_cleared() -> None:
    net = network()
    with asked() as seen:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            net[0].zero_grad()
            x, y = batch()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    last = [e for e in seen.all(OracleExplained) if e.iteration == 2]
    first, second = ({seen.tensor(p) for p in net[i].parameters()} for i in (0, 2))
    kinds = {frozenset(e.tensors): [s.kind for s in e.shares] for e in last}
    assert kinds == {frozenset(first): ["term"], frozenset(second): ["earlier", "earlier", "term"]}


def test_the_gradient_of_another_loss() -> None:
    torch.manual_seed(0)
    actor, critic = nn.Linear(3, 2), nn.Linear(5, 1)
    of_actor, of_critic = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (actor, critic))
    with asked() as seen:
        for _ in range(3):
            state, action, value = torch.randn(8, 3), torch.randn(8, 2), torch.randn(8, 1)
            of_actor.zero_grad()
            (-2 * critic(torch.cat([state, actor(state)], 1)).mean()).backward()
            of_actor.step()
            F.mse_loss(critic(torch.cat([state, action], 1)), value).backward()
            of_critic.step()
            of_critic.zero_grad()
    said = {e.iteration: {s.op: s.coefficient for s in e.shares} for e in seen.all(OracleExplained)}
    assert said[0] == {"mean": pytest.approx(-2.0, rel=EXACT)}
    assert said[1] == {"mean": pytest.approx(-2.0, rel=EXACT), "mse_loss": pytest.approx(1.0, rel=EXACT)}


def test_a_term_without_graph_has_no_share() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with asked() as seen:
        for _ in range(2):
            optimizer.zero_grad()
            x, y = batch()
            out = net(x)
            (F.mse_loss(out, y) + 0.5 * out.detach().diff(dim=0).pow(2).mean()).backward()
            optimizer.step()
    for event in seen.all(OracleExplained):
        assert event.fit == "written"
        shares = {s.kind: (s.op, s.written, s.coefficient) for s in event.shares}
        assert shares == {"term": ("mse_loss", 1.0, 1.0), "constant": ("mean", 0.5, 0.0)}


# ------------------------------------------------------------------------------------------- what it must not do


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return 2 * x * grads[0]


def stepping(net: nn.Module, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        loss(*batch()).backward()
        optimizer.step()


def drops() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    stepping(net, lambda x, y: F.mse_loss(net(x), y))


def writes_in_place() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    stepping(net, lambda x, y: F.mse_loss(net(x), y))


def fills_a_buffer() -> None:
    net = network()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(16, 1)
        rows[:] = net(x)
        return F.mse_loss(rows, y)

    stepping(net, loss)


def custom() -> None:
    net = network()
    stepping(net, lambda x, y: Square.apply(net(x) - y).mean())  # type: ignore[no-untyped-call]


def custom_root() -> None:
    net = network()
    stepping(net, lambda x, y: Square.apply((net(x) - y).mean()))  # type: ignore[no-untyped-call]


def with_a_backward_hook() -> None:
    net = network()
    net[2].register_full_backward_hook(lambda *_: None)
    stepping(net, lambda x, y: F.mse_loss(net(x), y))


def penalised() -> None:
    net = network()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return F.mse_loss(net(x), y) + slope.pow(2).mean()

    stepping(net, loss)


def under_autocast() -> None:
    net = network()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.mse_loss(net(x), y)

    stepping(net, loss)


def half() -> None:
    net = network().bfloat16()
    stepping(net, lambda x, y: F.mse_loss(net(x.bfloat16()), y.bfloat16()))


def with_a_closure() -> None:
    net = network()
    x, y = batch()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


def assigned() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(2):
        x, y = batch()
        found = torch.autograd.grad(F.mse_loss(net(x), y), list(net.parameters()))
        for parameter, gradient in zip(net.parameters(), found, strict=True):
            parameter.grad = gradient
        optimizer.step()


ABSTAINS: dict[Callable[[], None], tuple[str, str]] = {
    drops: ("random", "`dropout` draws"),
    writes_in_place: ("in-place", "`relu` writes"),
    fills_a_buffer: ("in-place", "`setitem` writes"),
    custom: ("custom function", "`Square`"),
    custom_root: ("custom function", "`Square`"),
    with_a_backward_hook: ("custom function", "full backward hook"),
    penalised: ("unseen", "autograd.grad"),
    under_autocast: ("autocast", "autocast was on"),
    half: ("precision", "bfloat16"),
    with_a_closure: ("closure", "closure"),
    assigned: ("assigned", ".grad"),
}


@pytest.mark.parametrize("program", ABSTAINS, ids=lambda p: p.__name__)
def test_it_abstains_and_says_why(program: Callable[[], None]) -> None:
    torch.manual_seed(0)
    with asked() as seen:
        program()
    assert seen.all(OracleExplained) == []
    said = seen.all(OracleAbstained)
    assert len(said) == 2
    for event in said:
        reason, what = ABSTAINS[program]
        assert event.reason == reason
        assert what in event.what
        assert event.where.file in ("", __file__)


def test_without_a_look_at_operations_it_says_so() -> None:
    net = network()
    with asked() as seen:
        seen.session.recorder.forbid_detail("compile", "torch.compile was called")
        stepping(net, lambda x, y: F.mse_loss(net(x), y))
    assert {(e.reason, e.what) for e in seen.all(OracleAbstained)} == {("unseen", "torch.compile was called")}
    assert seen.all(OracleExplained) == []


def test_a_hook_that_changes_the_gradient_is_not_explained_away() -> None:
    net = network()
    net[2].weight.register_hook(lambda g: 3 * g)
    with asked() as seen:
        stepping(net, lambda x, y: F.mse_loss(net(x), y))
    for event in seen.all(OracleExplained):
        assert event.fit == "none"
        assert event.residual > 100 * event.tolerance


def test_an_operation_that_draws_unannounced_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(every: int) -> tuple[torch.Tensor, list[str]]:
        torch.manual_seed(3)
        with asked(every) as seen:
            drops()
        return torch.get_rng_state(), [e.reason for e in seen.all(OracleAbstained)]

    monkeypatch.setattr(_tape, "_draws", lambda *_: False)
    left, reasons = run(10)
    assert set(reasons) <= {"differs", "random"}
    assert len(reasons) == 2
    assert torch.equal(left, run(0)[0])


class Counting(TorchDispatchMode):
    """A program's own look at every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def intricate() -> list[object]:
    """A training that looks closely at itself; what it saw, and its weights."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    seen: list[object] = []
    net[0].weight.register_hook(lambda g: seen.append(("hook", g.sum().item())))
    net[0].register_forward_hook(lambda *_: seen.append("forward"))
    net[3].bias.register_hook(lambda g: seen.append(("another hook", g.tolist())))
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p._version))

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(("packed", tuple(tensor.shape)))
        return tensor

    consumed = register_optimizer_step_pre_hook(lambda *_: seen.append("step"))
    with warnings.catch_warnings(record=True) as warned, Counting() as counting:
        warnings.simplefilter("always")
        for _ in range(4):
            x, y = torch.randn(16, 4), torch.randn(16)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                loss = F.mse_loss(net(x), y) + 0.1 * net[0].weight.pow(2).sum()
                loss.backward()
            optimizer.step()
    consumed.remove()
    seen += [str(w.message) for w in warned]
    seen += counting.seen
    seen += [t.tolist() for t in net.state_dict().values()]
    seen += [p.grad.tolist() for p in net.parameters() if p.grad is not None]
    seen += [torch.get_rng_state().tolist(), net[0].weight._version]
    return seen


def test_the_program_cannot_tell() -> None:
    bare = intricate()
    with asked(every=1) as seen:
        watched = intricate()
    assert watched == bare
    assert [e.fit for e in seen.all(OracleExplained)] == ["written"] * 4
    assert "packed" in str(bare)
    assert "target size" in str(bare)


def _of_the_oracle(session: Session) -> int:
    return sum(call.__module__.endswith(".oracle") for call in session.at_pass)


def test_off_it_is_not_there() -> None:
    session = Session.open(MemorySink())
    session.install()
    try:
        assert session.trace.listeners.ran == []
        assert _of_the_oracle(session) == 0
        assert session.recorder.attention.wanted == range(0)
    finally:
        session.uninstall()
    with asked() as watched:
        assert _of_the_oracle(watched.session) == 1


@pytest.mark.parametrize("every", [-1, True, 0.5])
def test_every_how_many_must_be_a_number(every: int) -> None:
    with pytest.raises(UsageError, match="wanted a whole number: every how many iterations"):
        watch(oracle=every)


def test_which_iterations_are_sampled() -> None:
    assert [i for i in range(45) if i in Sampling(20)] == [*range(FIRST), 20, 21, 40, 41]
    assert all(i in Sampling(1) for i in range(100))
    assert [i for i in range(45) if i in Sampling(40, range(9, 11))] == [*range(FIRST), 9, 10, 40, 41]
    assert LENGTH == 2


# ------------------------------------------------------------------------------------------- the solver


def vectors(rows: np.ndarray, dtype: torch.dtype = torch.float64) -> list[dict[int, torch.Tensor]]:
    """Each row as a gradient in two parts."""
    return [{1: torch.tensor(r[:5], dtype=dtype), 2: torch.tensor(r[5:], dtype=dtype).reshape(-1, 5)} for r in rows]


def test_free_coefficients_are_those_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    rows, noise = rng.normal(size=(4, 25)), rng.normal(size=25)
    for target in (rows.T @ [0.3, -2.0, 0.0, 5.0], rows[0] + noise):
        (consumed,) = vectors(target[None])
        expected, left, _, _ = np.linalg.lstsq(rows.T, target, rcond=None)
        found = solve(consumed, vectors(rows), [1.0] * 4)
        assert found.coefficients == pytest.approx(expected, abs=1e-12)
        assert found.fit == ("free" if float(left[0]) < 1e-20 else "none")


def test_the_simplest_explanation_comes_first() -> None:
    rows = np.random.default_rng(1).normal(size=(3, 25))
    columns = vectors(rows)
    for scale, fit in ((1.0, "written"), (0.37, "scaled")):
        (consumed,) = vectors((scale * (rows.T @ [1.0, 0.5, 2.0]))[None])
        found = solve(consumed, columns, [1.0, 0.5, 2.0])
        assert (found.fit, found.scale) == (fit, pytest.approx(scale))
        assert found.coefficients == pytest.approx([scale, 0.5 * scale, 2 * scale])


def test_one_direction_is_shared_and_said_to_be() -> None:
    a, b = np.random.default_rng(2).normal(size=(2, 25))
    (consumed,) = vectors((6 * a + b)[None])
    found = solve(consumed, vectors(np.stack([a, b, 2 * a])), [1.0, 1.0, 1.0])
    assert found.fit == "free"
    assert found.ties == (1, 0, 1)
    assert found.coefficients == pytest.approx([2.0, 1.0, 2.0])


def test_gradients_that_depend_on_each_other_leave_coefficients_open() -> None:
    a, b = np.random.default_rng(3).normal(size=(2, 25))
    columns = vectors(np.stack([a, b, a + b]))
    (consumed,) = vectors((2 * a + 2 * b)[None])
    found = solve(consumed, columns, [1.0, 1.0, 1.0])
    assert found.fit == "written"
    assert found.bounds == (float("inf"),) * 3
    (other,) = vectors((2 * a + 7 * b)[None])
    assert solve(other, columns, [1.0, 1.0, 1.0]).fit == "none"


def test_a_bound_holds_what_rounding_hides() -> None:
    rng = np.random.default_rng(4)
    a = rng.normal(size=25)
    small = 1e-6 * rng.normal(size=25)
    (consumed,) = vectors((a + 2 * small)[None], torch.float32)
    found = solve(consumed, vectors(np.stack([a, small]), torch.float32), [1.0, 1.0])
    assert found.fit == "written"  # whether the small one counts once or twice is below what single precision can tell
    assert found.bounds[0] < 1e-3
    assert found.bounds[1] > 1.0
