"""The password file: which of its lines, if any, holds the password for a host, as libpq reads it."""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.sources.postgres.conninfo import SOCKET_DIRECTORIES, Conninfo, Host

_FIELD = re.compile(r"((?:[^:\\]|\\.)*)(:|$)")
_log = logging.getLogger(__name__)


def password_for(info: Conninfo, host: Host) -> str | None:
    """The password for `host`: a minted one, else the dsn's or the environment's, else the password file's, else none."""
    if info.mint is not None:
        return info.mint(info.where(host))
    return info.value("password") or _from_file(info, host)


def _from_file(info: Conninfo, host: Host) -> str | None:
    path = Path(info.value("passfile") or Path.home() / ".pgpass")
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            return None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            _log.warning("The password file %s is open to group or world and is not used; chmod 0600 mends it.", path)
            return None
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    name = host.name or host.address
    wanted = ("localhost" if name in SOCKET_DIRECTORIES else name, str(host.port), info.database, info.user)
    for line in lines:
        fields = list(_fields(line))
        if len(fields) == 5 and all(_fits(field, text) for field, text in zip(fields[:4], wanted, strict=True)):
            return _plain(fields[4])
    return None


def _fields(line: str) -> Iterator[str]:
    if line.startswith("#"):
        return
    position = 0
    for _ in range(4):
        found = _FIELD.match(line, position)
        if found is None or not found[2]:
            return
        yield found[1]
        position = found.end()
    # The password goes on to the end of the line or to the next colon that is not escaped.
    found = _FIELD.match(line, position)
    yield found[1] if found else line[position:]


def _fits(field: str, text: str) -> bool:
    return field == "*" or _plain(field) == text


def _plain(field: str) -> str:
    return re.sub(r"\\(.)", r"\1", field)
