"""Names on disk: where a table's files lie and what they are called, safe for any source name and reversible."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from penstock.core.epoch import Epoch

STAGING = "_staging"
MANIFESTS = "_manifests"
# 255 bytes is the limit of common file systems; the rest is room for a temporary file's additions.
_LONGEST = 200
# Readers take a leading dot or underscore as hidden, `=` as a partition, and these marks as patterns.
_HOSTILE = re.compile(r"[\x00-\x1f\x7f/\\%=*?\[\]{}:\"'<>|;&$`!#~\s]")


def safe_name(name: str) -> str:
    """A directory name for a schema or table: what is hostile in a path is percent-encoded."""
    safe = _HOSTILE.sub(lambda match: _encode(match[0]), name)
    if safe[:1] in (".", "_"):
        safe = _encode(safe[0]) + safe[1:]
    if safe[-1:] == ".":
        safe = safe[:-1] + _encode(".")
    if len(safe.encode()) > _LONGEST:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        safe = safe.encode()[: _LONGEST - 20].decode(errors="ignore").rstrip("%0123456789ABCDEF") + f"%~{digest}"
    return safe or "%"


def plain_name(safe: str) -> str | None:
    """The name that `safe_name` was given; None for one too long to be kept (the directory's `_table.json` has it)."""
    return None if "%~" in safe else unquote("" if safe == "%" else safe)


@lru_cache(maxsize=4096)
def table_directory(root: Path, schema: str, table: str) -> Path:
    """Where a table's files lie."""
    return root / safe_name(schema) / safe_name(table)


def schema_path(directory: Path, version: int) -> Path:
    """Where a table's directory keeps the columns of a schema version."""
    return directory / "_schemas" / f"{version:06d}.json"


def file_name(epoch: Epoch, bucket: int, version: int, number: int, suffix: str) -> str:
    """The name of a published file: the same for every attempt at the same epoch."""
    return f"{name_prefix(epoch)}{bucket:04d}-{version:06d}-{number:04d}.{suffix}"


def name_prefix(epoch: Epoch) -> str:
    """How the names of an epoch's published files begin; in log order, as several epochs may end at one position."""
    return f"{epoch.upto:016X}-{epoch.number:012d}-"


def is_of(epoch: Epoch, name: str, *, alone: bool) -> bool:
    """Whether a published file is the epoch's; `alone` says that no epoch before it has ended at its position."""
    if name.startswith(name_prefix(epoch)):
        return True
    # Earlier versions named files by the position only.
    return alone and re.fullmatch(rf"{epoch.upto:016X}-\d{{4}}-\d{{6}}-\d{{4}}\.\w+", name) is not None


def staging_directory(root: Path, flow: str, destination: str) -> Path:
    """Where attempts stage their files: on the same file system, out of readers' sight."""
    return root / STAGING / f"{flow}.{destination}"


def staged_prefix(number: int) -> str:
    """How the names of an epoch's staged files begin; in the order of epochs."""
    return f".e{number:015d}."


def _encode(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
