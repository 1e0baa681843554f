"""Tables as a source describes them: names, columns, native types, key, version."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column: its name, the Arrow type its values have in a batch, and the source's own name of its type."""

    name: str
    type: pa.DataType
    native: str
    base: str = ""
    """The type below a type that only names another (a domain), in the source's own words; empty for all others."""

    @property
    def meaning(self) -> str:
        """The source's own name of the type that decides what the values mean."""
        return self.base or self.native

    @property
    def metadata(self) -> dict[str, str]:
        """The source's names, as the metadata of an Arrow field."""
        return {"native": self.native, "base": self.base} if self.base else {"native": self.native}

    @classmethod
    def of_field(cls, field: pa.Field, name: str | None = None) -> Column:
        """The column that an Arrow field with such metadata describes."""
        about = field.metadata or {}
        return cls(name or field.name, field.type, about.get(b"native", b"").decode(), about.get(b"base", b"").decode())


@dataclass(frozen=True)
class TableSchema:
    """One version of one table; `key` names the columns that identify a row, empty when nothing does."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    version: int
    identity: str = field(default="")
    """The source's own identity of the table (PostgreSQL: its oid): a re-created table has another one."""

    def __hash__(self) -> int:
        # A schema is looked up several times in every epoch; hashing its columns took half a millisecond of each.
        return hash((self.schema, self.name, self.version, self.identity))

    @property
    def qualified(self) -> str:
        """`schema.table`, for people, counters and patterns; not quoted."""
        return f"{self.schema}.{self.name}"

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema, native types in the fields' metadata."""
        return pa.schema([pa.field(c.name, c.type, metadata=c.metadata) for c in self.columns])

    @cached_property
    def key_indexes(self) -> tuple[int, ...]:
        """Where the key columns stand among the columns, in the key's order."""
        names = [c.name for c in self.columns]
        return tuple(names.index(k) for k in self.key)

    def to_data(self) -> dict[str, Any]:
        """Plain data for the journal, a lane or the ledger."""
        return {
            "schema": self.schema,
            "name": self.name,
            "arrow": base64.b64encode(self.arrow.serialize().to_pybytes()).decode(),
            "key": list(self.key),
            "version": self.version,
            "identity": self.identity,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TableSchema:
        """The schema that `to_data` described."""
        arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data["arrow"])))
        columns = tuple(Column.of_field(f) for f in arrow)
        return cls(data["schema"], data["name"], columns, tuple(data["key"]), int(data["version"]), data["identity"])
