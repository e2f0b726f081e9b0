"""Which lines are shown beside equal batches: those that divide data, ask for the rank, or build the loader."""

from __future__ import annotations

from pathlib import Path

from gradledger.audit.rules.x02_ranks_see_same_data import _samplers
from gradledger.core.site import Frame, Site

SOURCE = """\
def rank():
    return int(os.environ.get("LOCAL_RANK", 0))

def shard(data):
    return Subset(data, range(rank() * 10, rank() * 10 + 10))

loader = DataLoader(shard(data), 8)
for x in loader:
    print("RANKED", x)
"""


def test_lines_that_divide_the_data(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    assert sorted(s.line for s in _samplers(Site(str(file), 8, ""))) == [2, 5, 7]
    other = tmp_path / "main.py"
    other.write_text("sampler = DistributedSampler(data, rank=dist.get_rank())\n")
    found = _samplers(Site(str(file), 8, "", callers=(Frame(str(other), 1, ""),)))
    assert (str(other), 1) in {s.key() for s in found}
