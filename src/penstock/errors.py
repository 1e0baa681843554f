"""The one error tree: every failure an operator can meet, with a code, a retry class and a remedy.

    PenstockError
    ├── FlowError
    │   ├── FlowInvalid            flow_invalid             never
    │   ├── FlowRunning            flow_running             manual
    │   ├── FlowUnknown            flow_unknown             never
    │   ├── FlowStopped            flow_stopped             manual
    │   ├── TransitionRefused      transition_refused       never
    │   ├── RewindRefused          rewind_refused           never
    │   └── FlowChanged            flow_changed             manual
    ├── ControlError
    │   ├── FlowExists             flow_exists              never
    │   ├── RevisionStale          revision_stale           manual
    │   ├── KeyReused              key_reused               never
    │   ├── RequestRefused         request_refused          never
    │   ├── NotFound               not_found                never
    │   ├── TokenMissing           token_missing            manual
    │   ├── AccessDenied           access_denied            manual
    │   ├── TokenUnknown           token_unknown            never
    │   ├── TooManyRequests        too_many_requests        timed
    │   ├── ListenRefused          listen_refused           manual
    │   ├── ServerUnreachable      server_unreachable       timed
    │   ├── ProfileRefused         profile_refused          manual
    │   └── WorkerDied             worker_died              timed
    ├── ConnectorError
    │   ├── ConnectorUnknown       connector_unknown        never
    │   └── ExtraMissing           extra_missing            manual
    ├── SourceError
    │   ├── SourceUnreachable      source_unreachable       timed
    │   ├── SourceRefused          source_refused           manual
    │   │   └── TokenRefused       token_refused            manual
    │   ├── SourceDatabaseMissing  source_database_missing  manual
    │   ├── SourceRights           source_rights            manual
    │   ├── SourceSettings         source_settings          manual
    │   ├── SourceFailed           source_failed            timed
    │   ├── ProtocolBroken         protocol_broken          timed
    │   ├── SlotInUse              slot_in_use              timed
    │   ├── SlotTaken              slot_taken               manual
    │   ├── SlotMissing            slot_missing             manual
    │   ├── SlotLost               slot_lost                manual
    │   ├── SourceGap              source_gap               manual
    │   ├── SourceDiverged         source_diverged          manual
    │   ├── PublicationMissing     publication_missing      manual
    │   ├── PublicationNarrowed    publication_narrowed     manual
    │   ├── TablesMissing          tables_missing           manual
    │   ├── IdentityMissing        identity_missing         manual
    │   ├── SnapshotLost           snapshot_lost            timed
    │   ├── TableChanged           table_changed            timed
    │   ├── TableGone              table_gone               manual
    │   ├── ReadTooLong            read_too_long            manual
    │   ├── ReplicaBehind          replica_behind           timed
    │   └── ReadStopped            read_stopped             timed
    ├── JournalError
    │   ├── JournalCorrupt         journal_corrupt          manual
    │   ├── JournalUnwritable      journal_unwritable       timed
    │   ├── JournalLocked          journal_locked           timed
    │   ├── JournalTrimmed         journal_trimmed          manual
    │   ├── LoadTooLarge           load_too_large           manual
    │   ├── JournalElsewhere       journal_elsewhere        manual
    │   ├── JournalFull            journal_full             manual
    │   └── ChunkDamaged           chunk_damaged            timed
    ├── DecodeFailed               decode_failed            manual
    ├── DestinationError
    │   ├── DestinationUnreachable destination_unreachable  timed
    │   ├── DestinationUnwritable  destination_unwritable   timed
    │   ├── DestinationFailed      destination_failed       timed
    │   ├── DestinationRefused     destination_refused      manual
    │   ├── ChangeRefused          change_refused           manual
    │   ├── DestinationBehind      destination_behind       manual
    │   ├── TableWithoutKey        table_without_key        manual
    │   ├── SchemaRefused          schema_refused           manual
    │   ├── TableGap               table_gap                manual
    │   ├── StagingRefused         staging_refused          manual
    │   ├── TruncateRefused        truncate_refused         manual
    │   ├── ValueRefused           value_refused            manual
    │   ├── ValueUnrepresentable   value_unrepresentable    manual
    │   ├── ChangesRefused         changes_refused          manual
    │   └── DeadLettersFull        dead_letters_full        manual
    ├── EngineError
    │   ├── ReloadUnfinished       reload_unfinished        timed
    │   ├── WorkerFailed           worker_failed            timed
    │   ├── LoadInterrupted        load_interrupted         timed
    │   ├── JavaMissing            java_missing             manual
    │   ├── SparkFailed            spark_failed             timed
    │   ├── SparkMasterRefused     spark_master_refused     manual
    │   ├── LaneLost               lane_lost                timed
    │   └── LaneSilent             lane_silent              timed
    └── LedgerError
        ├── LedgerUnusable         ledger_unusable          manual
        ├── LedgerUnreachable      ledger_unreachable       timed
        ├── LedgerNewer            ledger_newer             manual
        ├── LedgerFenced           ledger_fenced            never
        │   └── LeaseLost          lease_lost               never
        ├── LetterMissing          letter_missing           never
        └── LoadMissing            load_missing             never

`timed` is tried again by the engine after a while, `manual` waits for an operator, `never` cannot succeed as asked.
Instances carry names and counts, never row values or secrets, and travel between processes as pickles or plain data.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Retry = Literal["timed", "manual", "never"]


class PenstockError(Exception):
    """A failure with a stable code, a retry class and one sentence that tells the operator what to do."""

    code: ClassVar[str] = "penstock"
    retry: ClassVar[Retry] = "manual"
    default_remedy: ClassVar[str] = "Look at the worker's log for the cause."

    def __init__(self, message: str, *, remedy: str | None = None, **facts: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy or self.default_remedy
        self.facts: dict[str, str | int] = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self).code, self.message, self.remedy, self.facts))

    def __str__(self) -> str:
        return self.message

    def to_data(self) -> dict[str, Any]:
        """Plain data for a pipe, a ledger row or an answer."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy, "facts": self.facts}


