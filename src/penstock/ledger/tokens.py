"""Tokens in the ledger: who may ask for what. Only a digest is kept; a token is shown once, when it is made."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass

import sqlalchemy as sa

from penstock.errors import TokenUnknown
from penstock.ledger.database import LedgerDatabase

PREFIX = "pst"
_COLUMNS = "id, name, role, created_at, created_by, revoked_at"


@dataclass(frozen=True)
class Token:
    """A token without its secret."""

    id: str
    name: str
    role: str
    created_at: int
    created_by: str
    revoked_at: int | None


class Tokens:
    """The tokens of a ledger."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def create(self, name: str, role: str, who: str) -> tuple[Token, str]:
        """A new token, and its text, which nobody can be told again."""
        # 256 bits of chance need no slow hash: there is nothing to guess.
        number, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        token = Token(number, name, role, _now(), who, None)
        with self._database.transaction() as c:
            c.execute(
                sa.text(
                    "insert into tokens (id, name, role, digest, created_at, created_by) values (:id, :name, :role, :d, :t, :w)"
                ),
                {"id": number, "name": name, "role": role, "d": _digest(secret), "t": token.created_at, "w": who},
            )
        return token, f"{PREFIX}_{number}_{secret}"

    def match(self, text: str) -> Token | None:
        """The token that the text is; None when it is none, or was revoked."""
        prefix, _, rest = text.partition("_")
        number, _, secret = rest.partition("_")
        if prefix != PREFIX or not secret:
            return None
        with self._database.reading() as c:
            row = c.execute(sa.text(f"select {_COLUMNS}, digest from tokens where id = :i"), {"i": number}).one_or_none()
        if row is None or row.revoked_at is not None or not hmac.compare_digest(row.digest, _digest(secret)):
            return None
        return Token(**{k: v for k, v in row._mapping.items() if k != "digest"})

    def all(self) -> list[Token]:
        """Every token, the newest last."""
        with self._database.reading() as c:
            rows = c.execute(sa.text(f"select {_COLUMNS} from tokens order by created_at, id")).all()
            return [Token(**row._mapping) for row in rows]

    def are_there(self) -> bool:
        """Whether a token was ever made: from then on everybody needs one."""
        # Revoked ones count: whoever replaces the last token would else let everybody in between the two commands.
        with self._database.reading() as c:
            return c.scalar(sa.text("select 1 from tokens limit 1")) is not None

    def revoke(self, number: str) -> None:
        """Makes the token worthless from now on. TokenUnknown."""
        with self._database.transaction() as c:
            done = c.execute(
                sa.text("update tokens set revoked_at = coalesce(revoked_at, :t) where id = :i"), {"t": _now(), "i": number}
            )
            if done.rowcount != 1:
                raise TokenUnknown(f"there is no token {number}")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _now() -> int:
    return time.time_ns() // 1000
