"""Faults planted in a copy of the DQN recipe's source, each with the code and the line that an audit has to name.

    python tests/recipes/faults.py OUT.json [name ...]      audits the copies, two at a time, and writes what was found

A fault is a list of exact replacements. Where a text is gone, or there twice, planting fails: the recipe has changed
and the fault with it. The line to be named is one that the replacement marks with ``# planted``, or, where something is
left out, one with the text in `at`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "src" / "gradledger" / "recipes" / "dqn_atari.py"
MARK = "# planted"

WORDS = (
    "--preset smoke --env CartPole-v1 --engine autograd --total-steps 640 --learning-starts 120 --target-sync 80 "
    "--eval-episodes 1 --log-every 320 --checkpoint-every 10000 --max-episode-steps 40 --update-every 4 --lanes 4 "
    "--no-pictures"
)


def marked(line: str) -> str:
    """The line with the mark behind it."""
    return line.replace("\n", f"  {MARK}\n")


@dataclass(frozen=True)
class Fault:
    """code: None for a recipe that is right. edits: (text that is there once, text instead). words: options beside
    WORDS. at: lines to be named by a text in them, beside the marked ones. also: codes that are true as well. resumes:
    the program runs to the half, and goes on from the checkpoint. neighbour: the file beside the recipe that is edited
    instead of it. related: the planted line stands among the related ones of the finding, whose own line is another
    that takes part (the training call of a network in eval mode). named_in: the file beside the recipe in which the
    texts of `at` stand, where it is not the file that is edited."""

    name: str
    code: str | None
    edits: tuple[tuple[str, str], ...] = ()
    words: str = ""
    at: tuple[str, ...] = ()
    also: frozenset[str] = frozenset()
    resumes: bool = False
    neighbour: str = ""
    related: bool = False
    named_in: str = ""

    @property
    def file(self) -> str:
        """Name of the file in which the fault lies."""
        return self.neighbour or "recipe.py"

    @property
    def named(self) -> str:
        """Name of the file that the finding names."""
        return self.named_in or self.file


TARGET = """            with torch.no_grad():
                next_target = self.target.model(following).float()
                next_online = self.compute(following).float() if args.double else None
            target = rl.td_target(batch.reward, batch.discount, next_target, next_online_q=next_online)
"""
CLEAR = "            self.optimizer.zero_grad(set_to_none=True)\n"
BACKWARD = "            loss = self.engine.backward(states, (batch.action, target, batch.weight))\n"
COLLECT = "            self.collect_gradients()\n"
CLIP = "            norm = nn.utils.clip_grad_norm_(self.online.parameters(), args.clip)\n"
STEP = "            self.optimizer.step()\n"
ADAM = """        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=args.learning_rate, eps=args.adam_epsilon, fused=True
        )
"""
SHADOW = "        self.target = Shadow(self.compute, make=lambda: network(args, simulator, self.dtype))\n"
LOSS = "            return rl.td_loss(q.float(), action, target, scale=args.seed_scale)\n"
SUM = '        self.sums["loss"] += float(loss)\n'
SYNC = "            self.target.sync()\n"
GREEDY = """        with torch.no_grad():
            best = self.compute(self.inputs(torch.from_numpy(states))).argmax(dim=1)
"""
RESTORE = (
    "    optimizer_state.restore(run.optimizer, run.online.named_parameters(), "
    'parts["optimizer"], facts["optimizer"])\n'
)
LOAD = 'run.online.load_state_dict(parts["model"])'
SYNC_BLOCK = """        if learning and before // args.target_sync != counters.env_step // args.target_sync:
            self.target.sync()
            counters.target_sync += 1
"""
SIZE = "math.prod(simulator.observation_shape)"
MLP = f"    return rl.mlp_q_network({SIZE}, simulator.actions, **chosen).to(args.device)\n"
DROPOUT = f"""    net = rl.mlp_q_network({SIZE}, simulator.actions).to(args.device, dtype)
    return nn.Sequential(*net[:-1], nn.Dropout(0.1), net[-1])
