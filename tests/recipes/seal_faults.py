"""Faults planted in a copy of seal_scout's source, as those of `faults.py` are in the DQN recipe.

    python tests/recipes/seal_faults.py OUT.json [name ...]     audits the copies and writes what was found
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recipes import faults
from recipes.faults import MARK, Fault, marked

RECIPE = faults.ROOT / "src" / "gradledger" / "recipes" / "seal_scout.py"

CLEAR = "            self.optimizer.zero_grad(set_to_none=True)\n"
LOSS = "            loss = loss_of(said, offset, self.scout.label[1])\n"
BACKWARD = "            loss.backward()  # type: ignore[no-untyped-call]\n"
CLIP = "            nn.utils.clip_grad_norm_(self.scout.parameters(), CLIP)\n"
STEP = "            self.optimizer.step()\n"
SUM = "            total += loss.item()\n"
LAST = "        self.validation: list[float] = []\n"  # of the trial's parts: what follows comes behind the optimizer
LOOP = "        counters, total = self.state.counters, 0.0\n"
SCHEDULE = "        self.scheduler.step()\n"
EVALUATE = "        with evaluating(self.scout):\n"
EPOCHS = 'optimizer, T_max=config["epochs"])\n'

HEAD = "        self.scout.net[-1][-1] = nn.Linear(32, 2)\n"
AGAIN = "        self.scout = Scout(kind, self.data.shape, scaling(images, offset, light), light)\n"

# Where nothing is learned, more is true: the loss that reaches nothing, the part that never moves.
IDLE = frozenset({"GL-G10", "GL-G20", "GL-T08"})

FAULTS: tuple[Fault, ...] = (
    Fault("nothing", None),
    Fault("no clear", "GL-G01", ((CLEAR, ""),), at=("loss.backward()",)),
    Fault("cleared between backward and step", "GL-G02", ((CLEAR, ""), (CLIP, CLIP + marked(CLEAR))), also=IDLE),
    Fault("step before backward", "GL-G04", ((STEP, ""), (BACKWARD, marked(STEP) + BACKWARD)), also=IDLE),
    Fault("clipped after the step", "GL-O05", ((CLIP, ""), (STEP, STEP + marked(CLIP)))),
    Fault("loss without a graph", "GL-G10", ((LOSS, marked(LOSS.replace("said,", "said.detach(),"))),)),
    Fault("losses kept with their graphs", "GL-G15", ((SUM, marked(SUM.replace(".item()", ""))),)),
    Fault("trains in eval mode", "GL-E02", ((LOOP, marked("        self.scout.eval()\n") + LOOP),), related=True),
    Fault(
        "evaluated in train mode",
        "GL-E01",
        ((EVALUATE, "        with torch.no_grad():\n"),),
        at=("away = self.scout(images)",),
    ),
    Fault("head replaced behind the optimizer", "GL-M04", ((LAST, LAST + marked(HEAD)),)),
    Fault("net replaced behind the optimizer", "GL-M05", ((LAST, LAST + marked(AGAIN)),), also=IDLE, related=True),
    Fault(
        "column against vector in the loss",
        "GL-D05",
        ((LOSS, f"            loss = nn.functional.mse_loss(said[:, 0], offset)  {MARK}\n"),),
    ),
    Fault(
        "schedule of epochs stepped by batches",
        "GL-O02",
        ((SCHEDULE, ""), (STEP, STEP + marked("    " + SCHEDULE))),
        at=(EPOCHS.strip(),),
    ),
)


def write(fault: Fault, folder: Path) -> None:
    """The program: `recipe.py` with the fault, and `program.py` that runs one small trial of it; the right one runs
    three, with a resume and with the dense net."""
    folder.mkdir(parents=True)
    (folder / "recipe.py").write_text(faults.plant(fault, RECIPE)[0], encoding="utf-8")
    config = {
        "data": "generated", "target": "offset_mm", "bursts": 30, "frames": 2, "net": "conv", "split": "burst",
        "light": "normalised", "augment": True, "labels": "measured", "epochs": 2, "interrupt": False, "risk": 0.1,
        "alpha": 0.1,
    }  # fmt: skip
    configs = [config]
    if fault.code is None:
        configs += [config | {"interrupt": True}, config | {"net": "mlp", "light": "recorded", "split": "frame"}]
    calls = "\n".join(f"print(recipe.experiment({one!r}, 0).quantities['mae'])" for one in configs)
    (folder / "program.py").write_text(f"import recipe\n\nrecipe.BATCH = 4\n{calls}\n", encoding="utf-8")


if __name__ == "__main__":
    faults.chosen_of(FAULTS, write)
