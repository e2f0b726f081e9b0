"""From the bytes of one crop to an offset with its interval, or to a reason for none: the path that a caller takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradledger.core.files import file_digest
from gradledger.data.schema import Schema, from_json
from gradledger.data.transform import bytes_to_unit
from gradledger.evidence import bundle
from gradledger.recipes import _folder, _seal_image
from gradledger.recipes._seal_image import CropError, refused
from gradledger.recipes._seal_nets import Scaling, Scout
from gradledger.train.modes import evaluating

MODEL, CONTRACT, RULES = "model.safetensors", "schema.json", "answer.json"
# The offset does not change when the whole scene moves; what the net says of these should agree.
MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
FLAT = 4.0  # standard deviation of grey levels under which there is no edge to measure
BATCH = 64


@dataclass(frozen=True)
class Rules:
    """How an answer is decided. limit: highest score that is answered, None: nothing is. half_width, alpha: of the
    interval, None where there were too few groups. unit: of both; pitch: mm to a pixel that files may declare."""

    limit: float | None
    half_width: float | None
    alpha: float
    unit: str
    pitch: float | None


@dataclass(frozen=True)
class Answer:
    """offset in `unit`, None where the scout abstains, and then why. score: the error to be expected."""

    offset: float | None
    low: float | None
    high: float | None
    score: float | None
    unit: str
    why: str = ""

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """One line for a person."""
        if self.offset is None:
            return f"abstain: {self.why}"
        if self.low is None or self.high is None:
            return f"offset {self.offset:+.3f} {self.unit}, no interval (too few groups to calibrate on)"
        return f"offset {self.offset:+.3f} {self.unit}, interval {self.low:+.3f} to {self.high:+.3f} {self.unit}"


def moved(image: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B * M, 3, H, W): crops moved by MOVES, edges repeated; those of one crop come together."""
    height, width = image.shape[-2:]
    parts = []
    for x, y in MOVES:
        rows = torch.arange(height).sub(y).clamp(0, height - 1)
        columns = torch.arange(width).sub(x).clamp(0, width - 1)
        parts.append(image[..., rows, :][..., columns])
    return torch.stack(parts, dim=1).flatten(0, 1)


def answers(scout: Scout, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What the scout says of crops (N, 3, H, W): (offset (N, 1), score (N,)).

    The offset is the mean over the moves. The score is the standard deviation of a mixture of them: what the net
    expects of its own error, and how far the moves disagree.
    """
    means, spreads = [], []
    with evaluating(scout):
        for at in range(0, len(images), BATCH):
            unit = bytes_to_unit(torch.from_numpy(images[at : at + BATCH]))
            said = scout(moved(unit)).reshape(-1, len(MOVES), 2)
            means.append(said[..., 0].mean(dim=1, keepdim=True))
            spreads.append((said[..., 1].square().mean(dim=1) + said[..., 0].var(dim=1, correction=0)).sqrt())
    return torch.cat(means).numpy(), torch.cat(spreads).numpy()


def open_bytes(raw: bytes, *, pitch: float | None, where: str = "the crop") -> NDArray[Any]:
    """Bytes of an image file, or of a .npy file with one crop [C, H, W] -> the array as it is.

    Raises:
        CropError: neither, or not whole.
    """
    if raw.startswith(_seal_image.NPY):
        return _seal_image.unpack(raw, where=where)
    return _seal_image.decode(raw, where=where, pitch=pitch)


def checked(array: NDArray[Any], contract: Schema, *, where: str = "the crop") -> NDArray[np.uint8]:
    """The crop as a batch of one, when it keeps the contract.

    Raises:
        CropError: every violation, or a picture without an edge.
    """
    image = Schema(contract.name, tuple(one for one in contract.fields if one.name == "image"))
    found = image.check({"image": array[None] if array.ndim else array})
    if found:
        raise refused("; ".join(f"{one.got}: {one.reason}" for one in found), image.fields[0].text(), where)
    if float(array.std()) < FLAT:
        raise refused(f"grey levels that differ by {float(array.std()):.2g}", "a picture with edges in it", where)
    batch: NDArray[np.uint8] = array[None]
    return batch


def decided(said: float, score: float, rules: Rules) -> Answer:
    """The answer of the net, or an abstention where its moves disagree more than the limit."""
    if rules.limit is None or score > rules.limit:
        limit = "none keeps the risk" if rules.limit is None else f"{rules.limit:.3f} {rules.unit}"
        why = f"an error of {score:.3f} {rules.unit} is to be expected, limit {limit}"
        return Answer(None, None, None, score, rules.unit, why)
    if rules.half_width is None:
        return Answer(said, None, None, score, rules.unit)
    return Answer(said, said - rules.half_width, said + rules.half_width, score, rules.unit)


def stages(scout: Scout, contract: Schema, rules: Rules) -> list[tuple[str, Callable[[Any], Any]]]:
    """The path as (name, function), each fed with what the one before it returned; the first gets bytes."""

    def model(batch: NDArray[np.uint8]) -> tuple[float, float]:
        said, score = answers(scout, batch)
        return float(said[0, 0]), float(score[0])

    return [
        ("read", lambda raw: open_bytes(raw, pitch=rules.pitch)),
        ("check", lambda array: checked(array, contract)),
        ("model", model),
        ("decide", lambda pair: decided(pair[0], pair[1], rules)),
    ]


def answer(scout: Scout, contract: Schema, rules: Rules, raw: bytes) -> Answer:
    """The whole path; a crop that is refused is an abstention with the reason."""
    value: Any = raw
    try:
        for _, stage in stages(scout, contract, rules):
            value = stage(value)
    except CropError as error:
        return Answer(None, None, None, None, rules.unit, f"got {error.got}, wanted {error.wanted}")
    found: Answer = value
    return found


def save(folder: Path, rules: Rules, contract: Schema, facts: Mapping[str, Any]) -> None:
    """Leave what `load` needs beside the weights. facts: kind, size and light of the net."""
    contract.write(folder / CONTRACT)
    _folder.write_json(folder / RULES, {**asdict(rules), **facts})


def load(folder: Path) -> tuple[Scout, Schema, Rules]:
    """The scout of a sealed folder, its contract and its rules.

    Raises:
        CropError: a file is missing, or is not what was sealed.
    """
    from safetensors.torch import load_file

    try:
        sealed = json.loads((folder / bundle.BUNDLE).read_text(encoding="utf-8"))["files"]
        changed = [one for one in (MODEL, CONTRACT, RULES) if file_digest(folder / one) != sealed[one]["sha256"]]
        told = json.loads((folder / RULES).read_text(encoding="utf-8"))
        contract = from_json(json.loads((folder / CONTRACT).read_text(encoding="utf-8")))
        rules = Rules(*(told[name] for name in ("limit", "half_width", "alpha", "unit", "pitch")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise refused(said, "a sealed folder of seal_scout", str(folder), "gradledger run seal_scout") from error
    if changed:
        wanted = "the files that were sealed"
        raise refused(f"{', '.join(changed)} changed", wanted, str(folder), "gradledger verify tells what differs")
    height, width = told["size"]
    unfitted = Scaling((0.0,) * 3, (1.0,) * 3, 0.0, 1.0)  # its numbers are buffers, and come with the weights
    scout = Scout(told["kind"], (height, width), unfitted, told["light"])
    scout.load_state_dict(load_file(folder / MODEL))
    return scout, contract, rules
