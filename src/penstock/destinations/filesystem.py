"""The one place where errors of a file system become ours."""

from __future__ import annotations

import errno
import os
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