def from_data(data: dict[str, Any]) -> PenstockError:
    """The error that `to_data` described; a code this version does not know becomes a plain PenstockError."""
    return _rebuild(str(data["code"]), str(data["message"]), str(data["remedy"]), dict(data.get("facts") or {}))


def remedy_of(code: str) -> str:
    """What an operator does about errors of that code."""
    return _by_code().get(code, PenstockError).default_remedy


def retry_of(code: str) -> Retry:
    """Whether trying again helps against errors of that code."""
    return _by_code().get(code, PenstockError).retry


def _rebuild(code: str, message: str, remedy: str, facts: dict[str, str | int]) -> PenstockError:
    error = PenstockError.__new__(_by_code().get(code, PenstockError))
    Exception.__init__(error, message)
    error.message, error.remedy, error.facts = message, remedy, facts
    return error


def _by_code() -> dict[str, type[PenstockError]]:
    found: dict[str, type[PenstockError]] = {}
    queue: list[type[PenstockError]] = [PenstockError]
    while queue:
        kind = queue.pop()
        found[kind.code] = kind
        queue.extend(kind.__subclasses__())
    return found


class FlowError(PenstockError):
    """Something about a flow as a whole."""

    code = "flow"


class Problem:
    """One thing wrong in a flow file: where, what, and how to mend it."""

    __slots__ = ("message", "path", "remedy")

    def __init__(self, path: str, message: str, remedy: str) -> None:
        self.path, self.message, self.remedy = path, message, remedy

    def to_data(self) -> dict[str, str]:
        """Plain data for an answer."""
        return {"path": self.path, "message": self.message, "remedy": self.remedy}


class FlowInvalid(FlowError):
    """A flow definition was refused; `problems` lists every reason at once."""

    code = "flow_invalid"
    retry = "never"
    default_remedy = "Correct the listed paths and validate the file again."

    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, name: str, problems: list[Problem]) -> FlowInvalid:
        """The refusal of flow `name` for all of `problems`."""
        noun = "problem" if len(problems) == 1 else "problems"
        error = cls(f"{name}: {len(problems)} {noun}", count=len(problems))
        error.problems = tuple(problems)
        return error


