"""The source contract: a driver half that prepares, a capture that copies the log, a decoder that reads the copy.

Who calls, when, and what may run twice
---------------------------------------
`Source` lives in the worker (driver). `check` and `discover` only look. `prepare` makes what the flow needs on the server
(publication, slot) if the options allow, and verifies that the slot can continue where the journal ends; it may run any
number of times and creates nothing twice. `belongings` lists what the flow has there, and `drop` removes what it has
made, when the flow is given up. `head` and `confirmed` ask the server and are cheap enough to be called once a
second. `recall` comes before the first `prepare` with what `remember` gave the ledger at some earlier moment, which may be
long ago or half a minute before a crash. `look` is called every few seconds by a thread of its own while the flow runs, and
uses a connection of its own; when it raises, the flow goes on and is looked at again, and only `SourceHealth.error` ends it.
`joining` is told by `prepare` and `look` of every table that joins a flow which has a journal, before it counts as known: if it
raises, the table has not joined, or is told of again. It is told again after a crash, too.

`Capture` runs in a child process of the worker, made there from the plain data that `Source.recipe` returned. `run` reads
the log from `journal.mark` on and appends it, and returns only when `link.stopping` is set; it raises an error of ours when
the connection is lost, and the worker starts the child again. Nothing it has not made durable may be confirmed: it tells
the server `link.confirmed` and no more.

`Decoder` runs in lanes (executors) and is pure: the same slices and bucket give the same batches, for ever.

`Completer` runs in lanes too, where `Source.completion` asked for one: it adds to decoded batches what the log left out. It
may ask the source, so it is not pure: a replay gives the same changes, but cells that it filled may have other values.
A lane keeps its completer from epoch to epoch; a completer must expect to miss epochs and to see one twice.

`ChunkReader` reads tables beside the log, for a first load or a backfill; `chunks.py` has its contract. `prepare` with `export`
keeps the moment at which it has made the slot readable (`Prepared.snapshot`), over a connection of its own, until
`let_snapshot_go`: everything up to `Prepared.start` is in it and nothing after. A slot that was there already has no such
moment. It ends with the connection: `snapshot_alive` says whether it is still there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.batch import Batch
from penstock.core.epoch import Epoch
from penstock.core.finding import Finding
from penstock.core.schema import TableSchema
from penstock.errors import PenstockError, SourceSettings
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice
from penstock.journal.writer import JournalWriter
from penstock.sources.chunks import Chunk, LoadRules, LoadSettings, SnapshotHold


@dataclass(frozen=True)
class Prepared:
    """What `Source.prepare` found or made: the source's identity, and where a new journal begins."""

    identity: str
    """Short, stable for one database of one server: it enters event ids and guards the flow's state."""
    start: int
    """Position from which the slot delivers when the journal is empty."""
    facts: Mapping[str, str | int] = field(default_factory=dict)
    """What the flow uses on the server, for the log: names, counts, positions."""
    snapshot: str | None = None
    """Name of the exported snapshot that is exactly the state at `start`; only if asked for, and if the slot was made now."""
    described: str = ""
    """What that snapshot contains, as `ChunkReader.contains` takes it."""


@dataclass(frozen=True)
class SourceHealth:
    """What one look at a running source saw."""

    head: int
    """The position up to which the server's log is durable."""
    confirmed: int
    """The position that the server holds as confirmed."""
    lag_bytes: int
    """How much log lies between the two."""
    lag_seconds: float
    """For how long, at least, the oldest of that has been there; 0 when nothing waits."""
    retained_bytes: int
    """How much log the server keeps for this flow."""
    state: str
    """In the server's own word, whether it will go on keeping it."""
    safe_bytes: int | None
    """How much more can be written before the server may give the flow's place up; None when there is no limit."""
    seconds_left: float | None
    """How long that lasts at the rate of the last minute; None when there is no limit or nothing is written."""
    findings: tuple[Finding, ...] = ()
    """What an operator should know and the flow survives: danger, tables that have to be loaded again."""
    error: PenstockError | None = None
    """Why the flow must not go on."""


