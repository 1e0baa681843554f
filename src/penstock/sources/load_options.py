"""Options by which a source's tables are loaded; every source that can read tables has them."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, field_validator

from penstock.core.options import Options, Size
from penstock.sources.chunks import LoadRules, LoadSettings


class LoadOptions(Options):
    """How the rows are read that were there before the flow."""

    snapshot: Literal["initial", "never", "only"] = "initial"
    """Whether the flow's first start loads the tables before it streams: `initial` does, `never` streams from the first start
    on, `only` loads them and ends."""
    snapshot_consistent: bool = True
    """Whether a first load shows one moment of the source, which keeps a transaction open there while it reads; false reads chunk
    by chunk in short transactions, while the tables stream already."""
    snapshot_workers: Annotated[int, Field(ge=1, le=64)] = Field(default_factory=lambda: min(8, os.cpu_count() or 2))
    """Chunks that are read side by side, each over a connection of its own; the machine's cores when not set, 8 at most."""
    snapshot_rate: Size | None = None
    """The most bytes a second that all readers together take from the server; without a limit when not set."""
    snapshot_chunk: Annotated[Size, Field(ge=1 << 20)] = 64 << 20
    """About how much of a table, as it lies on the server's disk, is one chunk at most; of a table below 3 GiB it is a 48th, but
    not less than 32 MiB."""
    partition_column: Annotated[str, Field(min_length=1)] | None = None
    """Tables that have this column are cut by its hash instead of by ranges."""
    partition_count: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Into how many chunks `partition_column` cuts a table."""

    snapshot_state_backend: Literal["ledger", "file", "none"] = "ledger"
    """Where it is kept which chunks are read: `ledger`, so that any worker goes on at the unfinished ones after a crash; with
    `none` the next worker begins such a load anew. `file` is refused: the ledger is one, without PENSTOCK_DATABASE_URL."""

    @field_validator("snapshot_state_backend")
    @classmethod
    def _is_kept(cls, value: str) -> str:
        if value == "file":
            # A chunk counts as delivered in the very transaction that moves its destination; two stores could disagree.
            raise ValueError("cannot be file: it is kept with the checkpoints, in the ledger, or not at all (ledger, none)")
        return value

    def load_settings(self) -> LoadSettings:
        """The same for the engine."""
        count = self.partition_count if self.partition_column is not None else 1
        rules = LoadRules(self.snapshot_chunk, self.partition_column, count)
        resumes = self.snapshot_state_backend != "none"
        return LoadSettings(self.snapshot, self.snapshot_workers, self.snapshot_rate, rules, self.snapshot_consistent, resumes)