class FlowRunning(FlowError):
    """Another process acts for this flow now."""

    code = "flow_running"
    default_remedy = (
        "`penstock flow stop NAME` ends its worker in order; `penstock flow show NAME` says how far it is. "
        "A worker without --no-wait waits for its turn. A second flow beside it needs a name of its own."
    )


class FlowUnknown(FlowError):
    """The ledger knows no flow of that name."""

    code = "flow_unknown"
    retry = "never"
    default_remedy = (
        "`penstock flow list` shows the flows of a state directory; --state chooses another one, a flow file does too."
    )


class FlowStopped(FlowError):
    """The flow was stopped by an operator and is not to run."""

    code = "flow_stopped"
    default_remedy = "`penstock flow start NAME` lets it run again; then start its worker."


class TransitionRefused(FlowError):
    """The flow is in a state from which it cannot be brought to the one that is asked for."""

    code = "transition_refused"
    retry = "never"


class RewindRefused(FlowError):
    """A destination cannot be sent again what it has already had."""

    code = "rewind_refused"
    retry = "never"


class FlowChanged(FlowError):
    """The flow's definition no longer fits the state that is kept for it."""

    code = "flow_changed"
    default_remedy = "Give the changed flow a new name, or a new --state directory."


class ControlError(PenstockError):
    """Something about a request to the control plane, or about the server itself."""

    code = "control"


class FlowExists(ControlError):
    """A flow of that name is already there."""

    code = "flow_exists"
    retry = "never"
    default_remedy = "Choose another name, or update the flow that is there."


class RevisionStale(ControlError):
    """The definition was changed since it was read."""

    code = "revision_stale"
    default_remedy = "Read the flow again, make the change to what it says now, and send it with the new etag."


class KeyReused(ControlError):
    """An idempotency key was sent with another request than the first time."""

    code = "key_reused"
    retry = "never"
    default_remedy = "Use a new key for every new request; repeat one only with the very same request."


class RequestRefused(ControlError):
    """A request is not one that can be answered: too large, not JSON, or with values that are none, which `problems` lists."""

    code = "request_refused"
    retry = "never"
    default_remedy = "Correct the request; /openapi.json says what is wanted."

    problems: tuple[Problem, ...] = ()


class NotFound(ControlError):
    """There is nothing at that address."""

    code = "not_found"
    retry = "never"
    default_remedy = "Check the address; /openapi.json lists what there is."


class TokenMissing(ControlError):
    """The request carries no token that is good here."""

    code = "token_missing"
    default_remedy = "Send `Authorization: Bearer TOKEN` (PENSTOCK_TOKEN); `penstock token create`, on the server, makes one."


class AccessDenied(ControlError):
    """The caller may not do this."""

    code = "access_denied"
    default_remedy = "Ask somebody with a token of the role that is named, or for one."


class TokenUnknown(ControlError):
    """There is no such token."""

    code = "token_unknown"
    retry = "never"
    default_remedy = "`penstock token list` shows the tokens there are."


class TooManyRequests(ControlError):
    """More is asked of the server at once than it allows."""

    code = "too_many_requests"
    retry = "timed"
    default_remedy = "Ask again in a moment, and keep fewer requests open."


class ListenRefused(ControlError):
    """The server will not, or cannot, listen at that address."""

    code = "listen_refused"


class ServerUnreachable(ControlError):
    """The penstock server does not answer, or what answers is none."""

    code = "server_unreachable"
    retry = "timed"
    default_remedy = "Check --server or PENSTOCK_SERVER, and that `penstock up` or `penstock server` runs there."


class ProfileRefused(ControlError):
    """The profile that a command was to use is not there, or cannot be used."""

    code = "profile_refused"
    default_remedy = "Correct config.yaml in PENSTOCK_HOME; --server names a server without it."


class WorkerDied(ControlError):
    """A flow's worker ended without a word, again and again."""

    code = "worker_died"
    retry = "timed"
    default_remedy = "Look at logs/worker.log and at the machine's memory; then `penstock flow start NAME`."


class ConnectorError(PenstockError):
    """Something about a connector's presence."""

    code = "connector"


