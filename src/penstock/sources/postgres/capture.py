"""Capture: copies a slot's log into the journal, unchanged, and tells the server what it may forget."""

from __future__ import annotations

import threading
import time

from penstock.errors import PenstockError, SourceStopping
from penstock.journal.writer import JournalWriter
from penstock.observe.failpoints import reach
from penstock.sources.base import Capture, Link
from penstock.sources.postgres import walk
from penstock.sources.postgres.assembly import Assembly
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.pulse import Pulse
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.relation import RelationBook
from penstock.sources.postgres.typebook import TypeBook
from penstock.sources.postgres.wire import ReplicationConnection, raise_server_error

GULP_BYTES = 4 << 20
# Reading late and in big gulps: an eager reader makes walsender pay a system call per message (docs/decisions/capture.md).
BULK_BYTES = 32 << 10
BULK_PAUSE = 0.02
QUIET_PAUSE = 0.001
WAIT = 0.25


class PostgresCapture(Capture):
    """One walsender connection; what it copies begins where the journal is complete."""

    @classmethod
    def warm(cls) -> None:
        """Loads the compiled walk."""
        walk.warm()

    def run(self, journal: JournalWriter, link: Link) -> None:
        """Copies until `link.stopping`."""
        dsn, flow, iam = self.recipe["dsn"], self.recipe["flow"], RdsIam.from_data(self.recipe["iam"])
        control = Control(dsn, flow, patience=float(self.recipe["receive_timeout"]), iam=iam)
        connection = ReplicationConnection.connect(dsn, application_name=f"penstock {flow}", iam=iam)
        try:
            connection.start_replication(self.recipe["slot"], journal.mark, self._options())
            teller = _Teller(connection, journal, link, float(self.recipe["status_interval"]))
            teller.start()
            try:
                types = TypeBook(control, bool(self.recipe["resolve_types"]))
                book = RelationBook(control, types, journal.entries, journal.versions, journal.catalog)
                pulse = Pulse(control, self.recipe["slot"], connection.where, float(self.recipe["receive_timeout"]))
                self._copy(connection, journal, Assembly(journal, book), teller, link, pulse)
            finally:
                teller.finish()
            connection.end()
        finally:
            connection.close()
            control.close()

    def _options(self) -> dict[str, str]:
        """What the server's plugin is asked for."""
        options = {"proto_version": "2", "publication_names": '"' + self.recipe["publication"].replace('"', '""') + '"'}
        # A streamed message bears the id of its transaction and not of its savepoint: one rolled back could not be told apart.
        if self.recipe["streaming"] and not self.recipe["messages"]:
            options["streaming"] = "on"
        if self.recipe["messages"]:
            options["messages"] = "true"
        if self.recipe["origin"] != "any":
            options["origin"] = self.recipe["origin"]
        return options

    def _copy(
        self,
        connection: ReplicationConnection,
        journal: JournalWriter,
        assembly: Assembly,
        teller: _Teller,
        link: Link,
        pulse: Pulse,
    ) -> None:
        probes, asked, marked_at = 0, False, 0.0
        interval = float(self.recipe["heartbeat_interval"])
        while not link.stopping:
            if link.held:
                # The server waits with its stream; the teller goes on, so that it does not take us for gone.
                pulse.heard()
                teller.check()
                time.sleep(WAIT)
                continue
            got = _gulp(connection, assembly)
            if got:
                pulse.heard()
                assembly.take()
                due = asked or time.monotonic() - marked_at >= interval
                if assembly.publish(bare=due):
                    asked, marked_at = False, time.monotonic()
                    link.appended(journal.mark)
                if assembly.other is not None:
                    _end_of_stream(connection, assembly.other)
            if assembly.reply_wanted():
                teller.hurry(reply=False)
            if link.probes != probes:
                probes, asked = link.probes, True
                teller.hurry(reply=True)
            # An idle server says nothing by itself: asked, it says where the log stands, and that it is there.
            elif pulse.is_silent_for(interval):
                teller.hurry(reply=True)
            pulse.check()
            teller.check()
            if got > BULK_BYTES:
                time.sleep(BULK_PAUSE)
            elif connection.wait(WAIT):
                # The messages of one commit, and commits side by side, come as a burst: let it arrive.
                time.sleep(QUIET_PAUSE)


def _gulp(connection: ReplicationConnection, assembly: Assembly) -> int:
    got = 0
    while got < GULP_BYTES:
        count = connection.receive_into(assembly.room())
        assembly.arrived(count)
        got += count
        # A short read has emptied the socket: to ask again would only meet single messages.
        if count < 65536:
            break
    return got


def _end_of_stream(connection: ReplicationConnection, frame: bytes) -> None:
    kind, payload = frame[:1], frame[1:]
    if kind == b"E":
        raise_server_error(payload, connection.where)
    if kind != b"N":
        raise SourceStopping("The server ended the replication stream, as it does when it shuts down.")


class _Teller(threading.Thread):
    """Tells the server the confirmed position, from a thread of its own so that nothing else delays it."""

    def __init__(self, connection: ReplicationConnection, journal: JournalWriter, link: Link, interval: float) -> None:
        super().__init__(name="teller", daemon=True)
        self._connection = connection
        self._journal = journal
        self._link = link
        self._interval = interval
        self._news = threading.Event()
        self._done = False
        self._reply = False
        self._error: PenstockError | None = None

    def hurry(self, *, reply: bool) -> None:
        """Sends a status now; with `reply` the server is asked for a keepalive."""
        self._reply = self._reply or reply
        self._news.set()

    def check(self) -> None:
        """Raises what has stopped the teller."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Says the last confirmed position and ends."""
        self._done = True
        self._news.set()
        self.join(5)

    def run(self) -> None:
        """The thread's loop."""
        told, sent_at = -1, 0.0
        self._link.on_confirmed(self._news.set)
        try:
            while True:
                self._news.wait(self._interval)
                self._news.clear()
                confirmed, reply = self._link.confirmed, self._reply
                self._reply = False
                # A status per epoch would cost the server more than it frees; a few a second are plenty.
                early = 0.1 - (time.monotonic() - sent_at)
                if not reply and not self._done and early > 0:
                    time.sleep(early)
                    confirmed = self._link.confirmed
                reach("capture.before_confirm")
                self._connection.send_status(self._journal.mark, confirmed, confirmed, reply)
                reach("capture.after_confirm")
                sent_at = time.monotonic()
                if confirmed != told:
                    told = confirmed
                    self._link.told(confirmed)
                if self._done:
                    return
        except PenstockError as error:
            self._error = error
