"""Faults planted in a copy of arm6_policy's source, as those of `faults.py` are in the DQN recipe.

    python tests/recipes/arm6_faults.py OUT.json [name ...]     audits the copies and writes what was found
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recipes import faults
from recipes.faults import MARK, Fault, marked

RECIPE = faults.ROOT / "src" / "gradledger" / "recipes" / "arm6_policy.py"

LOOP = """        for told in steps(self.engine, self.optimizer, self.batches()):
            counters["optimizer_step"] += 1
            total, count = total + told.loss, count + 1
"""
HEAD, CLEAR = "        for x, y in self.batches():\n", "            self.optimizer.zero_grad(set_to_none=True)\n"
BACKWARD, STEP = "            loss = self.engine.backward(x, y)\n", "            self.optimizer.step()\n"
COUNT = """            counters["optimizer_step"] += 1
            total, count = total + loss, count + 1
"""
CLIP = "            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)\n"
SCHEDULE = "        self.scheduler.step()\n"
ADAM = "        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=RATE)\n"
COSINE = """        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config["epochs"])
"""
MASKED = "    return masked_mean((said - action).square(), mask)\n"
SAID = "            said = run.net(torch.from_numpy(seen)).numpy()\n"
LAYER = "        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),\n"

# Behind the run state: it refuses parameters that have no optimizer, which is louder than what is planted here.
LAST = "        self.losses: list[float] = []\n"
NEW_HEAD = "        self.net[3] = nn.Linear(WIDTH, 6)\n"
GRAPHS = "            loss = loss_of(self.net(x), y)\n            loss.backward()\n"

# Where nothing is learned, more is true: the loss that reaches nothing.
IDLE = frozenset({"GL-G10", "GL-G20", "GL-T08"})


def by_hand(*parts: str) -> tuple[tuple[str, str], ...]:
    """The loop written out instead of `steps`, as someone does who begins with a copy of the recipe."""
    return ((LOOP, "".join(parts)),)


FAULTS: tuple[Fault, ...] = (
    Fault("nothing", None),
    Fault("nothing, sweep", None, words="sweep"),
    Fault("nothing, the loop by hand", None, by_hand(HEAD, CLEAR, BACKWARD, CLIP, STEP, COUNT)),
    Fault("no clear", "GL-G01", by_hand(HEAD, BACKWARD, STEP, COUNT), at=(BACKWARD.strip(),)),
    Fault(
        "cleared between backward and step",
        "GL-G02",
        by_hand(HEAD, BACKWARD, marked(CLEAR), STEP, COUNT),
        also=IDLE,
    ),
    Fault("step before backward", "GL-G04", by_hand(HEAD, CLEAR, marked(STEP), BACKWARD, COUNT), also=IDLE),
    Fault("clipped after the step", "GL-O05", by_hand(HEAD, CLEAR, BACKWARD, STEP, marked(CLIP), COUNT)),
    Fault(
        "losses kept with their graphs",
        "GL-G15",
        by_hand(HEAD, CLEAR, GRAPHS, STEP, COUNT.replace("count + 1\n", f"count + 1  {MARK}\n")),
    ),
    Fault(
        "schedule of epochs stepped by batches",
        "GL-O02",
        by_hand(HEAD, CLEAR, BACKWARD, STEP, "    " + SCHEDULE, COUNT),
        at=('T_max=config["epochs"]',),
    ),
    Fault("schedule stepped before the optimizer", "GL-O01", ((SCHEDULE, ""), (LOOP, marked(SCHEDULE) + LOOP))),
    Fault(
        "optimizer built anew after its schedule", "GL-O03", ((COSINE, COSINE + ADAM),), at=("CosineAnnealingLR(",)
    ),
    Fault("padding in the loss", "GL-D04", ((MASKED, marked("    return (said - action).square().mean()\n")),)),
    Fault(
        "masked, and then averaged over the padding",
        "GL-L02",
        ((MASKED, marked("    return ((said - action).square() * mask[..., None]).mean()\n")),),
    ),
    Fault("loss without a graph", "GL-G10", ((MASKED, marked(MASKED.replace("(said -", "(said.detach() -"))),)),
    Fault("head replaced behind the optimizer", "GL-M04", ((LAST, LAST + marked(NEW_HEAD)),)),
    Fault(
        "dropout, evaluated in train mode",
        "GL-E01",
        ((LAYER, LAYER.replace("nn.ReLU()", "nn.ReLU(), nn.Dropout(0.1)")),),
        at=(SAID.strip(),),
    ),
)

CONFIG = {
    "engine": "autograd", "epochs": 4, "demonstrations": 24, "noise": 0.2, "observe": "target", "episodes": 8,
    "interrupt": False,
}  # fmt: skip


def write(fault: Fault, folder: Path) -> None:
    """The program: `recipe.py` with the fault, and `program.py` that runs one small trial of it."""
    folder.mkdir(parents=True)
    (folder / "recipe.py").write_text(faults.plant(fault, RECIPE)[0], encoding="utf-8")
    config = CONFIG | ({"engine": fault.words, "interrupt": True} if fault.words else {})
    call = f"print(recipe.experiment({config!r}, 0).quantities['final_distance_m'])"
    (folder / "program.py").write_text(f"import recipe\n\nrecipe.BATCH = 8\n{call}\n", encoding="utf-8")


if __name__ == "__main__":
    for name in ("gymnasium", "mujoco", "pyarrow.parquet", "safetensors.torch", "scipy.spatial"):
        importlib.import_module(name)  # what every copy imports, once for all of them
    faults.chosen_of(FAULTS, write)