class ConnectorUnknown(ConnectorError):
    """No connector of that name is installed."""

    code = "connector_unknown"
    retry = "never"
    default_remedy = "`penstock connectors` lists what is installed."


class ExtraMissing(ConnectorError):
    """The connector is known, the library it needs is not installed."""

    code = "extra_missing"


class SourceError(PenstockError):
    """Something about the source server."""

    code = "source"


class SourceUnreachable(SourceError):
    """The server does not answer at that address."""

    code = "source_unreachable"
    retry = "timed"
    default_remedy = "Check host, port and firewall in the source's dsn, and that the server is running."


class SourceStopping(SourceUnreachable):
    """The server is shutting down, and waits for its readers."""

    code = "source_stopping"
    default_remedy = "Nothing to do: the worker lets the server go, and comes back when it is there again."


class SourceRefused(SourceError):
    """The server refused the credentials or the connection itself."""

    code = "source_refused"
    default_remedy = "Check user, password, sslmode and pg_hba.conf for this client."


class TokenRefused(SourceRefused):
    """AWS gave no token to log in with, so that the server was not even asked."""

    code = "token_refused"
    default_remedy = "Check AWS credentials and the `aws_` options of the source."


class SourceDatabaseMissing(SourceError):
    """The server has no such database."""

    code = "source_database_missing"
    default_remedy = "Correct the database name in the source's dsn, or create the database."


class SourceRights(SourceError):
    """The role lacks a right it needs."""

    code = "source_rights"
    default_remedy = "Run `penstock doctor --flow FILE` for the GRANT statements that are missing."


class SourceSettings(SourceError):
    """A server setting forbids logical replication."""

    code = "source_settings"
    default_remedy = "Run `penstock doctor --flow FILE` for the settings to change."


class SourceFailed(SourceError):
    """The server reported an error that has no class of its own here."""

    code = "source_failed"
    retry = "timed"
    default_remedy = "The server's message and log say more; the worker goes on trying."


class ProtocolBroken(SourceError):
    """The server sent something that is not the protocol."""

    code = "protocol_broken"
    retry = "timed"
    default_remedy = "Check that the dsn points at PostgreSQL itself and not at a pooler or proxy."


class SlotInUse(SourceError):
    """Another process reads from the replication slot."""

    code = "slot_in_use"
    retry = "timed"
    default_remedy = "Stop the other reader of the slot, or choose another `slot` for this flow."


class SlotTaken(SourceError):
    """The slot was made for a flow of the same name whose state lies elsewhere: to read it would take its changes away."""

    code = "slot_taken"


class SlotMissing(SourceError):
    """The slot is gone although the flow has already read from it."""

    code = "slot_missing"
    default_remedy = (
        "What changed since then can no longer be had; `penstock slot list --flow FILE` shows the slots there are. "
        "`penstock flow cleanup FILE --remove-state` makes the flow forget its place, and its next start begins anew."
    )


class SlotLost(SourceError):
    """The server has removed WAL that the slot needs."""

    code = "slot_lost"
    default_remedy = (
        "`penstock slot drop --flow FILE`, then `penstock flow cleanup FILE --remove-state`: the next start makes a new slot. "
        "Raise max_slot_wal_keep_size, so that it does not happen again."
    )


class SourceGap(SourceError):
    """The slot stands beyond the journal's end: changes between the two cannot be had any more."""

    code = "source_gap"
    default_remedy = (
        "Another reader has moved the slot, or the journal was restored from an old copy. "
        "`penstock flow cleanup FILE --remove-state` makes the flow begin anew."
    )


class SourceDiverged(SourceError):
    """The server's log is not the one that the journal was copied from: a fail-over or a restore has left something out."""

    code = "source_diverged"
    default_remedy = "Give the flow a new name and a new slot, and load its destinations again."


class PublicationMissing(SourceError):
    """The publication does not exist and may not be created."""

    code = "publication_missing"
    default_remedy = "Create the publication, or let the flow do it with `ensure_publication: true`."


class PublicationNarrowed(SourceError):
    """The publication sends less than it did: what changed meanwhile is not in the stream and cannot be had any more."""

    code = "publication_narrowed"
    default_remedy = "Widen the publication again by hand, start the worker, and load what is missing again."


