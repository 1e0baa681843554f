"""The Spark task that reads chunks: on an executor, one connection, one file after the other. It imports no ledger."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.core import connectors
from penstock.core.schema import TableSchema
from penstock.errors import PenstockError, SourceFailed
from penstock.sources.chunks import Chunk, ChunkReader


def read_chunks(order: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The task's body, for `mapPartitions`: a receipt per chunk, or an error, after which the rest is left.

    May run more than once, also at the same time: each run writes files of its own, and only what reaches the driver counts.
    """
    reader: ChunkReader = connectors.find("source", order["source"]).load("chunks")(order["recipe"])
    home = Path(order["home"])
    try:
        home.mkdir(parents=True, exist_ok=True)
        for item in items:
            file = f"{item['id']}-{secrets.token_hex(6)}.copy"
            chunk, table = Chunk.from_data(item["chunk"]), TableSchema.from_data(item["table"])
            try:
                receipt = reader.read(chunk, table, order["snapshot"], home / file, after=order["after"])
            except PenstockError as error:
                yield {"id": item["id"], "error": error.to_data()}
                return
            except Exception as error:
                failure = SourceFailed(f"{chunk.qualified} could not be read: {type(error).__name__}: {error}")
                yield {"id": item["id"], "error": failure.to_data()}
                return
            yield {"id": item["id"], "file": file, **receipt.to_data()}
    finally:
        reader.close()
