"""A destination driven as the engine drives it, and its subject: the small hook that says how to make and read one.

A destination that the scan finds has `tests/destinations/<name>/subject.py` with
`options(home)`: its options, for a place of its own below `home`;
`rows(home, table)` when its shape is a table: the rows that are there, as dicts;
`changes(home, table)` when its shape is a log: the changes in the layout, as record batches;
`around(home)`, if it needs one: a context in which it works.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.core.card import Card
from penstock.core.connectors import find
from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, Place, Receipt, Writer
from tests.batches import Change, batch
from tests.table_model import State, key_of, replay_layout

SOURCE = "src1"
MADE: list[Harness] = []
"""Every harness of the running test, so that none stays open behind it, whatever ends the test."""


class Harness:
    """One destination of one flow, in a directory of its own."""

    def __init__(self, name: str, home: Path, **options: Any) -> None:
        self.card: Card = find("destination", name)
        self.home = home
        self.subject = importlib.import_module(f"tests.destinations.{name}.subject")
        self.place = Place("flow", name, home / "staging")
        self.options = self.card.options.model_validate({**self.subject.options(home), **options})
        self._destination: Destination | None = None
        MADE.append(self)

    @property
    def destination(self) -> Destination:
        """The driver half; a new one after `close`."""
        if self._destination is None:
            self._destination = self.card.load("destination")(self.place, self.options)
        return self._destination

    def writer(self) -> Writer:
        """An executor half, as a lane makes one."""
        made: Writer = self.card.load("writer")(self.place, self.options)
        return made

    def close(self) -> None:
        """Ends the driver half, as a worker that stops."""
        if self._destination is not None:
            self._destination.close()
            self._destination = None

    def around(self) -> AbstractContextManager[Any]:
        """The context in which the destination works."""
        made: AbstractContextManager[Any] = getattr(self.subject, "around", lambda home: nullcontext())(self.home)
        return made

    def epoch(self, number: int, *, buckets: int = 1, generation: int = 1, at: int | None = None) -> Epoch:
        """The epoch with that number; each takes a thousand positions, or it stands `at` one and moves none."""
        span = ((number - 1) * 1000, number * 1000) if at is None else (at, at)
        return Epoch("flow", self.card.name, SOURCE, number, *span, buckets, generation)

    def write(self, epoch: Epoch, work: Work, cuts: Sequence[int] = ()) -> list[Receipt]:
        """One attempt at every bucket, each with a writer of its own."""
        receipts = []
        for bucket in range(epoch.buckets):
            batches = []
            for schema, shares in work:
                changes = shares[bucket]
                edges = sorted({0, len(changes), *(min(cut, len(changes)) for cut in cuts)})
                batches += [batch(schema, changes[begin:end]) for begin, end in pairwise(edges)]
            writer = self.writer()
            receipts.append(writer.write(epoch, bucket, iter(batches)))
            writer.close()
        return receipts

    def deliver(
        self, number: int, work: Work, cuts: Sequence[int] = (), generation: int = 1, at: int | None = None
    ) -> list[Receipt]:
        """An epoch from prepared tables to the commit."""
        buckets = max((len(shares) for _, shares in work), default=1)
        epoch = self.epoch(number, buckets=buckets, generation=generation, at=at)
        with self.around():
            self.destination.prepare([schema for schema, _ in work])
            receipts = self.write(epoch, work, cuts)
            self.destination.commit(epoch, receipts)
        return receipts

    def recover(self, number: int, work: Work) -> None:
        """What a worker does after a crash, by the contract."""
        buckets = max((len(shares) for _, shares in work), default=1)
        epoch = self.epoch(number, buckets=buckets)
        with self.around():
            held = self.destination.committed()
            if held is None or not held.has(epoch):
                self.destination.abort(epoch)
                self.deliver(number, work)

    def state(self, schema: TableSchema) -> State:
        """What a reader of the destination knows of the table; every change or row exactly once, unless the card says less."""
        self.close()
        if self.card.capabilities["shape"] == "table":
            rows = self.subject.rows(self.home, schema)
            state = {key_of(schema, row): row for row in rows}
            assert len(state) == len(rows), "a key is there twice"
            return state
        changes = self.changes(schema)
        identities = [(change["__position"], change["__ordinal"]) for change in changes]
        if self.card.capabilities["holds_position"]:
            assert len(set(identities)) == len(identities), "a change is there twice"
        once = {change["__event_id"]: change for change in changes}
        return replay_layout(schema, once.values())

    def changes(self, schema: TableSchema) -> list[dict[str, Any]]:
        """The changes that a log destination shows."""
        self.close()
        found = [row for part in self.subject.changes(self.home, schema) for row in part.to_pylist()]
        return sorted(found, key=lambda change: (change["__position"], change["__ordinal"]))

    def files(self) -> set[Path]:
        """Every file below the home."""
        return {path for path in self.home.rglob("*") if path.is_file()}


Work = Sequence[tuple[TableSchema, Sequence[Sequence[Change]]]]
"""Tables, each with the changes of every bucket."""


def work(schema: TableSchema, changes: Iterable[Change]) -> Work:
    """One table's changes in one bucket."""
    return [(schema, [list(changes)])]
