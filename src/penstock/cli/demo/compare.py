"""The demo's verdict: the shop and the DuckDB file compared row by row, and the change log's own arithmetic."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psycopg
from psycopg.sql import SQL, Identifier


@dataclass(frozen=True)
class Verdict:
    """How one table fared."""

    table: str
    source_rows: int
    rows: int
    different: int
    """Rows that only one side has, or that differ in any column."""

    @property
    def equal(self) -> bool:
        """Whether both sides hold the same rows."""
        return self.different == 0 and self.rows == self.source_rows


def compare(dsn: str, warehouse: Path, tables: list[str]) -> list[Verdict]:
    """All rows and columns of the tables, source against DuckDB."""
    with (
        psycopg.connect(dsn, options="-c timezone=UTC -c datestyle=ISO -c extra_float_digits=1") as source,
        duckdb.connect(os.fspath(warehouse), read_only=True) as target,
        tempfile.TemporaryDirectory(prefix="penstock-compare-") as scratch,
    ):
        target.execute("SET TimeZone = 'UTC'")
        present = {
            name for (name,) in target.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'public'").fetchall()
        }
        return [_compare(source, target, table, Path(scratch) / f"{table}.csv", table in present) for table in tables]


def _compare(
    source: psycopg.Connection[tuple[object, ...]], target: duckdb.DuckDBPyConnection, table: str, file: Path, present: bool
) -> Verdict:
    columns = _columns(target, table) if present else {}
    names = ", ".join(_quoted(name) for name in columns)
    chosen = SQL("({})").format(SQL(", ").join(map(Identifier, columns))) if columns else SQL("")
    query = SQL("COPY public.{}{} TO STDOUT (FORMAT csv, HEADER, FORCE_QUOTE *)").format(Identifier(table), chosen)
    with source.cursor() as cursor, file.open("wb") as out, cursor.copy(query) as copy:
        for data in copy:
            out.write(data)
    if len(columns) < _width(source, table):
        (count,) = target.execute("SELECT count(*) FROM read_csv($1, all_varchar = true)", [str(file)]).fetchall()[0]
        return Verdict(table, count, 0, count)
    # Only an unquoted empty field is NULL: the source quotes every value.
    types = ", ".join(f"{_literal(name)}: {_literal(kind)}" for name, kind in columns.items())
    read = f"read_csv({_literal(str(file))}, auto_detect = false, delim = ',', quote = '\"', escape = '\"', header = true, "
    read += f"columns = {{{types}}}, allow_quoted_nulls = false, nullstr = '', max_line_size = 100000000)"
    target.execute(f"CREATE OR REPLACE TEMP TABLE theirs AS SELECT {names} FROM {read}")
    ours = f"SELECT {names} FROM public.{_quoted(table)}"
    (row,) = target.execute(
        f"SELECT (SELECT count(*) FROM theirs), (SELECT count(*) FROM ({ours})),"
        f" (SELECT count(*) FROM (TABLE theirs EXCEPT ALL {ours})) + (SELECT count(*) FROM ({ours} EXCEPT ALL TABLE theirs))"
    ).fetchall()
    return Verdict(table, *row)


def count_changes(changes: Path) -> tuple[int, int, int]:
    """Files, changes, and changes that are there more than once in the change log."""
    files = [str(path) for path in changes.glob("[!_.]*/*/*.parquet")]
    if not files:
        return 0, 0, 0
    found = duckdb.execute(
        "SELECT count(*), count(*) - count(DISTINCT (__position, __ordinal)) FROM read_parquet($1, union_by_name = true)", [files]
    ).fetchall()
    return len(files), *found[0]


def _columns(target: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    query = "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = 'public' AND table_name = $1"
    return dict(target.execute(f"{query} ORDER BY column_index", [table]).fetchall())


def _width(source: psycopg.Connection[tuple[object, ...]], table: str) -> int:
    query = "SELECT 1 FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s"
    return len(source.execute(query, [table]).fetchall())


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
