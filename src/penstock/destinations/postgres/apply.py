"""Applying staged chunks to a table, inside the epoch's transaction."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.folding.moves import Departing, Moves
from penstock.destinations.folding.order import in_order
from penstock.destinations.folding.origins import share_origins
from penstock.destinations.folding.staged import StagedChunk
from penstock.destinations.postgres.rows import Transaction
from penstock.destinations.postgres.tables import Shape
from penstock.destinations.postgres.types import TIGHT
from penstock.destinations.sql import equal, listed, quoted


class PostgresRoom:
    """One table in the epoch's transaction; rows that change their key wait in temporary tables."""

    moved = "pg_temp.penstock_moved"
    left = "pg_temp.penstock_left"
    overriding = "OVERRIDING SYSTEM VALUE"

    def __init__(self, transaction: Transaction, shape: Shape) -> None:
        self.transaction, self.shape = transaction, shape
        self.target = shape.target

    def make(self, name: str, select: str) -> None:
        """An empty temporary table; there is none from before, because each is dropped after its use and at the commit."""
        self.transaction.run(f"CREATE TEMP TABLE {name.removeprefix('pg_temp.')} ON COMMIT DROP AS {select} WITH NO DATA")

    def drop(self, name: str) -> None:
        """Drops it."""
        self.transaction.run(f"DROP TABLE {name}")

    def run(self, sql: str, patch: pa.Table, chunk: Departing) -> int:
        """Runs a statement that reads `penstock_patch`."""
        (cursor,) = self.transaction.feed("penstock_patch", patch, self.patch_types(patch, chunk), [sql])
        return self.transaction.count(cursor)

    def patch_types(self, patch: pa.Table, chunk: Departing) -> list[str]:
        """The types of a patch's columns, which are named by letter and number."""
        kinds = {"r": [self.shape.types[c] for c in chunk.columns], "o": [self.shape.types[k] for k in chunk.key]}
        found = []
        for name in patch.column_names:
            if name[0] in kinds and name[1:].isdigit():
                found.append(kinds[name[0]][int(name[1:])])
            else:
                found.append("boolean" if name[0] == "m" else "bigint")
        return found


Apply = Callable[[PostgresRoom, StagedChunk, Moves], None]


@dataclass(frozen=True)
class Work:
    """What an epoch does to one table."""

    shape: Shape
    staging: Shape | None
    """The table's staging table, while it is open."""
    buckets: Sequence[Sequence[StagedChunk]]


def apply_work(transaction: Transaction, work: Work, apply: Apply | None = None) -> None:
    """Applies all chunks of one table; while its staging table is open, rows of a load there, and the stream's to both."""
    if work.staging is None:
        apply_chunks(transaction, work.shape, work.buckets, apply)
        return
    stream = [[chunk for chunk in chunks if not chunk.loaded] for chunks in work.buckets]
    rooms = PostgresRoom(transaction, work.shape), PostgresRoom(transaction, work.staging)
    share_origins(*rooms, itertools.chain.from_iterable(stream))
    apply_chunks(transaction, work.shape, stream, apply)
    apply_chunks(transaction, work.staging, work.buckets, apply)


def apply_chunks(
    transaction: Transaction, shape: Shape, buckets: Sequence[Sequence[StagedChunk]], apply: Apply | None = None
) -> None:
    """Applies all chunks of one table, by `apply_chunk` or what is given instead; the caller's transaction makes them one."""
    apply = apply or apply_chunk
    room = PostgresRoom(transaction, shape)
    if any(chunk.truncated for chunks in buckets for chunk in chunks):
        transaction.run(f"TRUNCATE {shape.target}")
    crossing = any(chunk.foreign for chunks in buckets for chunk in chunks)
    moves = Moves(room, crossing=crossing)
    for chunk, heads in in_order(buckets):
        if crossing:
            for head in heads:
                moves.see(head)
            moves.settle()
        apply(room, chunk, moves)
    moves.end()


def apply_chunk(room: PostgresRoom, chunk: StagedChunk, moves: Moves) -> None:
    """Applies one chunk. Whatever the server refuses in a row, it refuses here.

    Rows are changed where they are, never removed and added again: columns of the target's own keep their values, and rows of
    other tables that refer to them stay.
    """
    parts = ("upserts", "inserts", "deletes", "moved", "patches")
    upserts, inserts, deletes, moved, patches = (chunk.part(name) for name in parts)
    if patches is not None:
        change(room, chunk, patches)
    if moved is not None:
        moves.take(moved, chunk)
    if deletes is not None:
        remove(room, chunk, deletes)
    if upserts is not None:
        put(room, chunk, upserts)
    if inserts is not None:
        types = [room.shape.types[name] for name in chunk.columns]
        room.shape.pours = room.shape.pours and room.transaction.pour(room.target, inserts, types)
        if not room.shape.pours:
            put(room, chunk, inserts)
    if moved is not None:
        room.transaction.run(_merge(room, chunk, room.moved))
        moves.given()


