"""Driver half of the postgres destination: one transaction per epoch, with the position inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.core.epoch import Epoch
from penstock.core.finding import Finding
from penstock.core.position import format_lsn
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, Held, Place, Receipt, Resolution
from penstock.destinations.filesystem import mended
from penstock.destinations.folding.staged import chunks_by_table
from penstock.destinations.loading import Source, StagingBook
from penstock.destinations.postgres import bookkeeping
from penstock.destinations.postgres.apply import Work, apply_work
from penstock.destinations.postgres.bookkeeping import Mark
from penstock.destinations.postgres.examination import examine
from penstock.destinations.postgres.loading import PostgresStore, prepare_staging
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.rows import Transaction
from penstock.destinations.postgres.session import Connection, Session, execute
from penstock.destinations.postgres.sifting import Sieve
from penstock.destinations.postgres.tables import Tables
from penstock.destinations.staging import discard, sweep
from penstock.errors import (
    ChangesRefused,
    DestinationBehind,
    DestinationError,
    DestinationFailed,
    LedgerFenced,
    ValueRefused,
)
from penstock.observe import failpoints


class PostgresDestination(Destination):
    """Tables in a PostgreSQL database."""

    options: PostgresOptions

    def __init__(self, place: Place, options: PostgresOptions) -> None:
        super().__init__(place, options)
        self._session = Session(place, options)
        self._tables = Tables(place, options)
        self._book = StagingBook(place, options)
        self._mark: Mark | None = None
        self._known = 0
        self._generation = 0

    def check(self) -> list[Finding]:
        """Whether the server is there, takes writes and gives the rights that are needed; changes nothing."""
        try:
            with self._session.use() as connection:
                return examine(connection, self.options)
        except DestinationError as error:
            where = self._session.where
            return [Finding(f"postgres: {where.address}", False, error.message, error.remedy, error.code)]

    def prepare(self, tables: Sequence[TableSchema]) -> None:
        """Creates and changes tables, each in a transaction of its own."""
        with self._session.use() as connection:
            self._hold(connection, make=True)
            for table in tables:
                self._session.table = table.qualified
                with self._undone(), connection.transaction():
                    self._book.refuse_target(PostgresStore(connection), table, self.options.target(table))
                    self._tables.prepare(connection, table)
                    prepare_staging(connection, self._book, self._tables, table)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Applies the epoch and moves the position in one transaction; does nothing when it is already there."""
        with mended(self.place.staging):
            try:
                self._commit(epoch, receipts, pipelined=all("file" not in receipt for receipt in receipts))
            except ValueRefused:
                self._sift(receipts)
                # A small epoch goes out in one breath. One by one, its statements tell which table refused a row.
                self._commit(epoch, receipts, pipelined=False)
            except DestinationError:
                # Somebody may have changed a table; what is known of it is read again.
                self._tables.forget()
                self._book.forget()
                raise
            discard(self.place.staging, epoch)

    def fence(self, generation: int) -> None:
        """Writes the generation beside the position."""
        with self._session.use() as connection:
            self._hold(connection, make=True)
            bookkeeping.raise_generation(connection, self.place, generation)
            self._mark = bookkeeping.read(connection, self.place)
        self._fence(self._mark, generation)

    def committed(self) -> Held | None:
        """The position and the epoch in the database."""
        with self._session.use() as connection:
            mark = self._hold(connection, make=False)
        self._fence(mark, self._generation)
        held = None if mark is None else mark.held
        with mended(self.place.staging):
            sweep(self.place.staging, held.epoch if held is not None else 0)
        return held

    def rewind(self, position: int, number: int) -> None:
        """Moves position and number; rows stay, and what follows is applied to them again."""
        with self._fenced() as store:
            store.run(bookkeeping.REWIND, [self.place.flow, self.place.destination, position, number])
        with self._session.use() as connection:
            self._mark = bookkeeping.read(connection, self.place)

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
            self._session.table = ".".join(self.options.place_of(*source))
            with self._fenced() as store:
                found.append(self._book.resolve(store, source))
                failpoints.reach("destination.in_publish")
        return found

    def abort(self, epoch: Epoch) -> None:
        """Removes staged files; the database never has a part of an epoch."""
        with mended(self.place.staging):
            discard(self.place.staging, epoch)

    def close(self) -> None:
        """Closes the connection."""
        self._session.close()

    def _commit(self, epoch: Epoch, receipts: Sequence[Receipt], *, pipelined: bool) -> None:
        with self._session.use() as connection:
            mark = self._hold(connection, make=True)
            # An epoch that was planned before a take-over has its planner's generation, and is the successor's to commit.
            generation = max(epoch.generation, self._generation)
            self._fence(mark, generation)
            if mark is not None and mark.held is not None and mark.held.has(epoch):
                return
            self._refuse_gap(mark, epoch)
            work = self._work(connection, receipts)
            failpoints.reach("destination.before_publish")
            with _transaction(connection, pipelined) as transaction:
                moved = transaction.run(bookkeeping.ADVANCE, bookkeeping.values(epoch, generation))
                if not pipelined and not transaction.count(moved):
                    self._explain(connection, epoch)
                    return
                for source, one in work.items():
                    self._session.table = ".".join(self.options.place_of(*source))
                    apply_work(transaction, one)
                if not transaction.count(moved):
                    self._explain(connection, epoch)
                    return
                failpoints.reach("destination.in_publish")
                transaction.run("COMMIT")
            self._mark = Mark(epoch.upto, epoch.number, generation, epoch.upto_part)
            failpoints.reach("destination.after_publish")

    def _work(self, connection: Connection, receipts: Sequence[Receipt]) -> dict[Source, Work]:
        """What the receipts do to each table."""
        found, store = {}, PostgresStore(connection)
        for source, buckets in chunks_by_table(self.place.staging, receipts).items():
            staging = self._book.open(store, source)
            found[source] = Work(
                self._tables.shape(connection, self.options.place_of(*source)),
                self._tables.shape(connection, staging.place) if staging is not None else None,
                buckets,
            )
        return found

    @contextmanager
    def _fenced(self) -> Iterator[PostgresStore]:
        """A transaction that holds the row of the position; LedgerFenced when it is a newer worker's."""
        with self._session.use() as connection, self._undone():
            self._hold(connection, make=True)
            with connection.transaction():
                if self._generation and not bookkeeping.raise_generation(connection, self.place, self._generation):
                    self._fence(bookkeeping.read(connection, self.place), self._generation)
                yield PostgresStore(connection)

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """What a failed transaction has told the book is not believed."""
        try:
            yield
        except BaseException:
            self._book.forget()
            raise

    def _sift(self, receipts: Sequence[Receipt]) -> None:
        """ChangesRefused with the changes whose rows the server refuses, when they may be set aside; changes nothing."""
        if not self.sets_aside:
            return
        with self._session.use() as connection:
            work = self._work(connection, receipts)
            execute(connection, "BEGIN")
            sieve = Sieve(Transaction(connection), self._session.where)
            sieve.sift(work)
            execute(connection, "ROLLBACK")
        if sieve.refusals:
            raise ChangesRefused.of(self.place.destination, sieve.refusals)

    def _hold(self, connection: Connection, *, make: bool) -> Mark | None:
        """What the database says of this flow's destination, read once per connection."""
        is_new = self._known != self._session.opened
        if is_new or (make and self._mark is None):
            self._tables.forget()
            self._book.forget()
            if make:
                bookkeeping.make(connection, self.place)
            if is_new:
                bookkeeping.take_over(connection, self.place, self._session.name, self._generation)
            self._mark = bookkeeping.read(connection, self.place)
            self._known = self._session.opened
        return self._mark

    def _fence(self, mark: Mark | None, generation: int) -> None:
        if mark is not None and generation and mark.generation > generation:
            raise LedgerFenced(
                f"{self._session.where.address}: generation {mark.generation} has taken over, this worker has {generation}"
            )
        self._generation = max(generation, self._generation)

    def _refuse_gap(self, mark: Mark | None, epoch: Epoch) -> None:
        """An epoch that was committed here and is not here any more would be missing for ever."""
        if mark is not None and mark.epoch is not None and mark.epoch + 1 < epoch.number:
            raise DestinationBehind(
                f"{self._session.where.address} holds epoch {mark.epoch} (position {format_lsn(mark.position or 0)}), and"
                f" epoch {epoch.number} is to be delivered: what came between was committed there and is gone",
                epoch=mark.epoch,
            )

    def _explain(self, connection: Connection, epoch: Epoch) -> None:
        """Undoes the transaction and says why the position did not move; returns when the epoch is already there."""
        execute(connection, "ROLLBACK")
        self._mark = bookkeeping.read(connection, self.place)
        self._fence(self._mark, max(epoch.generation, self._generation))
        if self._mark is None or self._mark.held is None or not self._mark.held.has(epoch):
            self._mark = None
            raise DestinationFailed(
                f"{self._session.where.address}: the row of {epoch.flow} and {epoch.destination} in penstock.positions is gone",
                remedy="It is made again at the next try.",
            )


@contextmanager
def _transaction(connection: Connection, pipelined: bool) -> Iterator[Transaction]:
    """An open transaction, which the block commits; in a pipeline if it may be."""
    if not pipelined:
        execute(connection, "BEGIN")
        yield Transaction(connection)
        return
    with connection.pipeline() as pipeline:
        execute(connection, "BEGIN")
        yield Transaction(connection, pipeline)
