"""The contract of chunks: pieces of tables that are read beside the log, once, whatever the number of destinations.

Who calls, when, and what may run twice
---------------------------------------
`Source` (driver, `base.py`) plans: `plan_chunks` once for a load, `key_chunks` for rows that have to be read again, and
`hold_snapshot` for a moment that many readers share. Planning only looks; a plan is plain data, goes into the ledger, and is
not made again after a crash: its chunks stay valid until a reader says `table_changed` or `table_gone`.

`ChunkReader` runs on executors, many at once, and is made there from the plain data of `Source.reading`. `read` copies one
chunk into one file. It may run any number of times, also twice at once for one path: each run writes under a name of its
own, and only a whole, checksummed, durable file gets the path; the last one wins. A run in a snapshot of its own gives other
rows than the run before, so a receipt belongs to the file of its own run: whoever reads a chunk twice without a shared
snapshot gives each run a path of its own.

`decode`, `contains`, `touched` and `first_outside` ask no server and need nothing of the recipe; they are pure, and run on
executors and on the driver.

What a snapshot contains is decided by transaction, never by position: `described` is the source's own description of a
snapshot, opaque to everybody but `contains` and `touched`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from penstock.core.batch import Batch
from penstock.core.schema import TableSchema
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice

TARGET_BYTES = 64 << 20


@dataclass(frozen=True)
class LoadRules:
    """How tables are cut into chunks."""

    target_bytes: int = TARGET_BYTES
    """About how large a chunk is on the server's disk."""
    partition_column: str | None = None
    """Tables that have this column are cut by its hash; every chunk then scans its whole table."""
    partition_count: int = 1
    """Into how many, with `partition_column`."""
    where: str = ""
    """A condition in the source's language that rows must fulfil; column names need no table, other names their schema."""
    common_snapshot: bool = True
    """Whether all chunks of a table will be read in one snapshot. If not, chunks are made that stand alone (`Chunk.common`
    false): by key where there is one, else the table is one chunk. Only a `partition_column` outside of the key makes others."""
    tables: Mapping[str, LoadRules] = field(default_factory=dict)
    """Rules of single tables, by `schema.table`, in place of these."""


@dataclass(frozen=True)
class LoadSettings:
    """How a flow's tables are loaded."""

    mode: str
    """`initial` with the flow's first start, `never`, or `only`: the flow ends when its tables are loaded."""
    workers: int = 1
    """Chunks read side by side."""
    rate: int | None = None
    """The most bytes a second that all readers together take from the server."""
    rules: LoadRules = field(default_factory=LoadRules)
    consistent: bool = True
    """Whether a first load shows one moment of the source."""
    resumes: bool = True
    """Whether a load that a worker has left goes on at its unfinished chunks; if not, the next one begins it anew."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a table. All chunks of a table's plan hold every row exactly once, in one snapshot."""

    schema: str
    name: str
    number: int
    """From 1, in the plan of its table."""
    kind: str
    """How it is cut, in the source's own word; PostgreSQL: whole, ctid, key, hash, keys."""
    bounds: Mapping[str, Any]
    """Plain data that only the source understands."""
    common: bool = False
    """Whether it must be read in one snapshot with the other chunks of its plan: a row could move from one that is not yet read
    into one that is. Without it a chunk may be read in a snapshot of its own; a change of the key can still move a row,
    and such rows are those whose new key the log shows (`Op.ENTER`)."""
    rows: int = 0
    """Estimate."""
    bytes: int = 0
    """Estimate of what it takes on the server's disk."""

    @property
    def qualified(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.name}"

    def to_data(self) -> dict[str, Any]:
        """Plain data for the ledger or an executor."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The chunk that `to_data` described."""
        return cls(**data)