@dataclass(frozen=True)
class Belonging:
    """Something on the server that a flow has made or uses."""

    kind: str
    name: str
    made: bool
    """Whether the flow has made it, so that it goes with the flow."""
    note: str = ""
    """Why it stays, if it does."""
    blocked: PenstockError | None = None
    """Why it cannot go now."""


@dataclass(frozen=True)
class Batching:
    """What a source's options may say of epochs."""

    rows: int | None = None
    wait: float | None = None
    """Seconds."""
    empty: bool = False
    """A stretch of the log that holds nothing is recorded as an epoch of its own."""


Joining = Callable[[Sequence[tuple[str, str]], int], bool]
"""Called with tables that join, as (schema, table), and a position at which they had not; whether their rows are loaded."""


class Source(ABC):
    """Driver half; `flow` is the flow's name, from which slot and publication get theirs."""

    def __init__(self, flow: str, options: Any) -> None:
        self.flow = flow
        self.options = options
        self.joining: Joining = lambda tables, since: False
        self.home = ""
        """Where the flow's state lies, for people; what a flow of another home has made is neither used nor removed. Empty: not
        known, and nothing is compared."""

    @abstractmethod
    def check(self, journal_end: int | None = None) -> list[Finding]:
        """Everything that stands in the way of a flow whose journal ends there (None: it has none), each with what mends it.

        Changes nothing. A finding that is good and has a remedy is advice: the flow runs without it.
        """

    @abstractmethod
    def discover(self) -> list[TableSchema]:
        """The tables that the flow takes, with their keys, as the catalogue has them now."""

    @abstractmethod
    def prepare(self, journal_end: int | None, export: bool = False) -> Prepared:
        """Publication and slot ready for a journal that ends there (None: a new one); idempotent.

        With `export`, a slot that has to be made leaves its snapshot open.
        SlotMissing, SlotLost, SlotInUse, SourceGap or SourceDiverged when the slot cannot continue the journal.
        """

    @abstractmethod
    def head(self) -> int:
        """The position up to which the server's log is durable now."""

    @abstractmethod
    def confirmed(self) -> int:
        """The position that the server holds as confirmed for this flow."""

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """Plain data from which the capture process makes its `Capture`."""

    def belongings(self) -> list[Belonging]:
        """What the flow has made or uses on the server; changes nothing."""
        return []

    def drop(self) -> list[Belonging]:
        """Removes what the flow has made on the server and nothing else; returns what went. Idempotent.

        Raises what is in the way, a reader of the slot for instance, before anything is removed.
        """
        return []

    def release(self) -> str | None:
        """Gives up the flow's place in the server's log, if the flow has made it; returns what went. Idempotent."""
        return None

    def recall(self, memory: Mapping[str, Any]) -> None:
        """What `remember` gave at an earlier time; empty when there was none."""

    def remember(self) -> dict[str, Any]:
        """Plain data by which a later start tells whether this is the same server with the same log."""
        return {}

    def look(self) -> SourceHealth | None:
        """How the source is now, compared with the look before; None when a source has nothing to look at."""
        return None

    def renew(self, options: Any | None) -> bool:
        """Takes fresh credentials after a refusal, from `options` if given; whether they may be others than before."""
        return False

    def batching(self) -> Batching:
        """What the source's options say of epochs; it stands behind the flow's own rules."""
        return Batching()

    def decoding(self) -> dict[str, Any] | None:
        """Plain data that every lane's `Decoder` has as its recipe; None when it needs none."""
        return None

    def completion(self) -> dict[str, Any] | None:
        """Plain data from which every lane makes its `Completer`; None when the decoded batches are to stay as they are."""
        return None

    def loading(self) -> LoadSettings:
        """What the source's options say of loads."""
        return LoadSettings("never")

    def let_snapshot_go(self) -> None:
        """Ends the snapshot that `prepare` has exported; readers that have begun go on. Idempotent."""

    def snapshot_alive(self) -> bool:
        """Whether readers can still be given that snapshot's name; cheap, asks the server, never raises."""
        return False

    def unsent(self, tables: Sequence[TableSchema]) -> list[TableSchema]:
        """Those of the tables whose changes the log does not carry now: a snapshot taken before it does would leave a gap."""
        return []

    def plan_chunks(self, tables: Sequence[TableSchema], rules: LoadRules) -> list[Chunk]:
        """Chunks that hold every row of the tables, as the log would have sent it, exactly once; an empty table has one too.

        Table by table in the order given, a few queries for all of them together. TableGone names one that is not there.
        """
        raise _cannot_load(self)

    def key_chunks(self, table: TableSchema, keys: pa.RecordBatch) -> list[Chunk]:
        """Chunks that read these keys of the table and no others; `keys` as `Touched.keys` has them, repetitions allowed."""
        raise _cannot_load(self)

    def hold_snapshot(self) -> SnapshotHold:
        """The state of now, kept for many readers; the caller closes it."""
        raise _cannot_load(self)

    def reading(self, rate: int | None = None) -> dict[str, Any]:
        """Plain data from which executors make their `ChunkReader`; `rate` is the most bytes a second of one of them."""
        raise _cannot_load(self)

    def close(self) -> None:
        """Gives back connections, that of an exported snapshot included."""


