"""Evidence from the source of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradledger.audit import _code, _unwritten, _updates


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_called_names_are_those_of_plain_names(tmp_path: Path) -> None:
    file = write(tmp_path, "y = self.target(self.encode(s)).max(1)\nz = nets['q'](x)\n")
    assert _code.called_names(file, 1) == ["target", "encode"]
    assert _code.called_names(file, 2) == ["q"]
    assert _code.called_names("nowhere.py", 1) == []


@pytest.mark.parametrize(
    ("line", "names", "owners"),
    [
        ("v = self.target.model(torch.cat(a) if len(a) > 1 else a[0])", ["model"], {"target"}),
        ("v = target(cat(a), nn.functional.relu(b), F.one_hot(c), np.stack(d), math.sqrt(2))", ["target"], set()),
        ("v = F.relu(nets.target(x))", ["target"], {"nets"}),
        ("v = torch(x).target(y)", [], set()),
    ],
)
def test_what_is_called_of_libraries_and_builtins_is_none_of_the_programs_names(
    line: str, names: list[str], owners: set[str], tmp_path: Path
) -> None:
    heads = "import torch, math\nimport numpy as np\nfrom torch import cat, nn\nimport torch.nn.functional as F\n"
    file = write(tmp_path, f"{heads}from models import nets, target\n{line}\n")
    assert _code.called_names(file, 6) == names
    assert _code.owners_called(file, 6) == owners


@pytest.mark.parametrize(
    "text", ["self.target = self.online", "target = online", "a, target = b, online", "online = target = Net()"]
)
def test_aliases(tmp_path: Path, text: str) -> None:
    assert _code.alias_line(write(tmp_path, text + "\n"), ["target"], ["online"]) == ("target", "online", 1)


@pytest.mark.parametrize("text", ["target = copy.deepcopy(online)", "target = online()", "online = target"])
def test_what_is_no_alias(tmp_path: Path, text: str) -> None:
    assert _code.alias_line(write(tmp_path, text + "\n"), ["target"], ["online"]) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("target_net", True), ("qTarget", True), ("ema", True), ("ref_model", True), ("old_policy", True),
        ("q_tgt", True),
        ("schema", False), ("threshold", False), ("flag", False), ("prefix", False), ("q_net", False),
    ],
)  # fmt: skip
def test_names_that_say_lagging(name: str, says: bool) -> None:
    assert _code.lagging(name) is says


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("tgt.load_state_dict(net.state_dict())", [1]),
        ("state = net.state_dict()\ntgt.load_state_dict(state)", [2]),
        ("for t, p in zip(tgt.parameters(), net.parameters()):\n    t.data.copy_(p.data)", [1]),
        ("for t, p in zip(tgt.parameters(), net.parameters()):\n    t = 0.9 * t + 0.1 * p", [1]),
        ("mine = tgt.state_dict()\nfor k in mine:\n    mine[k] = net.state_dict()[k]", [3]),
        ("def sync():\n    tgt.load_state_dict(net.state_dict())\nsync()", [2, 3]),
        ("soft_update(net, tgt, 0.1)", [1]),
        ("torch._foreach_lerp_(list(tgt.parameters()), list(net.parameters()), 0.1)", [1]),
        ("tgt.load_state_dict(torch.load(path))", []),
        ("net.load_state_dict(tgt.state_dict())", []),
        ("for p in tgt.parameters():\n    p.requires_grad = False", []),
        ("polyak_update(net.parameters(), tgt.parameters(), 0.1)", [1]),
        ("y = tgt(x)", []),
        ("best = copy.deepcopy(tgt.state_dict())", []),
        ("meter.update(tgt)", []),
        ("p = F.softmax(tgt, 1)", []),
    ],
)
def test_lines_that_update(tmp_path: Path, text: str, lines: list[int]) -> None:
    assert list(_updates.update_lines(write(tmp_path, text + "\n"), ["tgt"])) == lines


def test_names_on_the_way_to_what_is_called(tmp_path: Path) -> None:
    file = write(tmp_path, "y = self.target.model(x).float()\nz = agents['a'].net(x)\n")
    assert _code.owners_called(file, 1) == {"target"}
    assert _code.owners_called(file, 2) == {"a", "agents"}


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        ("tgt = deepcopy(net)\ny = tgt(x).softmax(1)", False),  # line 1 ran before the training
        ("tgt = deepcopy(net)\nif late:\n    tgt = deepcopy(net)", True),
        ("tgt = make()\nbring_into(net, tgt)\ncopy_weights(net, tgt)", True),
        ("tgt = make()\nfor k, v in state.items():\n    getattr(tgt, k).data = v", True),
        ("tgt = make()\nlog.update(loss=1)  # tgt", False),
        ("self.tgt = make()\ntgt = reward + gamma * value", False),
    ],
)
def test_whether_a_file_speaks_of_an_update(tmp_path: Path, text: str, speaks: bool) -> None:
    file = write(tmp_path, text + "\n")
    assert _unwritten.speaks_of_update(file, ["tgt"], {(file, 1)}) is speaks


@pytest.mark.parametrize(
    ("text", "line", "due"),
    [
        ("sync()", 1, 0),
        ("if step % 25 == 0:\n    sync()", 2, 25),
        ("EVERY = 40\nif (step + 1) % EVERY == 0:\n    sync()", 3, 40),
        ("def learn(n, every=30):\n    if n % every == 0:\n        sync()", 3, 30),
        ("parser.add_argument('--sync-every', default=70)\nif n % args.sync_every == 0:\n    sync()", 3, 70),
        ("if (step + 1) % every == 0:\n    sync()", 2, None),
        ("if ready:\n    sync()", 2, None),
        ("if __name__ == '__main__':\n    sync()", 2, 0),
        ("if n > 500 and n % 10 == 0:\n    sync()", 2, 500),
        ("if before // 80 != n // 80:\n    sync()", 2, 80),
        ("class A:\n    every: int = option(60, 'steps')\nif m // a.every != n // a.every:\n    sync()", 4, 60),
        ("class A:\n    every: int = field(default=60)\nif n % self.every == 0:\n    sync()", 4, 60),
        ("if m // every != n // every:\n    sync()", 2, None),
    ],
)
def test_how_long_a_condition_may_wait(tmp_path: Path, text: str, line: int, due: float | None) -> None:
    assert _code.due_every(write(tmp_path, text + "\n"), line) == due


def test_lines_that_bind_memory(tmp_path: Path) -> None:
    text = "a.data = b.data\na.data = b.data.clone()\na.data.copy_(b.data)\nt.load_state_dict(s, assign=True)\n"
    assert _code.sharing_lines(write(tmp_path, text)) == [1, 4]
