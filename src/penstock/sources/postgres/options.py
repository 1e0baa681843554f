"""Options of the PostgreSQL source, and the names that follow from the flow's name."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from penstock.core.options import Duration, Options
from penstock.core.secret import has_reference

NAME_BYTES = 63
"""What a server keeps of an identifier."""


def _at_least_a_second(value: float) -> float:
    if value < 1:
        raise ValueError("must be 1s or more")
    return value


class PostgresOptions(Options):
    """How to reach the server, and what the flow may make on it."""

    dsn: Annotated[str, Field(min_length=1, repr=False, json_schema_extra={"secret": True})]
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
    failover: bool = True
    """Whether a new slot is kept on standbys too (PostgreSQL 17 and newer)."""
    ensure_state: bool = True
    """Whether the flow records on the server what it has made there, for audit and `penstock flow cleanup`."""
    state_schema: Annotated[str, Field(min_length=1, max_length=NAME_BYTES)] = "penstock"
    """Schema of the state table; made when it is missing."""
    state_table: Annotated[str, Field(min_length=1, max_length=NAME_BYTES)] = "source_state"
    """The state table; it is never published by the flow."""
    toast_fetch: Literal["off", "source", "full", "cache"] = "off"
    """Where the value of a TOASTed column comes from that an update did not touch: off names it as unchanged; source reads it
    by key, full the whole row, both marked as read later, because they may be newer than the change; cache takes it from
    recent changes of the row, where they are there. With anything but off, a replay may give other values in these cells."""
    toast_cache_size: Annotated[int, Field(ge=1)] = 10_000
    """Rows per lane whose big values are remembered for `toast_fetch`, the least recently used forgotten first; together at
    most 64 MiB."""

    _intervals = field_validator("status_interval", "heartbeat_interval", "receive_timeout")(_at_least_a_second)

    @field_validator("dsn")
    @classmethod
    def _parses(cls, value: str) -> str:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        if has_reference(value):
            return value
        try:
            conninfo_to_dict(value)
        except ProgrammingError:
            # libpq's own message quotes the part it could not read, which may be the password.
            raise ValueError("is not a connection string: postgresql://user@host:5432/database, or key=value pairs") from None
        return value

    @field_validator("publication", "state_schema", "state_table")
    @classmethod
    def _fits(cls, value: str | None) -> str | None:
        if value is not None and len(value.encode()) > NAME_BYTES:
            raise ValueError(f"is longer than the {NAME_BYTES} bytes that a name may have")
        return value

    @field_validator("publication_tables", "publication_schemas")
    @classmethod
    def _not_blank(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not pattern.strip() for pattern in value):
            raise ValueError("contains an empty pattern")
        return value


def default_name(flow: str) -> str:
    """The name of a flow's slot and publication; two flows never share one, whatever characters their names have."""
    if re.fullmatch(r"[a-z0-9_]{1,54}", flow):
        return f"penstock_{flow}"
    # Slots know only small letters, digits and _: shop-1 and shop_1 must not meet in one slot.
    plain = re.sub(r"[^a-z0-9_]", "_", flow.lower())[:46]
    return f"penstock_{plain}_{hashlib.sha256(flow.encode()).hexdigest()[:7]}"
