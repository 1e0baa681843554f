"""Where a ledger is: a SQLite file, or a database on a PostgreSQL server. What is shown of it never holds a password."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.secret import resolve
from penstock.errors import LedgerUnusable

SETTING = "PENSTOCK_DATABASE_URL"
_FORMS = (
    f"{SETTING} is sqlite:////directory/ledger.db or postgresql://user:password@host:5432/database,"
    " with %40 for an @ in the password."
)


@dataclass(frozen=True)
class LedgerAddress:
    """One ledger, for people and for connections."""

    path: Path | None
    """The SQLite file; None when the ledger is on a server."""
    conninfo: str = field(default="", repr=False)
    """What libpq needs to reach the server, secrets included."""
    shown: str = ""

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else self.shown

    @classmethod
    def of(cls, where: LedgerAddress | Path) -> LedgerAddress:
        """The address; a path is that of a SQLite file."""
        return where if isinstance(where, LedgerAddress) else cls(where)

    @classmethod
    def parse(cls, url: str) -> LedgerAddress:
        """The address that a URL names, references to secrets resolved; LedgerUnusable, without what it says, for any other."""
        missing: list[str] = []
        url = str(resolve(url.strip(), SETTING, lambda _, message, __: missing.append(message)))
        if missing:
            raise LedgerUnusable(f"{SETTING}: {missing[0]}", remedy="Set it, or mend the reference.")
        scheme, there, rest = url.partition("://")
        if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
            return cls(Path(rest[1:]).expanduser().absolute())
        if scheme in ("postgresql", "postgres") and there:
            return cls(None, url, _shown(url))
        raise LedgerUnusable(f"{SETTING} names no ledger that is known", remedy=_FORMS)

    @property
    def is_shared(self) -> bool:
        """Whether workers of several machines may use it."""
        return self.path is None

    def exists(self) -> bool:
        """Whether there may be something in it: asking about a flow is no reason to make a file."""
        return self.path is None or self.path.exists()


def _shown(url: str) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        parts = {}
    # An unescaped @ in a password makes libpq take its rest for the host. Whatever is wrong, nothing of the URL is repeated.
    if not parts or "@" in str(parts.get("host", "")):
        raise LedgerUnusable(f"{SETTING} is not a URL that PostgreSQL's library understands", remedy=_FORMS)
    user, port = (f"{parts['user']}@" if parts.get("user") else "", f":{parts['port']}" if parts.get("port") else "")
    # Only these four: any other parameter may be a secret.
    return f"postgresql://{user}{parts.get('host') or ''}{port}/{parts.get('dbname') or ''}"