def put(room: PostgresRoom, chunk: StagedChunk, upserts: pa.Table) -> None:
    """Adds whole rows, or writes them over those that have their keys."""
    types = [room.shape.types[name] for name in upserts.column_names]
    room.transaction.feed("penstock_rows", upserts, types, [_merge(room, chunk, "penstock_rows")])


def put_moved(room: PostgresRoom, chunk: StagedChunk, keys: pa.Table) -> None:
    """The same for those rows, among the moved ones that were completed, which have the keys."""
    own, wanted = ([f"{table}.{quoted(k)}" for k in chunk.key] for table in ("penstock_row", "penstock_keys"))
    rows = (
        f"(SELECT penstock_row.* FROM {room.moved} AS penstock_row JOIN penstock_keys ON {equal(own, wanted)}) AS penstock_rows"
    )
    types = [room.shape.types[name] for name in keys.column_names]
    room.transaction.feed("penstock_keys", keys, types, [_merge(room, chunk, rows)])


def _merge(room: PostgresRoom, chunk: StagedChunk, source: str) -> str:
    """The statement that adds rows, or writes them over those that have their keys."""
    names = listed(chunk.columns)
    # A key that is equal and not the same, 1.0 and 1.00, is written too.
    written = [name for name in chunk.columns if name not in chunk.key or room.shape.types[name] not in TIGHT]
    assignments = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in written)
    return (
        f"INSERT INTO {room.target} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {source}"
        f" ON CONFLICT ({listed(chunk.key)}) DO {f'UPDATE SET {assignments}' if written else 'NOTHING'}"
    )


def remove(room: PostgresRoom, chunk: StagedChunk, deletes: pa.Table) -> None:
    """Removes the rows of every key; one whose key is equal and not the same came from another bucket, and stays."""
    own, gone = ([f"{table}.{quoted(k)}" for k in chunk.key] for table in ("penstock_target", "penstock_keys"))
    same = equal(own, gone)
    for k in chunk.key:
        if room.shape.types[k] not in TIGHT:
            same += f" AND penstock_target.{quoted(k)}::text = penstock_keys.{quoted(k)}::text"
    types = [room.shape.types[name] for name in deletes.column_names]
    statement = f"DELETE FROM {room.target} AS penstock_target USING penstock_keys WHERE {same}"
    room.transaction.feed("penstock_keys", deletes, types, [statement])


def change(room: PostgresRoom, chunk: StagedChunk, patches: pa.Table) -> None:
    """Writes the known columns into rows that stay under their key; a big value that did not change is not even read.

    A row that is not there (a destination that began after it was inserted) is added with NULL for what is not known.
    """
    same = equal([f"penstock_target.{quoted(k)}" for k in chunk.key], [f"penstock_patch.r{i}" for i in chunk.places])
    assignments = []
    for number, name in enumerate(chunk.columns):
        mark = f"m{number}"
        if number in chunk.places or (mark in patches.column_names and pc.all(patches.column(mark)).as_py()):
            continue
        cell = f"penstock_patch.r{number}"
        if mark in patches.column_names:
            cell = f"CASE WHEN penstock_patch.{mark} THEN penstock_target.{quoted(name)} ELSE {cell} END"
        assignments.append(f"{quoted(name)} = {cell}")
    statements = []
    if assignments:
        changes = ", ".join(assignments)
        statements.append(f"UPDATE {room.target} AS penstock_target SET {changes} FROM penstock_patch WHERE {same}")
    cells = ", ".join(f"r{number}" for number in range(len(chunk.columns)))
    statements.append(
        f"INSERT INTO {room.target} ({listed(chunk.columns)}) OVERRIDING SYSTEM VALUE SELECT {cells} FROM penstock_patch"
        f" WHERE NOT EXISTS (SELECT 1 FROM {room.target} AS penstock_target WHERE {same})"
    )
    room.transaction.feed("penstock_patch", patches, room.patch_types(patches, chunk), statements)
