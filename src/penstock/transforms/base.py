"""The transform contract: pure functions on schemas and batches, run in lanes between decoding and writing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from penstock.core.batch import Batch
from penstock.core.schema import TableSchema


class Transform(ABC):
    """Made in a lane from plain options; the same input gives the same output, on every replay."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def schema_out(self, schema: TableSchema) -> TableSchema | None:
        """The table as it leaves this transform; None when the table does not pass."""

    @abstractmethod
    def apply(self, batch: Batch) -> Batch:
        """The batch as it leaves this transform; rows may be fewer, order stays."""
