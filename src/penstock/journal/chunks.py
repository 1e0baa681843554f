"""Where the journal keeps the chunks of loads: `chunks/{load}/{file}`, complete and durable under that name, or not there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

_HOME = "chunks"


def chunk_path(journal: Path, load: int, file: str) -> Path:
    """The file of a chunk."""
    return journal / _HOME / str(load) / file


def remove_chunk(journal: Path, load: int, file: str) -> None:
    """Gives a chunk's space back; harmless when it is gone."""
    chunk_path(journal, load, file).unlink(missing_ok=True)


def remove_loads(journal: Path, kept: Iterable[int]) -> None:
    """Gives back what loads have left that are over."""
    names = {str(load) for load in kept}
    with contextlib.suppress(FileNotFoundError):
        for path in (journal / _HOME).iterdir():
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)


def chunk_bytes(journal: Path) -> int | None:
    """Bytes of all chunks; None when there is no place for any."""
    if not (journal / _HOME).is_dir():
        return None
    return sum(path.stat().st_size for path in (journal / _HOME).glob("*/*") if path.is_file())


def remove_all_loads(journal: Path) -> None:
    """Gives back what all loads have left, and their place unless others keep something there too. OSError."""
    home = journal / _HOME
    if not home.is_dir():
        return
    for path in home.iterdir():
        if path.name.isdigit():
            shutil.rmtree(path)
    if not any(home.iterdir()):
        home.rmdir()
