"""Durable steps on a file system."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Makes a file's bytes durable."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Makes a directory's names durable."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_directory(path: Path) -> None:
    """Makes a directory and its parents, durably; one that exists is left as it is."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for made in reversed(missing):
        made.mkdir(exist_ok=True)
        sync_directory(made.parent)


def write_durably(path: Path, text: str) -> None:
    """Writes a whole file: afterwards, and after any crash, the path has either all of the text or what it had before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
