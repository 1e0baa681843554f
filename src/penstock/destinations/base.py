"""The destination contract: a driver half that decides and commits once, and an executor half that stages or sends.

Who calls, when, and what may run twice
---------------------------------------
The worker makes one `Destination` per destination of a flow and calls it from that destination's own thread, never from
two threads at once. Lanes (Spark tasks, other processes, perhaps other machines) each make one `Writer` from the same
card, options and `Place`, and keep it, with its connections, from epoch to epoch.

For every epoch, in this order:

1. The plan is durable in the ledger before anything below happens.
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
   When it returns, everything in the receipts is durable and visible, together, with the epoch's `upto` as position where
   the destination can hold one. It may be called again for an epoch that it already committed (a crash between commit and
   checkpoint): the second call changes nothing.
5. The checkpoint becomes durable in the ledger. Only then may the source be told.

After a crash the worker asks `committed()`. Its answer is the position the destination itself holds, None when the
destination cannot hold one or has none yet. If it covers the planned epoch, the checkpoint is recorded; if not,
`abort(epoch)` removes what attempts have left behind and the same epoch (same span, same buckets) runs again. `abort`
may find nothing to do, and may run twice.

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

Errors: a driver library's errors are turned into ours in one place per connector. `timed` errors are tried again,
`manual` and `never` stop this destination and no other.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

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

    def target(self, table: TableSchema) -> tuple[str, str]:
        """Schema and table that the source's table goes to."""
        return self.place_of(table.schema, table.name)

    def place_of(self, schema: str, table: str) -> tuple[str, str]:
        """Schema and table that the source's table of that name goes to."""
        names = {"{schema}": schema, "{table}": table}
        return _fill(self.schema_template, names), _fill(self.table_template, names)


def _fill(template: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\{schema\}|\{table\}", lambda mark: names[mark[0]], template)


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
        """Makes the epoch durable and visible as one; idempotent per epoch."""

    @abstractmethod
    def committed(self) -> int | None:
        """The position the destination itself holds for this flow and destination."""

    def fence(self, generation: int) -> None:
        """Keeps workers of lower generations from writing, from now on; LedgerFenced when a higher one has been here."""

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

    def close(self) -> None:
        """Gives back connections; called when the lane ends in an orderly way."""
