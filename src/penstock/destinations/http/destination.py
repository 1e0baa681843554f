"""Driver half of the http destination: looks whether the server is there; lanes send, so that a commit has nothing left to do."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.epoch import Epoch
from penstock.core.finding import Finding
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, Held, Receipt
from penstock.destinations.http.answer import Answer
from penstock.destinations.http.client import connect
from penstock.destinations.http.options import HttpOptions


class HttpDestination(Destination):
    """A web address that changes are sent to."""

    options: HttpOptions

    def check(self) -> list[Finding]:
        """Whether the server can be connected to, TLS included; nothing is sent."""
        subject = f"http: {self.options.origin}"
        found = connect(self.options)
        if found is not None:
            error = Answer(failure=found).error(self.options.origin)
            return [Finding(subject, False, error.message, error.remedy, error.code)]
        return [Finding(subject, True, "answers at its port; whether it takes changes, the first one shows")]

    def prepare(self, tables: Sequence[TableSchema]) -> None:
        """Nothing to prepare: every change says its table."""

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Nothing to publish: the server has answered for every change that the receipts count."""

    def committed(self) -> Held | None:
        """The server is not asked for a position."""
        return None

    def abort(self, epoch: Epoch) -> None:
        """Nothing is left behind; what was sent is sent again, with the same keys."""