"""

SELF_SYNC = "            self.target.model.load_state_dict(self.target.model.state_dict())\n"
NEW_NETWORK = "        self.online = self.compute = network(args, simulator, torch.float32)\n"
NEW_HEAD = "        self.compute[-1] = nn.Linear(self.compute[-1].in_features, self.compute[-1].out_features)\n"
EVAL = "        self.compute.eval()\n"

# A network that is not trained leaves further traces: the target is synced without a change, losses reach nothing.
NOT_TRAINED = frozenset({"GL-T08", "GL-G10"})

FAULTS: tuple[Fault, ...] = (
    Fault("nothing", None),
    Fault("nothing, sweep", None, words="--engine sweep --double --n-step 3"),
    Fault("nothing, sweep on a bf16 copy", None, words="--engine sweep --precision bf16"),
    Fault("nothing, resumed", None, resumes=True),
    Fault("nothing, dueling and prioritised", None, words="--engine sweep --double --dueling --priority 0.6"),
    # the life of a gradient
    Fault("no clear", "GL-G01", ((CLEAR, ""),), at=("loss = self.engine.backward",)),
    Fault("no clear under the sweep", "GL-G01", ((CLEAR, ""),), "--engine sweep", at=("loss = self.engine.backward",)),
    Fault(
        "cleared between backward and step",
        "GL-G02",
        ((CLEAR, ""), (COLLECT, COLLECT + marked(CLEAR))),
        also=NOT_TRAINED,
    ),
    Fault("step before backward", "GL-G04", ((STEP, ""), (BACKWARD, marked(STEP) + BACKWARD)), also=NOT_TRAINED),
    Fault("clipped after the step", "GL-O05", ((CLIP, ""), (STEP, STEP + marked(CLIP)))),
    Fault("clips the target network", "GL-O05", ((CLIP, marked(CLIP.replace("online", "target.model"))),)),
    Fault("loss without a graph", "GL-G10", ((LOSS, marked(LOSS.replace("q.float()", "q.detach().float()"))),)),
    Fault(
        "losses kept with their graphs",
        "GL-G15",
        (
            (
                BACKWARD,
                """            loss = loss_of(args, [])(self.compute(states), (batch.action, target, batch.weight))
            loss.backward()
""",
            ),
            (SUM, marked(SUM.replace("float(loss)", "loss"))),
        ),
    ),
    Fault("acts with a graph", "GL-G16", ((GREEDY, marked(GREEDY.splitlines(True)[1][4:])),)),
    # the target network
    Fault(
        "target of the shared network keeps its graph",
        "GL-T01",
        (
            (
                TARGET,
                f"""            value = self.compute(following).float().max(dim=1).values
            target = batch.reward + batch.discount * value  {MARK}
""",
            ),
        ),
    ),
    Fault(
        "target in the optimizer",
        "GL-T02",
        (
            (
                ADAM,
                f"""        self.target.model.requires_grad_(True)
        moving = [*self.online.parameters(), *self.target.model.parameters()]
        self.optimizer = torch.optim.Adam(moving, lr=args.learning_rate, weight_decay=1e-4)  {MARK}
""",
            ),
        ),
    ),
    Fault(
        "target shares the storage of the online network",
        "GL-T03",
        (
            (
                SHADOW,
                SHADOW
                + f"""        for mine, theirs in zip(self.target.model.parameters(), self.compute.parameters()):
            mine.data = theirs.data  {MARK}
""",
            ),
        ),
    ),
    Fault("target copied into itself", "GL-T08", ((SYNC, marked(SELF_SYNC)),)),
    Fault(
        "target never synced",
        "GL-T08",
        ((SYNC_BLOCK, ""),),
        "--update-every 2",
        at=("next_target = self.target.model(following)",),
    ),
    Fault(
        "terminal states bootstrap",
        "GL-R01",
        (
            (
                TARGET,
                f"""            with torch.no_grad():
                value = self.target.model(following).float().max(dim=1).values
            action, reward, length, terminated = batch.action, batch.reward, batch.length, batch.terminated
            target = reward + args.gamma * value  {MARK}
""",
            ),
        ),
    ),
    # networks, modes, shapes
    Fault(
        "network replaced behind the optimizer",
        "GL-M05",
        ((ADAM, ADAM + marked(NEW_NETWORK)),),
        also=frozenset({"GL-T08"}),
        related=True,
    ),
    Fault("head replaced behind the optimizer", "GL-M04", ((ADAM, ADAM + marked(NEW_HEAD)),)),
    Fault(
        "column against vector in the loss",
        "GL-D05",
        (
            (
                LOSS,
                f"""            taken = q.float().gather(1, action[:, None])
            return args.seed_scale * nn.functional.smooth_l1_loss(taken, target)  {MARK}
