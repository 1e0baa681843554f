"""The cache: what is costly to make and can be made again, one directory per noun, safe between processes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

KERNELS_KEPT = 8
"""How many states of the sources keep their compiled kernels."""


def home_directory() -> Path:
    """Where penstock keeps what belongs to this user: `PENSTOCK_HOME`, else `~/.penstock`."""
    return Path(os.environ.get("PENSTOCK_HOME") or Path.home() / ".penstock")


def cache_directory(name: str) -> Path:
    """The existing, private directory `name` of the cache: under `PENSTOCK_CACHE`, else under `cache` of the home."""
    root = Path(os.environ.get("PENSTOCK_CACHE") or home_directory() / "cache")
    try:
        return _make(root / name, 0o700)
    except OSError:
        # A service account often has a home that does not exist or is read-only.
        return _make(_temporary_root() / name, 0o700)


def kernel_directory() -> Path:
    """Where compiled kernels are kept, apart for every state of the sources.

    Numba notices when a kernel's own file has changed, and not when that of another kernel which it calls has.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        if b"numba" in text:
            digest.update(text)
    root, name = cache_directory("numba"), digest.hexdigest()[:16]
    if not (root / name).exists():
        _prune(root, keep=KERNELS_KEPT)
    found = cache_directory(f"numba/{name}")
    with contextlib.suppress(OSError):
        os.utime(found)
    return found


def _prune(root: Path, keep: int) -> None:
    """Leaves the directories that were used last; one that is still used by another version is made again by it."""
    with contextlib.suppress(OSError):
        for old in sorted((p for p in root.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)


def shared_directory(name: str) -> Path:
    """The existing directory `name` that every user may read; for root only, who starts servers as another user."""
    try:
        return _make(Path("/var/cache/penstock") / name, 0o755)
    except OSError:
        return _make(_temporary_root(0o755) / name, 0o755)


def built(place: Path, build: Callable[[Path], None]) -> Path:
    """`place`, after `build` has filled it once; whoever comes second waits, and a half-built one is never seen."""
    if place.exists():
        return place
    with locked(place.with_name(f".{place.name}.lock")):
        if place.exists():
            return place
        scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            build(scratch)
            scratch.chmod(stat.S_IMODE(place.parent.stat().st_mode))
            scratch.rename(place)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return place


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` against every other process; the kernel gives it back when the holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(path: Path, mode: int) -> Path:
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    # mkdir's mode is cut by the umask, and it does not apply to parents at all.
    for place in missing:
        with contextlib.suppress(PermissionError):
            place.chmod(mode)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written")
    return path


def _temporary_root(mode: int = 0o700) -> Path:
    root = Path(tempfile.gettempdir()) / f"penstock-cache-{os.getuid()}"
    _make(root, mode)
    # The name can be guessed: a directory that somebody else made there would let them choose what we run.
    facts = root.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022 or not stat.S_ISDIR(facts.st_mode):
        raise PermissionError(f"{root} belongs to somebody else")
    return root