class TablesMissing(SourceError):
    """No table of the database fits what the flow asks for."""

    code = "tables_missing"
    default_remedy = "Correct the patterns in the source's options, or create the tables first."


class IdentityMissing(SourceError):
    """Publishing the table would make the application's own updates and deletes fail, because nothing identifies its rows."""

    code = "identity_missing"
    default_remedy = "Give the table a primary key or a replica identity."


class SnapshotLost(SourceError):
    """The snapshot that a chunk is to be read in is no more: the session that held it has ended, or the server gave it up."""

    code = "snapshot_lost"
    retry = "timed"
    default_remedy = "Nothing to do: the rest is read in a new snapshot, and what changed in between is read again."


class TableChanged(SourceError):
    """A table is not what it was when its chunks were planned: altered, rewritten, emptied or made anew."""

    code = "table_changed"
    retry = "timed"
    default_remedy = "Nothing to do: the table is planned and read again."


class TableGone(SourceError):
    """A table that is to be read does not exist any more."""

    code = "table_gone"
    retry = "manual"
    default_remedy = "Take the table out of what is asked for, or create it again."


class ReadTooLong(SourceError):
    """The server, or a pooler before it, has ended the read of a chunk because it took too long."""

    code = "read_too_long"
    default_remedy = (
        "Make chunks smaller, or lift the time limit for the role. Poolers that drop the session's settings need it on the role: "
        "ALTER ROLE … SET statement_timeout = 0."
    )


class ReplicaBehind(SourceError):
    """The replica has not yet replayed what a read needs, or replays too busily to say what it shows."""

    code = "replica_behind"
    retry = "timed"
    default_remedy = "Wait for the replica to catch up, or read from the primary: take `snapshot_dsn` out."


class ReadStopped(SourceError):
    """The read of a chunk was given up because its worker asked for it."""

    code = "read_stopped"
    retry = "timed"
    default_remedy = "Nothing to do: the chunk is read again when the flow runs."


class JournalError(PenstockError):
    """Something about the journal."""

    code = "journal"


class JournalCorrupt(JournalError):
    """Bytes that were durable do not carry their checksum any more."""

    code = "journal_corrupt"
    default_remedy = (
        "Check the disk; restore the journal directory from a copy, or begin anew: `penstock flow cleanup FILE --remove-state`."
    )


class JournalUnwritable(JournalError):
    """The journal cannot be written: disk full, read-only or not permitted."""

    code = "journal_unwritable"
    retry = "timed"
    default_remedy = "Free space or mend the rights of the journal's directory; the flow goes on by itself."


class JournalLocked(JournalError):
    """Another capture writes this journal."""

    code = "journal_locked"
    retry = "timed"
    default_remedy = "Stop the other worker of this flow."


class JournalTrimmed(JournalError):
    """A position is asked for that retention has already removed."""

    code = "journal_trimmed"
    default_remedy = (
        "Raise `config.journal.retention`."
        " A destination that needs it is loaded anew under another `name` with `start: backfill`."
    )


class ChunkDamaged(JournalError):
    """A chunk's file is not whole, or its bytes do not carry their checksum."""

    code = "chunk_damaged"
    retry = "timed"
    default_remedy = "Check the disk if this comes again; cancel the load with `penstock backfill cancel` and ask for it again."


class LoadTooLarge(JournalError):
    """The rows of a table without a key wait in the journal until all of them are read, and are more than it may hold."""

    code = "load_too_large"
    default_remedy = (
        "Raise `config.journal.max_bytes` and start the flow again, or give the table a key, or leave it out of the flow."
    )


class JournalElsewhere(JournalError):
    """The ledger knows the flow, and its journal is not on this machine: to begin another would skip what only that one has."""

    code = "journal_elsewhere"
    default_remedy = (
        "Run the worker where the journal is, or stop it there and bring the directory here; `config.journal.url` names a place"
        " that both machines see. If the journal is lost: `penstock flow cleanup FILE --remove-state`, and begin anew."
    )


