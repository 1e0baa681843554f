"""Options of the duckdb destination."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from penstock.core.options import Duration, Size
from penstock.destinations.base import TableOptions


class DuckDBOptions(TableOptions):
    """Options of the duckdb destination; either `path` or `dsn` must be given."""

    path: Annotated[str, Field(min_length=1)] | None = None
    """The database file; made when missing."""
    dsn: Annotated[str, Field(min_length=1)] | None = None
    """The database file as `duckdb:PATH`, or the path itself; another way to say `path`."""
    memory_limit: Size = 512 * 10**6
    """How much memory DuckDB may use before it spills to `<path>.tmp`."""
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    """How many threads DuckDB uses in the worker."""
    release: Duration = 1.0
    """The file is closed after this time without an epoch, so that other processes can read it; 0ms keeps it open for good."""

    @model_validator(mode="before")
    @classmethod
    def _exactly_one(cls, values: Any) -> Any:
        if isinstance(values, dict):
            given = [name for name in ("path", "dsn") if values.get(name)]
            if len(given) != 1:
                raise ValueError("give exactly one of path and dsn")
        return values

    @model_validator(mode="after")
    def _on_disk(self) -> Self:
        if str(self._plain).startswith(":memory:"):
            raise ValueError("a database in memory would be lost with the worker; give the path of a file")
        return self

    @property
    def _plain(self) -> str:
        given = self.path or self.dsn or ""
        return given.removeprefix("duckdb://").removeprefix("duckdb:") if self.dsn else given

    @property
    def file(self) -> Path:
        """The database file, absolute."""
        return Path(self._plain).expanduser().absolute()
