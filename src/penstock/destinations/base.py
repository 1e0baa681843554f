"""The destination contract: a driver half that decides and commits once, and an executor half that stages or sends.

Who calls, when, and what may run twice
---------------------------------------
The worker makes one `Destination` per destination of a flow and calls it from that destination's own thread, never from
two threads at once. Lanes (Spark tasks, other processes, perhaps other machines) each make one `Writer` from the same
card, options and `Place`, and keep it, with its connections, from epoch to epoch.

For every epoch, in this order:

1. The plan is durable in the ledger before `prepare`, before a writer that sends is called, and before `commit`. Writers that
   stage may begin meanwhile; so one may have staged an epoch that was never planned, and the number comes again with
   another span: what is staged is found, and cleared away, by the number.
2. `prepare(tables)` with tables that appear for the first time in this epoch or in a new version. May run any number of
   times with the same tables; it creates what is missing, changes what has a new version, and loses nothing that is there.
3. `Writer.write(epoch, bucket, batches)` in `epoch.buckets` lanes. **May run more than once for one bucket, also at the same
   time** (a lane that was lost may still be writing when its successor starts): so it either stages under a name that no
   other attempt uses, or sends something that is idempotent by event id (its card says `sends`). Nothing it stages may be
   visible to a reader; what it sends is. Rows of one key arrive in log order and only in one bucket. An epoch with a key
   change has one bucket, for a destination that sends also one with a TRUNCATE.
   A writer that may wait for long calls `progress` about every second meanwhile, from the thread of `write`: a lane without
   a sign of life is given up, and when nobody wants the work any more `progress` raises, which `write` lets pass.
   A change that the destination refuses for good is ChangeRefused; where `sets_aside` is true it is listed in the receipt
   instead, the later changes of its key with it, and the rest goes on.
4. `commit(epoch, receipts)` on the driver with exactly one receipt per bucket, of the attempts that won, in bucket order.
   When it returns, everything in the receipts is durable and visible, together with the epoch's `number` and, as position,
   its `upto` with `upto_part`, where the destination can hold them. It may be called again for an epoch that it already
   committed (a crash between commit and checkpoint): an epoch with a number that the destination already holds changes
   nothing. The number alone tells epochs apart. It grows by one, each is given to one epoch only, and several in a row may
   end at one position.
5. The checkpoint becomes durable in the ledger. Only then may the source be told.

When it begins, and after an error, the worker asks `committed()`. Its answer is what the destination itself holds, None when
it cannot hold anything or has nothing yet. If it has the number of the planned epoch, the checkpoint is recorded; if not,
`abort(epoch)` removes what attempts have left behind and the same epoch (same number, same span, same buckets) runs again.
`abort` may find nothing to do, and may run twice. A ledger that knows less than the destination (it was lost, or comes from
a backup) follows it: the next epoch begins at the position that is held and has a number that is not.

`fence(generation)` comes first, when a loop begins and again after each error: the destination keeps the generation, durably
where it can hold one, and `commit`, `committed` and `fence` itself refuse (LedgerFenced) once it has seen a higher one, so that
a worker that was taken over can change nothing. Where a destination can hold none, the worker's lease is the only fence: it is
asked before every commit, and in a lane neither a batch nor the return of `progress` is to be had after its end. So a writer that
sends calls `progress` before it sends more.

Dead letters: a change that a destination refuses for good (a value it cannot hold, a constraint) is left out and set aside
when `sets_aside` is true, and stops the destination when it is not. A writer leaves it out by `aside.refuse`, which keeps
the change with all that is needed to replay it and, as the flow says, makes the later changes of its key wait; or it leaves
it out by itself and names it in its receipt's `refused`: plain data, {schema, table, position, ordinal, code, reason}, no
values in `reason`. A `commit` that finds such changes raises ChangesRefused with the same naming, having changed nothing:
the epoch is run again without every change of their keys in it. What was set aside is durable in the ledger before `commit`
makes the rest durable. Changes that are replayed come first in the only bucket of an epoch, under their old positions.

Loads: before the first chunk of a load is delivered, and again whenever a loop begins while the load runs, `begin_load(load,
tables)` says which tables it fills; `load` is a name that no other load of the flow ever has. The load's rows come in epochs like
all others, as SNAPSHOT. After the last one is committed and its checkpoint durable, `end_load(load, tables)`; both may run any
number of times, and do nothing for a load that has ended here. A destination whose options say so keeps the load's rows in a
staging table meanwhile and merges them when the load ends, or when `resolve_staging` is called (`loading` has the rules).

Rewinding: when the ledger has moved a destination back, the worker calls `rewind(position, number)` before anything else is
delivered: the destination notes both as its own, in one transaction. What follows is delivered again under new epoch numbers. It
may run twice.

Errors: a driver library's errors are turned into ours in one place per connector. `timed` errors are tried again,
`manual` and `never` stop this destination and no other; one that is about a single table says so by the fact `table` (its name at
the source or at the destination), and the flow may quarantine that table instead: it is neither prepared nor written any more.
When it is released, an epoch that does not move the position brings the changes that it has missed, under their old positions.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from penstock.core.batch import Batch
from penstock.core.epoch import Epoch
from penstock.core.finding import Finding
from penstock.core.options import Options, matches
from penstock.core.schema import TableSchema

if TYPE_CHECKING:
    from penstock.destinations.aside import Aside

Receipt = Mapping[str, Any]
"""Plain data (msgpack-able): `rows`, `bytes`, `tables` {schema.table: rows}, `counts` {name: n} for things that must be
counted, `nulled` {schema.table: n} for values that were written as NULL by policy, `refused` [{schema, table, position,
ordinal, code, reason}] for changes that were set aside, and whatever else the destination's own commit needs."""


