"""The parquet files of a folder, one read each, and what is wrong with them as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradledger.data._needs import needs


def read(path: Path, folder: Path) -> tuple[Any, list[str]]:
    """(table, problems): the table is None where the file cannot be read."""
    name = path.relative_to(folder).as_posix()
    parquet = needs("pyarrow.parquet", purpose="LeRobot data sets")
    if not path.is_file():
        return None, [f"{name}: the file is missing"]
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(max(0, size - 4))
        foot = file.read(4)
    if size < 12 or head != b"PAR1":
        return None, [f"{name}: no parquet file ({size} bytes)"]
    if foot != b"PAR1":
        return None, [f"{name}: no footer: whoever wrote it was stopped before the end ({size} bytes)"]
    try:
        return parquet.ParquetFile(path, page_checksum_verification=True).read(), []
    except Exception as cause:  # pyarrow raises errors of many kinds for damaged pages
        return None, [f"{name}: damaged ({type(cause).__name__}: {str(cause).splitlines()[0]})"]


def read_json(path: Path, folder: Path) -> tuple[Any, list[str]]:
    """(document, problems)."""
    name = path.relative_to(folder).as_posix()
    try:
        return json.loads(path.read_text(encoding="utf-8")), []
    except FileNotFoundError:
        return None, [f"{name}: the file is missing"]
    except (OSError, ValueError) as cause:
        return None, [f"{name}: no JSON ({type(cause).__name__}: {cause})"]


def task_names(table: Any) -> list[str]:
    """The task texts by position; they are the index column of the published frame."""
    names = [name for name in table.column_names if name != "task_index"]
    if not names:
        return []
    return [str(value) if value is not None else "" for value in table.column(names[-1]).to_pylist()]


def task_table(tasks: list[str]) -> Any:
    """The table of tasks, with what pandas needs to take the text as its index, as the published tools read it."""
    arrow = needs("pyarrow", purpose="LeRobot data sets")
    facts = {
        "index_columns": ["task"],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
        ],
        "columns": [
            {
                "name": "task_index",
                "field_name": "task_index",
                "pandas_type": "int64",
                "numpy_type": "int64",
                "metadata": None,
            },
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object", "metadata": None},
        ],
        "pandas_version": "2.2.0",
    }
    table = arrow.table(
        {"task_index": arrow.array(range(len(tasks)), arrow.int64()), "task": arrow.array(tasks, arrow.string())}
    )
    return table.replace_schema_metadata({"pandas": json.dumps(facts)})