def _cannot_load(source: Source) -> SourceSettings:
    return SourceSettings(
        f"The source of flow {source.flow} cannot read tables, only their changes.", remedy="Set `snapshot: never` on the flow."
    )


class Link(ABC):
    """What a capture and its worker tell each other."""

    @property
    @abstractmethod
    def confirmed(self) -> int:
        """The position that the server may be told; only ever grows."""

    @property
    @abstractmethod
    def stopping(self) -> bool:
        """Whether the worker has asked for an orderly end, or is gone."""

    @property
    @abstractmethod
    def probes(self) -> int:
        """How many times the worker has asked where the log stands; each wants a mark from the server's next answer."""

    @property
    def held(self) -> bool:
        """Whether to read no more for now, because the journal is full; the server is still told what it may forget."""
        return False

    @abstractmethod
    def on_confirmed(self, call: Callable[[], None]) -> None:
        """Has `call` called, from another thread, whenever `confirmed` has grown."""

    @abstractmethod
    def appended(self, mark: int) -> None:
        """Tells the worker that the journal has grown, and up to where it is complete."""

    @abstractmethod
    def told(self, position: int) -> None:
        """Tells the worker what the server has been told."""


class Capture(ABC):
    """Child-process half: copies the server's log into the journal."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.recipe = recipe

    @classmethod
    def warm(cls) -> None:
        """Loads what copying will need; called once, before the source is prepared."""

    @abstractmethod
    def run(self, journal: JournalWriter, link: Link) -> None:
        """Copies until `link.stopping`; raises an error of ours when it cannot go on."""


class Decoder(ABC):
    """Executor half: journal bytes to batches."""

    gives_handles: bool = False
    """Whether batches carry their `handle`; set by the lane when there is a completer."""
    recipe: Mapping[str, Any] | None = None
    """What `Source.decoding` gave; set by the lane."""

    @abstractmethod
    def decode(
        self,
        journal: SliceReader,
        slices: Sequence[Slice],
        bucket: int,
        buckets: int,
        takes: Callable[[TableSchema], bool],
    ) -> Iterator[Batch]:
        """The changes of one bucket of the slices, in log order per table; tables that `takes` refuses are passed over."""


class Completer(ABC):
    """Executor half, optional: fills what the log left out of a lane's batches."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.counts: dict[str, int] = {}
        """What the last `complete` did, for the receipt; whole when its batches have all been taken."""

    @abstractmethod
    def complete(
        self, epoch: Epoch, bucket: int, journal: SliceReader, slices: Sequence[Slice], batches: Iterator[Batch]
    ) -> Iterator[Batch]:
        """The same changes in the same order, in as many batches as memory allows, without handles.

        A cell that stays unknown stays marked in `unchanged`; one that was read from the source is marked in `read_later`.
        """

    def close(self) -> None:
        """Gives back connections."""
