"""What a tool said of each script, kept as JSON lines, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Result = dict[str, Any]  # "findings": [{"rule", "severity", "lines", "message"}], "cpu": seconds or None, "broke": why


class Kept:
    """Results of one tool in one file; the last line of a script counts.

    `version`: what the results depend on beside the script (versions of tool and torch).  Lines of another version,
    or of a script that has changed since, stay in the file and are not looked at.
    """

    def __init__(self, path: Path, version: str, folder: Path) -> None:
        self._path, self._version, self._folder = path, version, folder
        self.results: dict[str, Result] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:  # torn: the run was killed while it wrote
                continue
            if row["of"] == self._of(row["file"], row.get("beside", ())):
                self.results[row["file"]] = row

    def _of(self, name: str, beside: Iterable[str] = ()) -> str:
        digest = hashlib.sha256(self._version.encode())
        for one in (name, *beside):
            path = self._folder / one
            digest.update(path.read_bytes() if path.is_file() else b"")
        return digest.hexdigest()[:16]

    def add(self, name: str, result: Result, beside: Iterable[str] = ()) -> None:
        """Keep one; `beside`: further scripts that it depends on."""
        row = {"file": name, "of": self._of(name, beside), "beside": list(beside), **result}
        self.results[name] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that have no result yet."""
        return [name for name in names if name not in self.results]


def digest_of(package: Path) -> str:
    """Of every source file of a package: the version of one that is being written."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
