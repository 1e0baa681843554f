"""What a lane does that reads chunks: on an executor, one connection, one file after the other. It imports no ledger."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.core import connectors
from penstock.core.schema import TableSchema
from penstock.errors import PenstockError, SourceFailed
from penstock.sources.chunks import Chunk, ChunkReader, Stopping, never


class Reading:
    """Keeps a source's reader, and with it its connections, from one group of chunks to the next."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._recipe: Mapping[str, Any] | None = None
        self._reader: ChunkReader | None = None

    def read(
        self, order: Mapping[str, Any], items: Iterable[Mapping[str, Any]], stopping: Stopping = never
    ) -> Iterator[dict[str, Any]]:
        """A receipt per chunk, or an error, after which the rest is left.

        May run more than once, also at the same time: each run writes files of its own, and only what reaches the driver counts.
        """
        home = Path(order["home"])
        home.mkdir(parents=True, exist_ok=True)
        reader = self._for(order["recipe"])
        for item in items:
            file = f"{item['id']}-{secrets.token_hex(6)}.copy"
            chunk, table = Chunk.from_data(item["chunk"]), TableSchema.from_data(item["table"])
            try:
                rules = {"after": order["after"], "spare": home / item["spare"] if item["spare"] else None}
                receipt = reader.read(chunk, table, order["snapshot"], home / file, **rules, stopping=stopping)
            except PenstockError as error:
                yield {"id": item["id"], "error": error.to_data()}
                return
            except (EOFError, ConnectionError):
                # Nobody wants it any more.
                raise
            except Exception as error:
                failure = SourceFailed(f"{chunk.qualified} could not be read: {type(error).__name__}: {error}")
                yield {"id": item["id"], "error": failure.to_data()}
                return
            yield {"id": item["id"], "file": file, **receipt.to_data()}

    def close(self) -> None:
        """Gives back the connections."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _for(self, recipe: Mapping[str, Any]) -> ChunkReader:
        if self._reader is None or recipe != self._recipe:
            self.close()
            self._recipe, self._reader = recipe, connectors.find("source", self._source).load("chunks")(recipe)
        return self._reader
