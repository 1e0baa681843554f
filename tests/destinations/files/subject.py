"""How the conformance suite makes and reads a files destination."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.destinations.files.reader import read_changes


def options(home: Path) -> dict[str, Any]:
    return {"path": str(home / "log")}


def changes(home: Path, table: TableSchema) -> Iterator[pa.RecordBatch]:
    return read_changes(home / "log", table.schema, table.name)
