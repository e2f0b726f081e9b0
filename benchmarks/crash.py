"""Kill -9 a training run at random moments; every time it must go on to the same weights, bit for bit.

    python benchmarks/crash.py [--kills 200] [--rng-seed 0] [--steps 60] [--every 4] [--background] [--json FILE]

One run is left alone; its final weights, its losses and its wall time are the measure. Then, as often as asked, the
same run starts in an empty folder, is killed with SIGKILL at a moment drawn uniformly from that time (so also while a
checkpoint is being written), and goes on in a new process. A kill that came after the end does not count, and from then
on moments are drawn from the time of the run that was faster: a machine that was busy while the first one was timed
would else let most kills come too late. Counted are:
checkpoints that were reported as written and are not there (lost), folders that look like checkpoints and cannot be
loaded (half), and runs whose final weights, shadow copy or losses after the resume differ from the run that was left
alone.

The training holds one of everything that a checkpoint must bring back: tied weights, dropout, batch statistics, two
optimizers, two schedulers, a gradient scaler, a shadow copy, generators of numpy and torch, and the global streams.
Children are forks of one process that has torch loaded, also what optimizers load at their first step, and has run
nothing: the moments fall into training and saving, not into imports. With --background nobody waits for a checkpoint
(`wait=False`): one counts as reported once the next save has begun.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
from torch import nn

from gradledger.core.checkpoints import candidates, complaint, step_of
from gradledger.train import RunState, Shadow


class Net(nn.Module):
    """A tied autoencoder of tokens with dropout and normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 128)
        self.norm = nn.BatchNorm1d(128)
        self.hidden = nn.Linear(128, 128)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(128, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B,) tokens -> (B, 64) logits."""
        return self.head(self.drop(torch.tanh(self.hidden(self.norm(self.embed(tokens))))))


def train(folder: Path, *, steps: int, every: int, say: int, background: bool = False) -> None:
    """The run: from the newest checkpoint, or from the start.

    Tells on the pipe `say` what is safe, each loss, and at its end the digest of all weights and its seconds.
    """
    began = time.perf_counter()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    net, critic = Net(), nn.Linear(64, 1)
    first, second = torch.optim.AdamW(net.parameters(), 1e-2), torch.optim.SGD(critic.parameters(), 0.05, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(first, steps)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(second, patience=2)
    scaler, ema = torch.amp.GradScaler("cpu", growth_interval=7), Shadow(net)
    noise, choice = np.random.Generator(np.random.Philox(1)), torch.Generator().manual_seed(1)
    state = RunState(
        net=net,
        critic=critic,
        first=first,
        second=second,
        cosine=cosine,
        plateau=plateau,
        scaler=scaler,
        ema=ema,
        noise=noise,
        choice=choice,
    )
    if candidates(folder):
        saved = state.load(folder)
        tell(say, "resumed", saved.step)
    while state.counters["optimizer_step"] < steps:
        tokens = torch.randint(0, 64, (32,), generator=choice)
        target = torch.tensor(noise.normal(size=(32, 1)) + random.gauss(0, 0.1) + np.random.normal(0, 0.1)).float()
        first.zero_grad()
        second.zero_grad()
        logits = net(tokens)
        loss = nn.functional.cross_entropy(logits, tokens) + (critic(logits) - target).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        cosine.step()
        plateau.step(float(loss.detach()))
        ema.blend(0.05)
        state.counters["optimizer_step"] += 1
        step = state.counters["optimizer_step"]
        tell(say, "loss", step, float(loss.detach()).hex())
        if step % every == 0:
            done = state.wait()  # a save that is not waited for; None where each is
            if done is not None:
                tell(say, "saved", step_of(done))
            state.save(folder, step, wait=not background)
            if not background:
                tell(say, "saved", step)
    state.wait()
    digest = hashlib.sha256()
    for tensor in (*net.state_dict().values(), *critic.state_dict().values(), *ema.model.state_dict().values()):
        digest.update(tensor.contiguous().numpy().tobytes())
    tell(say, "ended", digest.hexdigest(), time.perf_counter() - began)


def tell(pipe: int, *words: object) -> None:
    """One line in one write: whole, or not there."""
    os.write(pipe, (" ".join(map(str, words)) + "\n").encode())


def run(
    folder: Path, *, steps: int, every: int, background: bool = False, kill_after: float | None = None
) -> list[list[str]]:
    """The run in a child, killed after so many seconds. Returns what it told."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            train(folder, steps=steps, every=every, say=writer, background=background)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    os.close(writer)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as pipe:
        said = [line.split() for line in pipe]
    os.waitpid(child, 0)
    return said


def losses(said: list[list[str]]) -> dict[str, str]:
    """Loss by step, to the bit."""
    return {words[1]: words[2] for words in said if words[0] == "loss"}


def main() -> int:
    """Print one line of counts; 1 when any of them should be zero and is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rng-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--background", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = random.Random(options.rng_seed)
    size = {"steps": options.steps, "every": options.every, "background": options.background}
    counts = dict.fromkeys(("kills", "too_late", "while_saving", "lost", "half", "other_weights", "other_losses"), 0)
    with tempfile.TemporaryDirectory() as scratch:
        alone = run(Path(scratch) / "alone", **size)
        if not alone or alone[-1][0] != "ended":
            print("the run that is left alone does not come to its end", file=sys.stderr)
            return 2
        _, weights, seconds = alone[-1]
        whole = float(seconds)
        while counts["kills"] < options.kills and counts["too_late"] < 3 * options.kills:
            folder = Path(scratch) / "run"
            said = run(folder, **size, kill_after=rng.uniform(0.0, whole))
            in_time = not said or said[-1][0] != "ended"
            counts["kills" if in_time else "too_late"] += 1
            if not in_time:
                whole = min(whole, float(said[-1][2]))
                shutil.rmtree(folder, ignore_errors=True)
                continue
            safe = max((int(words[1]) for words in said if words[0] == "saved"), default=0)
            counts["while_saving"] += any(folder.glob("*.tmp"))
            found = [path for path in candidates(folder) if complaint(path, deep=True) is None]
            counts["half"] += len(candidates(folder)) - len(found)
            newest = max((step_of(path) for path in found), default=0)
            counts["lost"] += newest < safe
            again = run(folder, **size)
            counts["other_weights"] += not again or again[-1][:2] != ["ended", weights]
            expected, after = losses(alone), losses(again)
            counts["other_losses"] += any(expected[step] != value for step, value in after.items())
            shutil.rmtree(folder, ignore_errors=True)
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items())
    print(f"{shown}   (one run: {options.steps} steps, a checkpoint every {options.every}, {whole:.2f} s)")
    if options.json is not None:
        options.json.write_text(json.dumps({**counts, **size, "seconds_of_a_run": round(whole, 3)}, indent=1) + "\n")
    wrong = any(counts[name] for name in ("lost", "half", "other_weights", "other_losses"))
    return int(wrong or counts["kills"] < options.kills)


if __name__ == "__main__":
    sys.exit(main())
