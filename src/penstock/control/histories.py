"""The service of histories: how a flow's checkpoints have moved, and how its tables were."""

from __future__ import annotations

from pathlib import Path

from penstock.control.caller import Caller
from penstock.control.flows import moment
from penstock.control.history_answers import (
    CheckpointAnswer,
    CheckpointList,
    ColumnAnswer,
    EpochAnswer,
    SchemaAnswer,
    SchemaList,
)
from penstock.control.premises import Premises
from penstock.control.stored import journal_url
from penstock.core.options import matches
from penstock.core.position import format_lsn, parse_lsn
from penstock.engine.whereabouts import Whereabouts
from penstock.errors import FlowUnknown, RequestRefused
from penstock.journal.versions import Version, as_of, table_versions
from penstock.ledger.history import ClosedEpoch

MOST = 1000
"""How many epochs are shown at most; the ledger keeps as many of each destination."""


class Histories:
    """Reads over what ledger and journal keep."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def checkpoints(self, caller: Caller, name: str, *, destination: str | None = None, limit: int = 0) -> CheckpointList:
        """How far each destination has come, those that were removed included, and the newest epochs that moved them."""
        caller.require("viewer")
        self._check(name)
        ledger = self._premises.ledger
        here = [(n, p, False) for n, p in ledger.checkpoints(name).items()]
        gone = [(n, p, True) for n, p in ledger.removed(name).items()]
        wanted = [one for one in (*here, *gone) if destination in (None, one[0])]
        epochs = ledger.history.epochs(name, destination, min(limit, MOST)) if limit > 0 else []
        return CheckpointList(
            checkpoints=[CheckpointAnswer(destination=n, position=format_lsn(p), removed=r) for n, p, r in wanted],
            history=[_epoch(one) for one in epochs],
        )

    def schemas(self, caller: Caller, name: str, *, table: str | None = None, at: str | None = None) -> SchemaList:
        """Every version of the flow's tables that the journal knows, or those in force at a position.

        FlowUnknown, RequestRefused for what is no position, JournalElsewhere.
        """
        caller.require("viewer")
        self._check(name)
        position = _position(at) if at is not None else None
        directory = self._journal(name)
        Whereabouts(self._premises.ledger, name, directory).refuse_elsewhere()
        found = table_versions(directory)
        found = as_of(found, position) if position is not None else found
        wanted = [v for v in found if table is None or matches((table,), v.table.schema, v.table.name)]
        return SchemaList(schemas=[_schema(one) for one in wanted])

    def _journal(self, name: str) -> Path:
        """Where the flow's journal is, by what its worker has kept."""
        known = self._premises.ledger.flows.find(name)
        url = journal_url(known.definition) if known is not None else None
        return Path(url) if url else self._premises.state / "journal" / name

    def _check(self, name: str) -> None:
        if self._premises.ledger.register.find(name) is None:
            raise FlowUnknown(f"there is no flow named {name}", flow=name)


def _position(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise RequestRefused(str(error), remedy="Give a position such as 0/16B6C50.") from error


def _epoch(one: ClosedEpoch) -> EpochAnswer:
    return EpochAnswer(
        destination=one.destination,
        epoch=one.number,
        after=format_lsn(one.after),
        position=format_lsn(one.upto),
        changes=one.changes,
        generation=one.generation,
        planned_at=moment(one.planned_at),
        closed_at=moment(one.closed_at),
    )


def _schema(version: Version) -> SchemaAnswer:
    table = version.table
    return SchemaAnswer(
        table_schema=table.schema,
        table=table.name,
        version=table.version,
        since=format_lsn(version.since) if version.since is not None else None,
        key=list(table.key),
        columns=[ColumnAnswer(name=c.name, type=c.native, arrow=str(c.type)) for c in table.columns],
    )
