"""How the conformance suite makes and reads a stdout destination: standard output goes to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.formats.json.decoder import decode


def options(home: Path) -> dict[str, Any]:
    return {}


@contextmanager
def around(home: Path) -> Iterator[None]:
    with open(home / "printed.jsonl", "a", encoding="utf-8") as file, redirect_stdout(file):
        yield


def changes(home: Path, table: TableSchema) -> Iterator[pa.RecordBatch]:
    lines = (home / "printed.jsonl").read_text(encoding="utf-8").splitlines(keepends=False)
    mine = [line for line in lines if (d := json.loads(line))["table"] == table.name and d["schema_version"] == table.version]
    if mine:
        yield decode(pa.array(mine), table)
