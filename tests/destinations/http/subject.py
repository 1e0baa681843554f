"""How the conformance suite makes and reads an http destination: a server of this process writes down what arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.formats.json.decoder import decode
from tests.destinations.http.receiver import Arrived, Receiver, reply

_homes: list[Path] = []


@cache
def _receiver() -> Receiver:
    return Receiver(_write_down)


def _write_down(arrived: Arrived) -> bytes:
    with open(_homes[int(arrived.path.rpartition("/")[2])] / "arrived.jsonl", "ab") as file:
        file.write(arrived.body + b"\n")
    return reply(204)


def options(home: Path) -> dict[str, Any]:
    # The server is there from here on: a check connects to it without an epoch.
    if home not in _homes:
        _homes.append(home)
    return {"url": f"{_receiver().url}/{_homes.index(home)}"}


def changes(home: Path, table: TableSchema) -> Iterator[pa.RecordBatch]:
    path = home / "arrived.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    mine = [line for line in lines if (d := json.loads(line))["table"] == table.name and d["schema_version"] == table.version]
    if mine:
        yield decode(pa.array(mine), table)