class JournalFull(JournalError):
    """A destination was given up because what it had not taken filled the journal."""

    code = "journal_full"
    default_remedy = (
        "Once it works, give it another `name` with `start: backfill` in the flow's file and reload: its tables are loaded anew."
        " `config.journal.max_bytes` says how far one may fall behind,"
        " `config.journal.when_full: pause` waits for it instead."
    )


class DecodeFailed(PenstockError):
    """Bytes of the journal could not be read as changes."""

    code = "decode_failed"
    default_remedy = "Report the code and the position; nothing was delivered past it."


class DestinationError(PenstockError):
    """Something about a destination."""

    code = "destination"


class DestinationUnreachable(DestinationError):
    """The destination does not answer."""

    code = "destination_unreachable"
    retry = "timed"
    default_remedy = "Check the destination's address; delivery goes on by itself when it answers."


class DestinationUnwritable(DestinationError):
    """The destination's path cannot be written: missing, full, read-only, locked or not permitted."""

    code = "destination_unwritable"
    retry = "timed"
    default_remedy = "Free space or mend the path's rights; delivery goes on by itself."


class DestinationFailed(DestinationError):
    """The destination reported an error that has no class of its own here."""

    code = "destination_failed"
    retry = "timed"
    default_remedy = "The destination's message says more; delivery is tried again."


class DestinationRefused(DestinationError):
    """The destination refuses whatever is sent: credentials, address or kind of request are not what it takes."""

    code = "destination_refused"
    default_remedy = "Check the destination's address and credentials, then start the flow again; nothing was skipped."


class ChangeRefused(DestinationError):
    """The destination refuses this one change for good; others it may well take."""

    code = "change_refused"
    default_remedy = (
        "Correct what the destination objects to and start the flow again, or exclude the table; nothing was skipped."
    )


class DestinationBehind(DestinationError):
    """The destination holds less than it has confirmed: it was restored, failed over, or lost its last commits."""

    code = "destination_behind"
    default_remedy = (
        "Bring the destination back to where it was, or empty its tables, give it a new name in the flow and load it again."
    )


class TableWithoutKey(DestinationError):
    """A table destination was given a table that has no key to apply changes by."""

    code = "table_without_key"
    default_remedy = (
        "Add a primary key, or exclude the table from this destination, or use a change-log destination such as files."
    )


class SchemaRefused(DestinationError):
    """The destination's table cannot take the source's columns."""

    code = "schema_refused"
    default_remedy = "Change the destination's table by hand to fit, or drop it so that it is created again."


class TableGap(DestinationError):
    """A quarantined table has missed changes that the journal has not, or no longer."""

    code = "table_gap"
    default_remedy = (
        "`penstock flow release … --skip-missed`, then load the table anew: `penstock backfill FLOW --tables SCHEMA.TABLE`;"
        " or exclude it from the destination."
    )


class StagingRefused(DestinationError):
    """A staging table cannot be resolved as things are."""

    code = "staging_refused"
    default_remedy = "Set `batch_resolution: append` or `replace` on the destination, and load the tables again."


class TruncateRefused(DestinationError):
    """A table was truncated at the source and the policy is to halt."""

    code = "truncate_refused"
    default_remedy = "Set `on_truncate: apply` or `ignore` on the destination, and start the flow again."


class ValueRefused(DestinationError):
    """The destination refuses a row: a constraint, a value its column does not take, a trigger."""

    code = "value_refused"
    default_remedy = "Mend the row at the source or the constraint at the destination, then start the flow again."


class ValueUnrepresentable(DestinationError):
    """A value has no home in the destination's type and the policy is to fail."""

    code = "value_unrepresentable"
    default_remedy = "Set `on_unrepresentable: null` on the destination to write NULL instead; each use is counted."


class ChangesRefused(DestinationError):
    """A commit found changes that the destination refuses for good, and has changed nothing.

    `refusals` names them, plain data each: schema, table, position, ordinal, code, reason. The engine runs the epoch again
    without every change of their keys, which become dead letters.
    """

    code = "changes_refused"
    default_remedy = "`penstock dead-letter list --flow FILE` shows what was set aside, and why."

    refusals: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, name: str, refusals: list[dict[str, Any]]) -> ChangesRefused:
        """The refusal of those changes by destination `name`."""
        error = cls(f"{name} refused {len(refusals)} change{'s' if len(refusals) != 1 else ''} for good", count=len(refusals))
        error.refusals = tuple(refusals)
        return error


