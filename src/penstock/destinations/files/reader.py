"""The reader of a change log in files: whole epochs, by their manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.connectors import cards
from penstock.core.schema import TableSchema
from penstock.destinations.files.manifest import Manifests
from penstock.destinations.files.names import MANIFESTS, schema_path
from penstock.formats.base import FileFormat


def read_changes(path: str | Path, schema: str, table: str, *, after: int | None = None) -> Iterator[pa.RecordBatch]:
    """The committed changes of a table, epoch by epoch, in the layout of `penstock.formats.layout`.

    Within an epoch each key's changes are in log order; `__position` and `__ordinal` order all of them. A batch has the
    columns of the schema version it was written under. `after` skips epochs up to and including that position.
    """
    root = Path(path)
    formats: dict[str, FileFormat] = {}
    for card in cards("format").values():
        if card.capabilities.get("file"):
            made = card.load("format")()
            formats[made.suffix] = made
    for home in sorted((root / MANIFESTS).glob("*.*")):
        flow, _, destination = home.name.partition(".")
        for manifest in Manifests(root, flow, destination):
            if after is not None and manifest.upto <= after and not manifest.part:
                continue
            for file in manifest.files:
                if (file.schema, file.table) == (schema, table):
                    path = root / file.path
                    described = json.loads(schema_path(path.parent, file.version).read_text(encoding="utf-8"))
                    batches = formats[path.suffix[1:]].read(path, TableSchema.from_data(described))
                    yield from (_later(b, after) for b in batches) if after is not None and manifest.part else batches


def _later(batch: pa.RecordBatch, after: int) -> pa.RecordBatch:
    """What comes after the position, of an epoch that also holds a part of the transaction that follows."""
    return batch.filter(pc.greater(batch.column("__position"), after))
