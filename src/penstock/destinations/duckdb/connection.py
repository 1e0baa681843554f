"""The connection to a DuckDB file: opened when needed, given back when idle, its errors turned into ours."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.destinations.filesystem import mended
from penstock.errors import DestinationError, DestinationFailed, DestinationUnwritable, ValueRefused

_HOLDER = re.compile(r"PID (\d+)")
# Reading this much of a log back takes about a second when the worker starts again after a crash.
_LOG_BYTES = 64 << 20
# How long a call waits for a reader; then the engine waits, with its own rules.
_PATIENCE = 5.0
# These speak of rows, and errors of ours never carry values.
_ABOUT_VALUES = (duckdb.ConversionException, duckdb.ConstraintException, duckdb.OutOfRangeException, duckdb.InvalidInputException)


class Connection:
    """One DuckDB file; whoever uses it has it alone."""

    def __init__(self, options: DuckDBOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._open: duckdb.DuckDBPyConnection | None = None
        self._used = 0.0
        self._idle: threading.Thread | None = None
        self.opened = 0
        """How many times the file was opened: what was read from it holds only until it is opened again."""

    @contextmanager
    def use(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection, outside a transaction; errors come out as ours, and a broken connection is not used again."""
        with self._lock:
            try:
                if self._open is None:
                    self._open = self._connect()
                    self.opened += 1
                yield self._open
            except duckdb.Error as error:
                self._recover(error)
                raise translated(error, self._options.file) from error
            except BaseException as error:
                self._recover(error)
                raise
            finally:
                self._used = time.monotonic()
        if self._options.release and self._idle is None:
            self._idle = threading.Thread(target=self._release_when_idle, name="penstock-duckdb-release", daemon=True)
            self._idle.start()

    def checkpoint_if_due(self) -> None:
        """Folds the write-ahead log into the file when it has grown; for the user of the connection, outside a transaction."""
        log = self._options.file.with_name(f"{self._options.file.name}.wal")
        if self._open is not None and log.exists() and log.stat().st_size > _LOG_BYTES:
            self._open.execute("CHECKPOINT")

    def close(self) -> None:
        """Gives the file back; DuckDB folds its write-ahead log into the file."""
        with self._lock:
            self._close()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """Opens the file; somebody who reads it because it was released gets some time to finish."""
        patient_until = time.monotonic() + (_PATIENCE if self.opened else 0.0)
        while True:
            try:
                return _connect(self._options)
            except duckdb.IOException as error:
                if not _is_locked(error) or time.monotonic() >= patient_until:
                    raise
            time.sleep(0.05)

    def _recover(self, error: BaseException) -> None:
        if self._open is None:
            return
        try:
            if isinstance(error, duckdb.FatalException | duckdb.InternalException):
                self._close()
            else:
                self._open.execute("ROLLBACK")
        except duckdb.TransactionException:
            pass  # there was no transaction
        except duckdb.Error:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _release_when_idle(self) -> None:
        while True:
            time.sleep(max(0.01, self._used + self._options.release - time.monotonic()))
            with self._lock:
                if self._open is not None and time.monotonic() - self._used >= self._options.release:
                    self._close()
                if self._open is None:
                    self._idle = None
                    return


def _connect(options: DuckDBOptions) -> duckdb.DuckDBPyConnection:
    with mended(options.file.parent):
        options.file.parent.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(
        str(options.file),
        config={
            "memory_limit": f"{options.memory_limit}B",
            "threads": options.threads,
            # DuckDB's own rule counts whole vectors of a changed row: 200 updates in a million rows made it rewrite the
            # table at every commit, 1 s each time. `checkpoint_if_due` goes by the size of the log instead.
            "checkpoint_threshold": "1TB",
            "preserve_insertion_order": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    # It would draw on standard output whenever a commit takes two seconds, between the lines of a stdout destination.
    connection.execute("SET enable_progress_bar = false")
    return connection


@contextmanager
def about(table: str) -> Iterator[None]:
    """Rows of that table, by its name at the source, are written: one that a constraint refuses is refused for good.

    A value that does not fit its column may fit when the table has been prepared again, which a retry does.
    """
    try:
        yield
    except duckdb.ConstraintException as error:
        raise ValueRefused(f"{table}: a constraint in DuckDB refused a row", table=table) from error


def _is_locked(error: duckdb.Error) -> bool:
    return "Could not set lock" in str(error)


def translated(error: duckdb.Error, file: Path) -> DestinationError:
    """What DuckDB raised, as an error of ours."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if _is_locked(error):
        holder = _HOLDER.search(str(error))
        who = f"process {holder[1]}" if holder else "another process"
        return DestinationUnwritable(
            f"{file} is open in {who}",
            remedy=f"Close it there ({who}); DuckDB lets one process at a time write a file. Delivery goes on by itself.",
            **({"pid": int(holder[1])} if holder else {}),
        )
    if "No space left" in text or "Could not write" in text:
        return DestinationUnwritable(f"{file}: {text}", remedy="Free space on the file system; delivery goes on by itself.")
    if "not a valid DuckDB database file" in text:
        return DestinationUnwritable(f"{file} is not a DuckDB database", remedy="Move the file away, or choose another path.")
    if "newer version" in text or "version number" in text:
        return DestinationUnwritable(
            f"{file} was written by another version of DuckDB", remedy="Open it with that version and export it."
        )
    if isinstance(error, duckdb.IOException):
        return DestinationUnwritable(f"{file}: {text}", remedy="Mend the path and its rights; delivery goes on by itself.")
    if isinstance(error, duckdb.OutOfMemoryException):
        return DestinationFailed(f"{file}: DuckDB ran out of memory", remedy="Raise `memory_limit`, or lower `batch.max_bytes`.")
    if isinstance(error, _ABOUT_VALUES):
        return DestinationFailed(f"{file}: DuckDB refused a value ({type(error).__name__})")
    return DestinationFailed(f"{file}: {text}")