@dataclass(frozen=True)
class ChunkReceipt:
    """What one `ChunkReader.read` has made durable."""

    rows: int
    """Rows in the file."""
    bytes: int
    """Size of the file."""
    described: str
    """The snapshot in which it was read, as the source describes it."""
    position: int
    """Where the log stood right after the snapshot was taken: everything that the snapshot contains is in the log before it."""
    seconds: float
    checksum: int
    """Of the file's contents, without its head: equal rows in equal order have equal ones."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for the ledger or the driver."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """The receipt that `to_data` described."""
        return cls(**data)


@dataclass(frozen=True)
class Touched:
    """Keys of a table that a stretch of the journal changes."""

    table: TableSchema
    """The version under which they were changed."""
    keys: pa.RecordBatch
    """Old and new keys, each once, as texts of the source: a string column per key column, in the table's order of them. A
    table without a key gives no columns."""
    changes: int
    """How many changes there are; more than zero without keys means that the table has to be read whole."""
    truncated: bool
    """Whether the table was emptied: every key that a snapshot before it holds is touched."""


class SnapshotHold(ABC):
    """A moment of the source that stays readable for every reader that is given its name, until it is closed or lost.

    The server keeps what this snapshot sees: old row versions pile up while it lasts.
    """

    name: str
    described: str
    position: int
    """Where the log stood right after it was taken."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether readers can still be given the name; cheap, asks the server, never raises."""

    @abstractmethod
    def close(self) -> None:
        """Lets go; readers that have begun go on. Idempotent."""


Stopping = Callable[[], bool]


def never() -> bool:
    """Nobody stops the read."""
    return False


class ChunkReader(ABC):
    """Executor half: copies chunks into files, and reads these files."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.recipe = recipe

    @abstractmethod
    def read(
        self,
        chunk: Chunk,
        table: TableSchema,
        snapshot: str | None,
        path: Path,
        *,
        after: int = 0,
        spare: Path | None = None,
        stopping: Stopping = never,
    ) -> ChunkReceipt:
        """Copies the chunk with the table's columns into the file `path`, in the named snapshot or one of its own.

        `after` is a position that a snapshot of its own must lie behind; a replica is waited for. SnapshotLost when the named
        snapshot is no more, TableChanged or TableGone when the plan no longer fits, ReadStopped when `stopping` said so:
        nothing is left at `path` then but what was there before. `spare` is a file that may become this one, whatever it holds.
        """

    @abstractmethod
    def decode(
        self,
        path: Path,
        table: TableSchema,
        *,
        position: int,
        ordinal_base: int,
        read_at: int,
        bucket: int = 0,
        buckets: int = 1,
    ) -> Iterator[Batch]:
        """The rows of one bucket, in the order of the file, as SNAPSHOT; a key is in the bucket in which the log has it.

        Every row stands at `position` with ordinal `ordinal_base` + its number in the file, from 1, whatever the bucket.
        A list of keys also gives a DELETE for every key that was not there, numbered behind the rows. ChunkDamaged when
        the file is not whole.
        """

    @abstractmethod
    def contains(self, described: str, xids: pa.Array) -> pa.Array:
        """For transactions as `Batch.xid` has them, whether the described snapshot contains them; never for 0, no transaction."""

    @abstractmethod
    def running(self, described: str) -> list[int]:
        """The transactions, as `Batch.xid` has them, that had begun when the snapshot was taken and are not in it."""

    @abstractmethod
    def touched(
        self,
        journal: SliceReader,
        slices: Sequence[Slice],
        schema: str,
        name: str,
        *,
        outside: str,
        inside: str | None = None,
    ) -> Iterator[Touched]:
        """What transactions change in the table that snapshot `outside` does not contain, and `inside`, if given, does.

        In steps of the slices and of table versions, keys distinct in each step: memory does not grow with the span.
        """

    @abstractmethod
    def first_outside(self, journal: SliceReader, slices: Sequence[Slice], described: str) -> int | None:
        """Where the first of the transactions that commit in the slices does so which the snapshot does not contain."""

    def close(self) -> None:
        """Gives back connections."""