@dataclass(frozen=True)
class Held:
    """What a destination itself holds: its position, and the number of the last epoch that it has committed."""

    position: int
    epoch: int
    part: int = 0
    """How many changes of the transaction that follows the position it has too (the epoch's `upto_part`)."""

    def has(self, epoch: Epoch) -> bool:
        """Whether the epoch is committed."""
        return self.epoch >= epoch.number


@dataclass(frozen=True)
class Place:
    """Where a destination stands: its flow and name, and a directory on shared storage for what it stages."""

    flow: str
    destination: str
    staging: Path


class DestinationOptions(Options):
    """Options that every destination has."""

    include: tuple[str, ...] = ()
    """Patterns of tables to take (`public.*`, `orders`); empty takes all."""
    exclude: tuple[str, ...] = ()
    """Patterns of tables to leave out."""
    on_unrepresentable: Literal["fail", "null"] = "fail"
    """What happens to a value that the column's type cannot hold; every use is counted."""

    def takes(self, schema: str, table: str) -> bool:
        """Whether this destination takes the table."""
        if self.include and not matches(self.include, schema, table):
            return False
        return not matches(self.exclude, schema, table)


class TableOptions(DestinationOptions):
    """Options that table destinations share."""

    schema_template: Annotated[str, Field(min_length=1)] = "{schema}"
    """Schema that a source table goes to; `{schema}` and `{table}` stand for the source's names."""
    table_template: Annotated[str, Field(min_length=1)] = "{table}"
    """Table that a source table goes to; `{schema}` and `{table}` stand for the source's names."""
    on_truncate: Literal["apply", "ignore", "halt"] = "apply"
    """What a TRUNCATE on the source does: empties the table, nothing (and is counted), or stops this destination."""
    batch_mode: Literal["target", "staging"] = "target"
    """Where the rows of a first load or backfill go: straight into the table, or into a staging table beside it."""
    batch_resolution: Literal["none", "append", "replace"] = "none"
    """What becomes of a staging table when its load ends: it is left to you; rows that the table lacks are added; or the table
    becomes what the staging table is, rows that the load has not met removed."""
    staging_schema: Annotated[str, Field(min_length=1)] | None = None
    """Schema of staging tables, with `{schema}` and `{table}` as in schema_template; the table's own schema when not set."""
    staging_table: Annotated[str, Field(min_length=1)] | None = None
    """Name of staging tables, with `{schema}` and `{table}`; the table's own name and staging_suffix when not set."""
    staging_suffix: str = "_staging"
    """What follows the table's name in the name of its staging table."""

    @model_validator(mode="after")
    def _stands_apart(self) -> Self:
        if self.batch_mode == "staging" and self.staging_place("{schema}", "{table}") == self.place_of("{schema}", "{table}"):
            raise ValueError("a staging table needs a place of its own: set staging_schema, staging_table or staging_suffix")
        return self

    def target(self, table: TableSchema) -> tuple[str, str]:
        """Schema and table that the source's table goes to."""
        return self.place_of(table.schema, table.name)

    def place_of(self, schema: str, table: str) -> tuple[str, str]:
        """Schema and table that the source's table of that name goes to."""
        names = {"{schema}": schema, "{table}": table}
        return _fill(self.schema_template, names), _fill(self.table_template, names)

    def staging_place(self, schema: str, table: str) -> tuple[str, str]:
        """Schema and table where rows of loads of the source's table of that name wait."""
        names = {"{schema}": schema, "{table}": table}
        own = self.place_of(schema, table)
        return (
            _fill(self.staging_schema, names) if self.staging_schema is not None else own[0],
            _fill(self.staging_table, names) if self.staging_table is not None else own[1] + self.staging_suffix,
        )


