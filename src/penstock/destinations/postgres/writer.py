"""Executor half of the postgres destination: folded changes, with every value in its place that PostgreSQL holds."""

from __future__ import annotations

from penstock.core.batch import Batch
from penstock.destinations.folding.writer import FoldingWriter, warm
from penstock.destinations.odd import held
from penstock.destinations.postgres.odd import meanings

__all__ = ["PostgresWriter", "warm"]


class PostgresWriter(FoldingWriter):
    """Stages folded changes as Arrow; it never connects to the server."""

    inserts_apart = True
    refuses_rows = True

    def hold(self, batch: Batch) -> Batch:
        """Infinities, the end of the day, NaN and the last years stand in their place."""
        return held(batch, meanings)
