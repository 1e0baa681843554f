"""Driver half of the duckdb destination: one transaction per epoch, with the position inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb

from penstock.core.epoch import Epoch
from penstock.core.finding import Finding
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, Held, Place, Receipt, Resolution
from penstock.destinations.duckdb.apply import apply_table
from penstock.destinations.duckdb.connection import Connection, about
from penstock.destinations.duckdb.loading import DuckDBStore
from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.destinations.duckdb.tables import Tables
from penstock.destinations.filesystem import mended, probe
from penstock.destinations.folding.staged import chunks_by_table
from penstock.destinations.loading import Source, StagingBook
from penstock.destinations.staging import discard, sweep
from penstock.errors import DestinationError, LedgerFenced
from penstock.observe import failpoints


@dataclass
class _Row:
    """What the database says of this flow's destination; nobody else can change it while the file is open here."""

    tables: Tables
    mark: Held | None
    generation: int
    opened: int


class DuckDBDestination(Destination):
    """Tables in a DuckDB file."""

    options: DuckDBOptions

    def __init__(self, place: Place, options: DuckDBOptions) -> None:
        super().__init__(place, options)
        self._connection = Connection(options)
        self._book = StagingBook(place, options)
        self._held: _Row | None = None
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
        with self._connection.use() as connection, self._undone():
            self._hold(connection).tables.prepare(tables, self._book)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Applies the epoch and moves the position in one transaction; does nothing when it is already there."""
        with self._connection.use() as connection, mended(self.place.staging):
            held = self._hold(connection)
            # An epoch that was planned before a take-over has its planner's generation, and is the successor's to commit.
            self._fence(held, max(epoch.generation, self._generation))
            if held.mark is None or not held.mark.has(epoch):
                failpoints.reach("destination.before_publish")
                connection.execute("BEGIN")
                store = held.tables.store
                for source, buckets in chunks_by_table(self.place.staging, receipts).items():
                    staging = self._book.open(store, source)
                    place = store.named(staging.place) if staging is not None else None
                    with about(".".join(source)):
                        apply_table(connection, store.named(self.options.place_of(*source)), place, buckets)
                connection.execute(self._advance(held, epoch))
                failpoints.reach("destination.in_publish")
                connection.execute("COMMIT")
                held.mark = Held(epoch.upto, epoch.number, epoch.upto_part)
                held.generation = max(held.generation, epoch.generation)
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

    def committed(self) -> Held | None:
        """The position and the epoch in the database."""
        with self._connection.use() as connection:
            held = self._hold(connection)
            self._fence(held, self._generation)
            with mended(self.place.staging):
                sweep(self.place.staging, held.mark.epoch if held.mark is not None else 0)
            return held.mark

    def rewind(self, position: int, number: int) -> None:
        """Moves position and number; rows stay, and what follows is applied to them again."""
        with self._fenced() as store:
            assert self._held is not None
            store.run(
                f"UPDATE {self._held.tables.positions} SET position = $1, epoch = $2, part = 0"
                " WHERE flow = $3 AND destination = $4 AND epoch < $2",
                [position, number, self.place.flow, self.place.destination],
            )
        self._held = None

    def begin_load(self, load: str, tables: Sequence[Source]) -> None:
        """Opens the staging tables of those tables that have one."""
        with self._fenced() as store:
            self._book.begin(store, load, tables)

    def end_load(self, load: str, tables: Sequence[Source]) -> list[Resolution]:
        """Resolves their staging tables as the options say, each in a transaction of its own."""
        with self._fenced() as store:
            due = self._book.end(store, load, tables)
        return self._resolve(due)

    def resolve_staging(self, takes: Callable[[str, str], bool]) -> list[Resolution]:
        """Resolves what is staged and complete."""
        with self._fenced() as store:
            chosen = self._book.chosen(store, takes)
        return self._resolve(chosen)

    def _resolve(self, tables: Sequence[Source]) -> list[Resolution]:
        found = []
        for source in tables:
            with self._fenced() as store:
                found.append(self._book.resolve(store, source))
                failpoints.reach("destination.in_publish")
        return found

    @contextmanager
    def _fenced(self) -> Iterator[DuckDBStore]:
        """A transaction; LedgerFenced when the file is a newer worker's."""
        with self._connection.use() as connection, self._undone():
            held = self._hold(connection)
            self._fence(held, self._generation)
            connection.execute("BEGIN")
            yield held.tables.store
            connection.execute("COMMIT")

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """What a failed transaction has told the book is not believed."""
        try:
            yield
        except BaseException:
            self._book.forget()
            raise

    def abort(self, epoch: Epoch) -> None:
        """Removes staged files; the database never has a part of an epoch."""
        with mended(self.place.staging):
            discard(self.place.staging, epoch)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def _hold(self, connection: duckdb.DuckDBPyConnection) -> _Row:
        if self._held is None or self._held.opened != self._connection.opened:
            tables = Tables(connection, self.place.flow, self.place.destination, self.options)
            tables.bookkeeping()
            self._book.forget()
            who = [self.place.flow, self.place.destination]
            sql = f"SELECT position, epoch, generation, part FROM {tables.positions} WHERE flow = ? AND destination = ?"
            row = connection.execute(sql, who).fetchone()
            if row is None:
                connection.execute(f"INSERT INTO {tables.positions} (flow, destination, generation) VALUES (?, ?, 0)", who)
            position, number, generation, part = row or (None, None, 0, None)
            mark = None if position is None else Held(position, number or 0, part or 0)
            self._held = _Row(tables, mark, int(generation or 0), self._connection.opened)
        return self._held

    def _fence(self, held: _Row, generation: int) -> None:
        if generation and held.generation > generation:
            raise LedgerFenced(f"{self.options.file}: generation {held.generation} has taken over, this worker has {generation}")
        self._generation = max(generation, self._generation)

    def _advance(self, held: _Row, epoch: Epoch) -> str:
        source, flow, destination = (text.replace("'", "''") for text in (epoch.source, epoch.flow, epoch.destination))
        # Literals, because a statement with parameters costs 0.4 ms more.
        return (
            f"UPDATE {held.tables.positions} SET source = '{source}', position = {epoch.upto}, epoch = {epoch.number},"
            f" generation = {max(epoch.generation, held.generation)}, committed_at = now(), part = {epoch.upto_part}"
            f" WHERE flow = '{flow}' AND destination = '{destination}'"
        )