class DeadLettersFull(DestinationError):
    """More changes would have to be set aside than the flow allows."""

    code = "dead_letters_full"
    default_remedy = (
        "`penstock dead-letter list --flow FILE` says why they were refused: mend that and discard what is not needed, "
        "or raise `config.dead_letter.max_open`; then start the worker again."
    )


class EngineError(PenstockError):
    """Something about Spark, lanes or the worker."""

    code = "engine"


class ReloadUnfinished(EngineError):
    """A changed definition was taken over by half: some destinations have ended, and others could not begin."""

    code = "reload_unfinished"
    retry = "timed"
    default_remedy = "Start the worker again: it runs the new definition as a whole, and nothing is lost."


class WorkerFailed(EngineError):
    """The worker has met something that nobody expected."""

    code = "worker_failed"
    retry = "timed"
    default_remedy = "Look at the worker's log; starting it again loses nothing."


class LoadInterrupted(EngineError):
    """Something that nobody expected has happened while tables were loaded."""

    code = "load_interrupted"
    retry = "timed"
    default_remedy = "The load is tried again by itself, and the stream goes on; if this stays, the worker's log has the cause."


class JavaMissing(EngineError):
    """No usable Java was found for Spark."""

    code = "java_missing"
    default_remedy = "Install Java 17 or newer, or `pip install 'penstock[embedded]'` which brings one."


class SparkFailed(EngineError):
    """Spark did not start or its JVM died."""

    code = "spark_failed"
    retry = "timed"
    default_remedy = "The worker starts Spark again by itself; if it repeats, check memory and the log."


class SparkMasterRefused(EngineError):
    """Spark is to run where lanes cannot call in."""

    code = "spark_master_refused"
    retry = "manual"
    default_remedy = "Name a local master such as local[64,1000], or leave spark_master and the property spark.master out."


class LaneLost(EngineError):
    """A lane's process ended while it worked."""

    code = "lane_lost"
    retry = "timed"
    default_remedy = "Spark starts the lane again by itself; if it repeats, check memory."


class LaneSilent(EngineError):
    """A lane did not answer in time."""

    code = "lane_silent"
    retry = "timed"
    default_remedy = "The lane is cancelled and started again by itself; if it repeats, check the destination."


class LedgerError(PenstockError):
    """Something about the ledger."""

    code = "ledger"


class LedgerUnusable(LedgerError):
    """The ledger cannot be opened or written."""

    code = "ledger_unusable"
    default_remedy = "Check the state directory's rights and free space."


class LedgerUnreachable(LedgerError):
    """The ledger does not answer now, or not over a connection that was lost; what was being written counts wholly or not."""

    code = "ledger_unreachable"
    retry = "timed"
    default_remedy = "Check that the ledger's server runs and can be reached from here; a worker goes on by itself."


class LedgerNewer(LedgerError):
    """A newer version of penstock has changed the ledger's tables."""

    code = "ledger_newer"
    default_remedy = (
        "Upgrade penstock here to the version that the other workers have, or give this one a ledger of its own"
        " (--state, PENSTOCK_DATABASE_URL)."
    )


class LedgerFenced(LedgerError):
    """A newer worker has taken this flow over; this one may write nothing more."""

    code = "ledger_fenced"
    retry = "never"
    default_remedy = "Nothing to do: the newer worker carries on."


class LeaseLost(LedgerFenced):
    """This worker gave no sign of life for so long that another has taken the flow over; it writes nothing more."""

    code = "lease_lost"
    default_remedy = (
        "Nothing to do: the other worker carries on. Look for what held this one up: a pause, a full disk, no memory."
    )


class LoadMissing(LedgerError):
    """There is no load of that number, or it is over."""

    code = "load_missing"
    retry = "never"
    default_remedy = "`penstock backfill list FLOW` shows the loads there are."


class LetterMissing(LedgerError):
    """There is no dead letter of that number, or it is being delivered now."""

    code = "letter_missing"
    retry = "never"
    default_remedy = "`penstock dead-letter list --flow FILE` shows the letters there are."
