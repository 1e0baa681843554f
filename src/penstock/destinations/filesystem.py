"""The one place where errors of a file system become ours."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import DestinationFailed, DestinationUnwritable

_REMEDIES = {
    errno.ENOSPC: "Free space on the file system; delivery goes on by itself.",
    errno.EDQUOT: "Raise the quota or free space; delivery goes on by itself.",
    errno.EROFS: "Mount the file system writable, or choose another path.",
    errno.EACCES: "Give the worker's user the right to write there, or choose another path.",
    errno.EPERM: "Give the worker's user the right to write there, or choose another path.",
    errno.ENOTDIR: "A file stands where a directory is needed: move it, or choose another path.",
    errno.EEXIST: "A file stands where a directory is needed: move it, or choose another path.",
    errno.EMFILE: "Raise the worker's limit of open files (ulimit -n).",
}


def probe(directory: Path) -> None:
    """Tries whether files can be made in a directory, or in the nearest one above it that exists; leaves nothing behind."""
    nearest = directory
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    with mended(directory):
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        try:
            # Of its own for each thread: one process may run several flows.
            made = nearest / f".penstock-check.{os.getpid()}.{threading.get_ident()}"
            made.touch()
            made.unlink()
        except FileNotFoundError as error:
            # What some virtual file systems say instead of "not permitted".
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error


@contextmanager
def mended(root: Path) -> Iterator[None]:
    """Turns what the file system raises into errors of ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise DestinationFailed(
            f"{root}: {Path(str(error.filename)).name} is gone",
            remedy="Somebody removed files below the path; the epoch is run again.",
        ) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DestinationUnwritable(f"{root}: {reason}", remedy=_REMEDIES.get(error.errno or 0)) from error
