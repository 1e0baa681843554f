"""SQL of the ledger's hot ways: written once for both databases, compiled once for each."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

LOCKS = 0x70656E73
"""The class of our advisory locks in PostgreSQL; other programs of the database may use some too."""

_WORDS = {
    "sqlite": {"now": "cast((julianday('now') - 2440587.5) * 86400000000 as integer)", "lock": "", "turn": "1"},
    "postgresql": {
        "now": "cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)",
        "lock": "for no key update",
        # No flow has a name with a blank, by which its own lock is known.
        "turn": f"pg_advisory_xact_lock({LOCKS}, hashtext('the events'))",
    },
}
"""What `{now}` (µs since 1970 by the ledger's own clock), `{lock}` (of the rows that a query finds) and `{turn}` (until the
transaction's end nobody else has one; a SQLite file has one writer anyway) stand for."""


def plain(text: str) -> str:
    """Text from elsewhere as both databases hold it: PostgreSQL has no place for the character 0."""
    return text.replace("\0", "\ufffd")


class Statement:
    """SQL with named parameters, compiled once: two of them stand in every epoch's way, where a millisecond counts."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._ready: dict[str, tuple[str, tuple[str, ...] | None]] = {}

    def run(self, connection: sa.Connection, **values: Any) -> sa.CursorResult[Any]:
        """Runs it in the transaction."""
        return connection.exec_driver_sql(*self.for_driver(connection.dialect, values))

    def quick(self, connection: sa.Connection, **values: Any) -> Any:
        """Runs it in the transaction, by the driver's own cursor. Returns a query's first value, or None.

        An epoch's five statements stand in its way: closing one took 0.60 ms of CPU through SQLAlchemy's results, 0.45 so.
        """
        cursor = connection.connection.cursor()
        cursor.execute(*self.for_driver(connection.dialect, values))
        row = cursor.fetchone() if cursor.description else None
        cursor.close()
        return None if row is None else row[0]

    def for_driver(self, dialect: sa.Dialect, values: dict[str, Any]) -> tuple[str, Any]:
        """The statement and its values as the driver takes them."""
        ready = self._ready.get(dialect.name)
        if ready is None:
            compiled = sa.text(self._sql.format(**_WORDS[dialect.name])).compile(dialect=dialect)
            ready = (str(compiled), tuple(compiled.positiontup) if compiled.positiontup else None)
            self._ready[dialect.name] = ready
        sql, names = ready
        return sql, values if names is None else tuple(values[n] for n in names)
