"""The end of a flow: what it made on the server is removed, what it keeps here is named, and removed if asked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from penstock.core.connectors import find
from penstock.core.flow import Flow
from penstock.engine.lease import holding
from penstock.engine.places import home, journal_directory, ledger_address, run_directory, staging_directory
from penstock.errors import LedgerUnusable
from penstock.journal.chunks import chunk_bytes, remove_all_loads
from penstock.journal.retention import journal_size
from penstock.journal.segment import catalog_path, segment_numbers
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Ledger
from penstock.sources.base import Belonging, Source


@dataclass(frozen=True)
class LocalState:
    """What a flow keeps in the state directory."""

    journal: Path | None
    journal_bytes: int
    ledger: LedgerAddress | None
    """The ledger, if it has rows of the flow."""
    directories: tuple[Path, ...]
    elsewhere: str | None = None
    """The machine and directory of the flow's journal, where that is not this one: it is not removed from here."""

    def __bool__(self) -> bool:
        return self.journal is not None or self.ledger is not None or bool(self.directories)


class Cleanup:
    """One flow's end, during which no worker runs it; a second one finds nothing to do.

    Entering raises FlowRunning while a worker does.
    """

    def __init__(self, flow: Flow, state: Path) -> None:
        self._flow, self._state = flow, state
        self._stack = ExitStack()
        self.generation: int | None = None
        """That of the lease; None where there is no ledger to have one in."""

    def __enter__(self) -> Self:
        address = ledger_address(self._state)
        if address.is_shared or self._state.exists():
            self.generation = self._stack.enter_context(holding(address, self._flow.name, "flow cleanup")).generation
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look(self) -> tuple[list[Belonging], LocalState]:
        """What there is on the server and here; the error that stands in the way, if one does. Changes nothing."""
        with self._source() as source:
            found = source.belongings()
        blocked = next((one.blocked for one in found if one.blocked is not None), None)
        if blocked is not None:
            raise blocked
        return found, self._local()

    def run(self, *, remove_state: bool) -> list[Belonging]:
        """Removes what the flow made on the server and, if asked, its local state; returns what went from the server."""
        with self._source() as source:
            removed = source.drop()
        if remove_state:
            self.remove_state()
        return removed

    def remove_state(self) -> LocalState:
        """Removes the flow's local state and nothing on the server; what there was."""
        local = self._local()
        self._remove(local)
        return local

    @contextmanager
    def _source(self) -> Iterator[Source]:
        card = find("source", self._flow.source.type)
        source: Source = card.load("source")(self._flow.name, card.options.model_validate(self._flow.source.options))
        if not segment_numbers(journal_directory(self._flow, self._state)):
            # Where the journal is, the slot is that of this flow, also after the machine got another name.
            source.home = home(self._state)
        try:
            yield source
        finally:
            source.close()

    def _local(self) -> LocalState:
        journal = journal_directory(self._flow, self._state)
        segments, loaded = bool(segment_numbers(journal)), chunk_bytes(journal)
        there = segments or loaded is not None
        path = ledger_address(self._state)
        known, place = False, None
        if path.exists():
            ledger = Ledger(path)
            try:
                known = ledger.identity(self._flow.name) is not None
                found = ledger.flows.find(self._flow.name)
                place = found.journal if found is not None else None
            finally:
                ledger.close()
        places = (staging_directory(self._flow, self._state), run_directory(self._flow, self._state))
        return LocalState(
            journal=journal if there else None,
            journal_bytes=journal_size(journal) + (loaded or 0) if there else 0,
            ledger=path if known else None,
            directories=tuple(p for p in places if p.is_dir()),
            elsewhere=place if not segments else None,
        )

    def _remove(self, local: LocalState) -> None:
        # The ledger last: while it knows the flow, a cleanup that was cut short is seen to have something left to do.
        try:
            for directory in local.directories:
                shutil.rmtree(directory)
            if local.journal is not None:
                _remove_journal(local.journal)
        except OSError as error:
            raise LedgerUnusable(f"{error.filename or self._state} cannot be removed: {error.strerror}") from error
        if local.ledger is not None:
            ledger = Ledger(local.ledger)
            try:
                ledger.forget(self._flow.name)
            finally:
                ledger.close()


def _remove_journal(directory: Path) -> None:
    # Not the whole tree: `config.journal.url` may name a directory that holds other things too.
    for path in (*directory.glob("[0-9]*.seg"), *directory.glob("[0-9]*.idx"), catalog_path(directory), directory / "lock"):
        path.unlink(missing_ok=True)
    remove_all_loads(directory)
    if not any(directory.iterdir()):
        directory.rmdir()
