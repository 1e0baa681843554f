"""Options of the PostgreSQL source, and the names that follow from the flow's name."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from penstock.core.options import Duration
from penstock.core.position import parse_lsn
from penstock.core.secret import has_reference
from penstock.sources.load_options import LoadOptions
from penstock.sources.postgres.rds import may_know_region

NAME_BYTES = 63
"""What a server keeps of an identifier."""
TRIGGER_BYTES = NAME_BYTES - len("_drop")
"""What is left of it for the name of the event triggers."""


def _at_least_a_second(value: float) -> float:
    if value < 1:
        raise ValueError("must be 1s or more")
    return value


class PostgresOptions(LoadOptions):
    """How to reach the server, and what the flow may make on it."""

    dsn: Annotated[str, Field(min_length=1, repr=False, json_schema_extra={"secret": True, "connection": True})]
    """Connection string as libpq takes it (postgresql://user@host/database or key=value), TLS settings included."""
    slot: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,63}$")] | None = None
    """Replication slot; penstock_ and the flow's name when not set. Small letters, digits and _."""
    publication: Annotated[str, Field(min_length=1, max_length=NAME_BYTES)] | None = None
    """Publication; penstock_ and the flow's name when not set."""
    create_slot: bool = True
    """Whether the flow may create its slot when it starts for the first time."""
    ensure_publication: bool = True
    """Whether the flow may create its publication and add the asked-for tables to it."""
    publication_tables: tuple[str, ...] = ()
    """Patterns of tables to publish (public.orders, sales.*); without these and schemas: all user tables, named one by one."""
    publication_schemas: tuple[str, ...] = ()
    """Patterns of schemas whose tables are published."""
    sync_publication: bool = False
    """Whether an existing publication is brought in line with the patterns at every start, also one that others have made."""
    sync_publication_mode: Literal["add", "sync"] = "add"
    """What bringing in line means: add what is missing, or sync, which also drops tables that the patterns do not name."""
    start_lsn: str | None = None
    """Where a new flow begins (0/16B6C50), for a slot that stands before it; without it, where the slot stands."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """The flow's `config.batch.max_rows`, said on the source; that and a destination's own come first."""
    batch_timeout: Duration | None = None
    """The flow's `config.batch.max_wait`, said on the source; that and a destination's own come first."""
    emit_empty: bool = False
    """Whether a stretch of the log without changes is recorded as an epoch of its own, about every heartbeat, for schedules that
    go by epochs."""
    validate_replication: bool = True
    """Whether a start is refused when a setting, a right or a replica identity stands in the way, before anything is touched."""
    status_interval: Duration = 10.0
    """How often the server is told the confirmed position, at least."""
    heartbeat_interval: Duration = 10.0
    """How often an idle source's position is marked in the journal, so that its slot moves on."""
    streaming: bool = True
    """Whether big transactions arrive while they run and wait in the journal; else the server keeps them until they commit."""
    emit_messages: bool = False
    """Whether logical messages (pg_logical_emit_message) become events, as changes of the table pg_logical.messages. Big
    transactions are then taken when they commit: the server streams messages of rolled-back savepoints without a mark."""
    origin: Literal["any", "none"] = "any"
    """Which changes to take by origin: any, or only those that no replication brought here (PostgreSQL 16 and newer)."""
    receive_timeout: Duration = 60.0
    """How long a server may say nothing, although it was asked, before the connection is taken for lost and made again."""
    resolve_types: bool = True
    """Whether the server is asked what domains stand for and how types are called; if not, all but built-in types are text."""
    failover: bool = True
    """Whether a new slot is kept on standbys too (PostgreSQL 17 and newer)."""
    ensure_state: bool = True
    """Whether the flow records on the server what it has made there, for audit and `penstock flow cleanup`."""
    state_schema: Annotated[str, Field(min_length=1, max_length=NAME_BYTES)] = "penstock"
    """Schema of the state table; made when it is missing."""
    state_table: Annotated[str, Field(min_length=1, max_length=NAME_BYTES)] = "source_state"
    """The state table; it is never published by the flow."""
    capture_ddl: bool = False
    """Whether event triggers on the server tell schema changes of the flow's tables, in order with the data, as changes of the
    table pg_logical.messages. To make them takes a superuser. Big transactions are then taken when they commit."""
    ddl_trigger_schema: Annotated[str, Field(min_length=1, max_length=NAME_BYTES)] = "penstock"
    """Schema of the event triggers' function; made when it is missing."""
    ddl_trigger_name: Annotated[str, Field(min_length=1, max_length=TRIGGER_BYTES)] | None = None
    """The event trigger and its function, and with _drop the second trigger; penstock_, the flow's name and _ddl when not set."""
    ddl_message_prefix: Annotated[str, Field(min_length=1, max_length=NAME_BYTES)] = "penstock.ddl"
    """Prefix of the messages that tell schema changes."""
    toast_fetch: Literal["off", "source", "full", "cache"] = "off"
    """Where the value of a TOASTed column comes from that an update did not touch: off names it as unchanged; source reads it
    by key, full the whole row, both marked as read later, because they may be newer than the change; cache takes it from
    recent changes of the row, where they are there. With anything but off, a replay may give other values in these cells."""
    toast_cache_size: Annotated[int, Field(ge=1)] = 10_000
    """Rows per lane whose big values are remembered for `toast_fetch`, the least recently used forgotten first; together at
    most 64 MiB."""
    snapshot_dsn: Annotated[str | None, Field(min_length=1, repr=False, json_schema_extra={"secret": True})] = None
    """Connection string of a standby that serves the reads of online backfills, to spare the primary. The first load is always
    read from the primary, whose slot ties it to the stream."""
    snapshot_format: Literal["text", "binary"] = "text"
    """How rows that were there before are sent: `text` goes through the same decoder as the stream, to the last step; `binary`
    has its own and takes about half the CPU, for tables whose columns all have an exact form there."""
    aws_rds_iam: bool = False
    """Whether to log in to RDS by IAM: every new connection gets a token that the AWS library signs, and no password."""
    aws_region: Annotated[str, Field(pattern=r"^[a-z]{2,}(-[a-z]+)+-[0-9]+$")] | None = Field(None, validate_default=True)
    """Region of the server; from its RDS host name or AWS's own settings when not set."""
    aws_profile: Annotated[str, Field(min_length=1)] | None = None
    """Profile of AWS's credentials file; AWS's default chain when not set."""
    aws_role_arn: Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$")] | None = None
    """Role to assume before a token is signed."""
    aws_role_session_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_=,.@-]{2,64}$")] | None = None
    """Name of the assumed role's session; penstock when not set."""
    aws_role_external_id: Annotated[str, Field(min_length=2, max_length=1224)] | None = None
    """External id that the role's trust policy asks for."""
    aws_endpoint: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = None
    """URL of the token service (STS) that gives the role; AWS's own for the region when not set."""

    _intervals = field_validator("status_interval", "heartbeat_interval", "receive_timeout")(_at_least_a_second)

    @field_validator("start_lsn")
    @classmethod
    def _is_position(cls, value: str | None) -> str | None:
        if value is not None:
            parse_lsn(value)
        return value

    @field_validator("dsn", "snapshot_dsn")
    @classmethod
    def _parses(cls, value: str | None) -> str | None:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        if value is None or has_reference(value):
            return value
        try:
            conninfo_to_dict(value)
        except ProgrammingError:
            # libpq's own message quotes the part it could not read, which may be the password.
            raise ValueError("is not a connection string: postgresql://user@host:5432/database, or key=value pairs") from None
        return value

    @field_validator("toast_fetch")
    @classmethod
    def _sees_all(cls, value: str, info: ValidationInfo) -> str:
        if value == "cache" and info.data.get("origin") == "none":
            raise ValueError("cannot be cache with origin: none, because changes that are left out would make it stale")
        return value

    @field_validator("aws_rds_iam")
    @classmethod
    def _one_password(cls, value: bool, info: ValidationInfo) -> bool:
        if value and _given(info.data.get("dsn", ""), "password"):
            raise ValueError("cannot be used with a password in the dsn: take one of the two away")
        return value

    @field_validator("aws_region", "aws_profile", "aws_role_arn")
    @classmethod
    def _for_iam(cls, value: str | None, info: ValidationInfo) -> str | None:
        asked = info.data.get("aws_rds_iam", True)
        if value is not None and not asked:
            raise ValueError("has no effect without aws_rds_iam: true")
        hosts = _given(info.data.get("dsn", ""), "host")
        if info.field_name == "aws_region" and value is None and asked and hosts and not may_know_region(hosts):
            raise ValueError("is needed: neither the dsn's host name nor AWS's settings tell the region")
        return value

    @field_validator("aws_role_session_name", "aws_role_external_id", "aws_endpoint")
    @classmethod
    def _for_a_role(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not info.data.get("aws_role_arn", True):
            raise ValueError("has no effect without aws_role_arn")
        return value

    @field_validator("publication", "state_schema", "state_table")
    @classmethod
    def _fits(cls, value: str | None) -> str | None:
        if value is not None and len(value.encode()) > NAME_BYTES:
            raise ValueError(f"is longer than the {NAME_BYTES} bytes that a name may have")
        return value

    @field_validator("ddl_trigger_schema", "ddl_trigger_name")
    @classmethod
    def _fits_a_trigger(cls, value: str | None, info: ValidationInfo) -> str | None:
        most = TRIGGER_BYTES if info.field_name == "ddl_trigger_name" else NAME_BYTES
        if value is not None and len(value.encode()) > most:
            raise ValueError(f"is longer than the {most} bytes that it may have")
        return value

    @field_validator("publication_tables", "publication_schemas")
    @classmethod
    def _not_blank(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not pattern.strip() for pattern in value):
            raise ValueError("contains an empty pattern")
        return value


def _given(dsn: str, name: str) -> str:
    """What the dsn itself says of an option, as far as it can be read here."""
    from psycopg.conninfo import conninfo_to_dict

    return "" if has_reference(dsn) or not dsn else str(conninfo_to_dict(dsn).get(name) or "")


def default_name(flow: str) -> str:
    """The name of a flow's slot and publication; two flows never share one, whatever characters their names have."""
    return _name(flow, NAME_BYTES)


def trigger_name(flow: str) -> str:
    """The name of a flow's event trigger for schema changes; two flows never share one."""
    return f"{_name(flow, TRIGGER_BYTES - len('_ddl'))}_ddl"


def _name(flow: str, most: int) -> str:
    if re.fullmatch(r"[a-z0-9_]+", flow) and len(flow) <= most - len("penstock_"):
        return f"penstock_{flow}"
    # Slots know only small letters, digits and _: shop-1 and shop_1 must not meet in one slot.
    plain = re.sub(r"[^a-z0-9_]", "_", flow.lower())[: most - len("penstock__1234567")]
    return f"penstock_{plain}_{hashlib.sha256(flow.encode()).hexdigest()[:7]}"
