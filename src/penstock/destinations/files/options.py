"""Options of the files destination."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from penstock.core.connectors import cards
from penstock.core.options import Size
from penstock.destinations.base import DestinationOptions
from penstock.formats.parquet import Compression


class FilesOptions(DestinationOptions):
    """Options of the files destination."""

    path: Annotated[str, Field(min_length=1)]
    """Directory that the change log lies under; made when missing."""
    format: str = "parquet"
    """Format of the files; `penstock connectors` lists those that can be written to files."""
    compression: Compression = "zstd"
    """How Parquet pages are compressed."""
    max_file_bytes: Annotated[Size, Field(ge=1)] = 256 << 20
    """A file that has reached this size is followed by another one."""

    @field_validator("format")
    @classmethod
    def _writes_files(cls, name: str) -> str:
        known = [card.name for card in cards("format").values() if card.capabilities.get("file")]
        if name not in known:
            raise ValueError(f"there is no file format {name!r}; installed: {', '.join(known)}")
        return name

    @property
    def root(self) -> Path:
        """The directory, absolute."""
        return Path(self.path).expanduser().absolute()
