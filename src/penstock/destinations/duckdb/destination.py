"""Driver half of the duckdb destination: one transaction per epoch, with the position inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from penstock.core.epoch import Epoch
from penstock.core.finding import Finding
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, Place, Receipt
from penstock.destinations.duckdb.apply import apply_chunks
from penstock.destinations.duckdb.connection import Connection
from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.destinations.duckdb.sql import qualified
from penstock.destinations.duckdb.tables import Tables
from penstock.destinations.filesystem import mended, probe
from penstock.destinations.folding.staged import chunks_by_table
from penstock.destinations.staging import discard, sweep
from penstock.errors import DestinationError, LedgerFenced
from penstock.observe import failpoints


@dataclass
class _Held:
    """What the database says of this flow's destination; nobody else can change it while the file is open here."""

    tables: Tables
    position: int | None
    generation: int
    opened: int


class DuckDBDestination(Destination):
    """Tables in a DuckDB file."""

    options: DuckDBOptions

    def __init__(self, place: Place, options: DuckDBOptions) -> None:
        super().__init__(place, options)
        self._connection = Connection(options)
        self._held: _Held | None = None
        self._generation = 0

    def check(self) -> list[Finding]:
        """Whether the file can be written: an existing one is opened, for a missing one the directory is tried."""
        file = self.options.file
        subject = f"duckdb: {file}"
        try:
            if file.exists():
                with self._connection.use():
                    pass
            else:
                probe(file.parent)
        except DestinationError as error:
            return [Finding(subject, False, error.message, error.remedy, error.code)]
        return [Finding(subject, True, "writable")]

    def prepare(self, tables: Sequence[TableSchema]) -> None:
        """Creates and changes tables, apart from any epoch's transaction."""
        with self._connection.use() as connection:
            self._hold(connection).tables.prepare(tables)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Applies the epoch and moves the position in one transaction; does nothing when the position is already there."""
        with self._connection.use() as connection, mended(self.place.staging):
            held = self._hold(connection)
            # An epoch that was planned before a take-over has its planner's generation, and is the successor's to commit.
            self._fence(held, max(epoch.generation, self._generation))
            if held.position is None or held.position < epoch.upto:
                failpoints.reach("destination.before_publish")
                connection.execute("BEGIN")
                for source, buckets in chunks_by_table(self.place.staging, receipts).items():
                    apply_chunks(connection, qualified(held.tables.catalog, *self.options.place_of(*source)), buckets)
                connection.execute(self._advance(held, epoch))
                failpoints.reach("destination.in_publish")
                connection.execute("COMMIT")
                held.position, held.generation = epoch.upto, max(held.generation, epoch.generation)
                failpoints.reach("destination.after_publish")
                self._connection.checkpoint_if_due()
            discard(self.place.staging, epoch)

    def fence(self, generation: int) -> None:
        """Writes the generation beside the position."""
        with self._connection.use() as connection:
            held = self._hold(connection)
            self._fence(held, generation)
            if held.generation < generation:
                who = [generation, self.place.flow, self.place.destination]
                sql = f"UPDATE {held.tables.positions} SET generation = ? WHERE flow = ? AND destination = ?"
                connection.execute(sql, who)
                held.generation = generation

    def committed(self) -> int | None:
        """The position in the database."""
        with self._connection.use() as connection:
            held = self._hold(connection)
            self._fence(held, self._generation)
            with mended(self.place.staging):
                sweep(self.place.staging, held.position or 0)
            return held.position

    def abort(self, epoch: Epoch) -> None:
        """Removes staged files; the database never has a part of an epoch."""
        with mended(self.place.staging):
            discard(self.place.staging, epoch)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def _hold(self, connection: duckdb.DuckDBPyConnection) -> _Held:
        if self._held is None or self._held.opened != self._connection.opened:
            tables = Tables(connection, self.place.flow, self.place.destination, self.options)
            tables.bookkeeping()
            who = [self.place.flow, self.place.destination]
            sql = f"SELECT position, generation FROM {tables.positions} WHERE flow = ? AND destination = ?"
            row = connection.execute(sql, who).fetchone()
            if row is None:
                connection.execute(f"INSERT INTO {tables.positions} (flow, destination, generation) VALUES (?, ?, 0)", who)
            position, generation = row or (None, 0)
            self._held = _Held(tables, position, int(generation or 0), self._connection.opened)
        return self._held

    def _fence(self, held: _Held, generation: int) -> None:
        if generation and held.generation > generation:
            raise LedgerFenced(f"{self.options.file}: generation {held.generation} has taken over, this worker has {generation}")
        self._generation = max(generation, self._generation)

    def _advance(self, held: _Held, epoch: Epoch) -> str:
        source, flow, destination = (text.replace("'", "''") for text in (epoch.source, epoch.flow, epoch.destination))
        # Literals, because a statement with parameters costs 0.4 ms more.
        return (
            f"UPDATE {held.tables.positions} SET source = '{source}', position = {epoch.upto}, epoch = {epoch.number},"
            f" generation = {max(epoch.generation, held.generation)}, committed_at = now()"
            f" WHERE flow = '{flow}' AND destination = '{destination}'"
        )
