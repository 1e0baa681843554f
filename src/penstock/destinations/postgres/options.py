"""Options of the postgres destination."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from penstock.core.secret import has_reference
from penstock.destinations.base import TableOptions


class PostgresOptions(TableOptions):
    """Where the tables are, and when a commit counts."""

    dsn: Annotated[str, Field(min_length=1, repr=False, json_schema_extra={"secret": True, "connection": True})]
    """Connection string as libpq takes it (postgresql://user@host/database or key=value), TLS settings included."""
    synchronous_commit: Literal["on", "off", "local", "remote_write", "remote_apply"] = "on"
    """What a commit waits for, as the server's setting of that name. With off, a crash of the target can take back epochs that
    the source was already told of; the next commit then stops with destination_behind."""

    @field_validator("synchronous_commit", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        # YAML reads a bare on or off as a truth value.
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

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