""",
            ),
        ),
    ),
    Fault(
        "resumed without the optimizer",
        "GL-C01",
        ((RESTORE, ""),),
        at=(LOAD,),
        resumes=True,
        neighbour="_dqn_state.py",
    ),
    Fault(
        "evaluated in train mode",
        "GL-E01",
        ((MLP, DROPOUT),),
        "--total-steps 180",  # the evaluation comes while every iteration is watched in full
        at=("scored = rl.evaluate(",),
        named_in="_dqn_score.py",
    ),
    Fault("trains in eval mode", "GL-E02", ((MLP, DROPOUT), (GREEDY, marked(EVAL) + GREEDY)), related=True),
)


def plant(fault: Fault, recipe: Path = RECIPE) -> tuple[str, frozenset[int]]:
    """The source with the fault in it, a recipe's or its neighbour's, and the lines of which the audit has to name one.

    Raises:
        LookupError: a text is not there exactly once.
    """
    path = recipe.with_name(fault.neighbour) if fault.neighbour else recipe
    source = path.read_text(encoding="utf-8")
    for old, new in fault.edits:
        if source.count(old) != 1:
            raise LookupError(f"fault '{fault.name}': {source.count(old)} times in {path.name}, not once:\n{old}")
        source = source.replace(old, new)
    lines = source.splitlines()
    if fault.named_in:
        lines = recipe.with_name(fault.named_in).read_text(encoding="utf-8").splitlines()
    named = {i for i, line in enumerate(lines, 1) if MARK in line or any(text in line for text in fault.at)}
    if fault.code and not named:
        raise LookupError(f"fault '{fault.name}': no line to be named")
    return source, frozenset(named)


def write(fault: Fault, folder: Path) -> None:
    """The program: `recipe.py` with the fault, and `program.py` that runs it."""
    folder.mkdir(parents=True)
    (folder / "recipe.py").write_text(RECIPE.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / fault.file).write_text(plant(fault)[0], encoding="utf-8")
    words = [*WORDS.split(), *fault.words.split(), "--out", "run"]
    calls = [words]
    if fault.resumes:
        again = ["--resume", "--out", "run", "--total-steps", "640"]
        calls = [[*words, "--checkpoint-every", "320", "--total-steps", "320"], again]
    lines = "\n".join(f"code = code or recipe.main({call!r})" for call in calls)
    name = Path(fault.neighbour).stem
    known = f"gradledger.recipes.{name}"
    instead = f"import gradledger.recipes\nimport {name}\n{known} = sys.modules['{known}'] = {name}\n" if name else ""
    program = f"import sys\n{instead}\nimport recipe\n\ncode = 0\n{lines}\nsys.exit(code)\n"
    (folder / "program.py").write_text(program, encoding="utf-8")


def audit_all(
    faults: list[Fault], *, workers: int = 2, written: Callable[[Fault, Path], None] = write
) -> dict[str, dict[str, Any]]:
    """By name: the findings of the audit, its exit code and what the program printed. written: writes a program."""
    sys.path.insert(0, str(ROOT / "tools"))
    import _forkserver

    _forkserver.preload()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = {}
        for k, fault in enumerate(faults):
            written(fault, Path(folder) / str(k))
            jobs[_forkserver.Job(Path(folder) / str(k), "program.py")] = fault.name
        for result in _forkserver.run_all(jobs, workers=workers, timeout=120):
            keys = ("code", "severity", "file", "line", "related_lines", "message")
            found[jobs[result.job]] = {
                "findings": [{key: finding.get(key) for key in keys} for finding in result.findings],
                "exit_code": result.exit_code,
                "output": result.output[-4000:],
                "reported": result.report is not None,
                "seconds": result.seconds,
            }
    return found


def chosen_of(known: Sequence[Fault], written: Callable[[Fault, Path], None] = write) -> None:
    """The command line of a file of faults: `OUT.json [name ...]`."""
    names = set(sys.argv[2:])
    found = audit_all([fault for fault in known if not names or fault.name in names], written=written)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1), encoding="utf-8")


def found_by(program: str | None, folder: Path) -> dict[str, dict[str, Any]]:
    """What a file of faults, run as a program, writes: torch is imported once for all of its faults."""
    out = folder / "found.json"
    done = subprocess.run(
        [sys.executable, str(program), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert out.is_file(), done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    chosen_of(FAULTS)