def _fill(template: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\{schema\}|\{table\}", lambda mark: names[mark[0]], template)


@dataclass(frozen=True)
class Resolution:
    """What became of one staging table."""

    schema: str
    table: str
    """By the source's names."""
    outcome: Literal["appended", "replaced", "left", "loading"]
    """`left` is for the user; `loading` is not resolved yet, because its load still runs."""
    rows: int = 0
    """How many rows of the table were added or written."""
    removed: int = 0
    """How many were removed."""


class Destination(ABC):
    """Driver half. Not picklable on purpose; the module's prose says who calls what."""

    sets_aside: bool = False
    """Whether `commit` may raise ChangesRefused; set by the worker."""

    def __init__(self, place: Place, options: Any) -> None:
        self.place = place
        self.options = options

    @abstractmethod
    def check(self) -> list[Finding]:
        """What stands in the way of writing, every problem at once; changes nothing that a reader could see."""

    @abstractmethod
    def prepare(self, tables: Sequence[TableSchema]) -> None:
        """Makes the tables ready; idempotent; TableWithoutKey or SchemaRefused when one cannot be."""

    @abstractmethod
    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Makes the epoch durable and visible as one; idempotent per epoch number."""

    @abstractmethod
    def committed(self) -> Held | None:
        """What the destination itself holds for this flow and destination."""

    def fence(self, generation: int) -> None:
        """Keeps workers of lower generations from writing, from now on; LedgerFenced when a higher one has been here."""

    def begin_load(self, load: str, tables: Sequence[tuple[str, str]]) -> None:
        """A load of these tables, by the source's schema and name, runs from now on; they are prepared already."""

    def end_load(self, load: str, tables: Sequence[tuple[str, str]]) -> list[Resolution]:
        """The load has delivered everything for these tables; what became of their staging tables, if they have any."""
        return []

    def resolve_staging(self, takes: Callable[[str, str], bool]) -> list[Resolution]:
        """Resolves the staging tables of those tables whose loads have ended, each in one transaction; a second call has
        nothing to do. StagingRefused when the options do not say how."""
        return []

    def rewind(self, position: int, number: int) -> None:
        """Notes a position before its own, and a number after its own, as what it holds; for those that can be rewound."""

    @abstractmethod
    def abort(self, epoch: Epoch) -> None:
        """Removes what attempts of an uncommitted epoch have left; idempotent."""

    def close(self) -> None:
        """Gives back connections; called once, also after errors."""


def _nobody_asks() -> None:
    """What `progress` does where no lane has set it."""


class Writer(ABC):
    """Executor half: made in a lane from plain data, kept between epochs."""

    sets_aside: bool = False
    """Whether changes that are refused for good are left out, instead of stopping the destination; set by the lane."""
    aside: Aside | None = None
    """Where they go, for the `write` that runs; set by the lane when `sets_aside`."""
    progress: Callable[[], None] = staticmethod(_nobody_asks)
    """A sign of life, set by the lane; raises when nothing more may be written; may be called as often as one likes."""

    def __init__(self, place: Place, options: Any) -> None:
        self.place = place
        self.options = options

    @abstractmethod
    def write(self, epoch: Epoch, bucket: int, batches: Iterator[Batch]) -> Receipt:
        """Stages or sends one bucket; may run twice; nothing staged is visible before `commit`."""

    def rest(self) -> None:
        """Called after each `write`, when its receipt is on its way: may make ready what the next one needs."""

    def close(self) -> None:
        """Gives back connections; called when the lane ends in an orderly way."""
