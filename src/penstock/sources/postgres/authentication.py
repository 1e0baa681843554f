"""Proving who we are: password, md5 and SCRAM with channel binding, within what require_auth and channel_binding allow."""

from __future__ import annotations

import hashlib
import ssl
import struct
from typing import Any

import scramp

from penstock.errors import ProtocolBroken, SourceRefused
from penstock.sources.postgres.conninfo import Conninfo, Where, refused_option
from penstock.sources.postgres.messages import MessageStream, cstring, encode
from penstock.sources.postgres.tls import TlsChannel

_METHODS = {0: "none", 3: "password", 5: "md5", 7: "gss", 9: "sspi", 10: "scram-sha-256"}
_REQUIRABLE = frozenset({"none", "password", "md5", "gss", "sspi", "scram-sha-256", "oauth"})
_OK, _PASSWORD, _MD5, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 3, 5, 10, 11, 12


def accepted_methods(info: Conninfo) -> frozenset[str]:
    """The methods that require_auth leaves: those it lists, or all but those it lists with an exclamation mark."""
    text = info.value("require_auth")
    if not text:
        return _REQUIRABLE
    names = [name.strip() for name in text.split(",")]
    bare = {name.removeprefix("!") for name in names}
    if not bare <= _REQUIRABLE:
        raise refused_option("require_auth", text, f"the methods are {', '.join(sorted(_REQUIRABLE))}")
    negated = sum(name.startswith("!") for name in names)
    if negated not in (0, len(names)):
        raise refused_option("require_auth", text, "methods with and without an exclamation mark cannot be mixed")
    return _REQUIRABLE - bare if negated else frozenset(bare)


class Authentication:
    """One conversation about identity; finished when `step` says so, and only then may the session be trusted."""

    def __init__(self, stream: MessageStream, info: Conninfo, where: Where, password: str | None) -> None:
        self._stream = stream
        self._where = where
        self._user = info.user
        self._password = password
        self._accepted = accepted_methods(info)
        self._binding = info.choice("channel_binding", "prefer", "disable", "require")
        self._scram: Any = None
        self._used = "none"
        self._bound = False
        self._proved = True

    def step(self, payload: bytes) -> bool:
        """Answer one authentication request; True when the server has accepted us and every promise we asked for is kept."""
        if len(payload) < 4:
            raise self._broken("an authentication request without a code")
        code, body = struct.unpack_from("!i", payload)[0], payload[4:]
        if code == _OK:
            self._check_end()
            return True
        if code in (_SASL_CONTINUE, _SASL_FINAL):
            self._scram_step(code, body)
            return False
        method = _METHODS.get(code, f"method {code}")
        self._check_accepted(method)
        self._used = method
        if code == _PASSWORD:
            self._stream.send(encode(b"p", cstring(self._required_password())))
        elif code == _MD5:
            self._stream.send(encode(b"p", cstring(self._md5(body))))
        elif code == _SASL:
            self._scram_begin(body)
        else:
            raise SourceRefused(
                f"{self._where.address} asks user {self._user!r} for {method} authentication, which is not supported.",
                remedy="Give this user scram-sha-256 or cert in pg_hba.conf for this client's address.",
                method=method,
            )
        return False

    def _check_accepted(self, method: str) -> None:
        if method in _REQUIRABLE and method not in self._accepted:
            raise SourceRefused(
                f"{self._where.address} asks for {method} authentication, which the dsn's require_auth does not allow.",
                remedy="Correct require_auth in the source's dsn, or the method in pg_hba.conf.",
                method=method,
            )
        if self._binding == "require" and method in ("password", "md5"):
            raise self._unbound()

    def _check_end(self) -> None:
        if not self._proved:
            # A server that cannot show it knows the password may be anyone who asked for our proof.
            raise self._broken("an acceptance before the end of the SCRAM exchange")
        if self._used == "none":
            self._check_accepted("none")
        if self._binding == "require" and not self._bound:
            raise self._unbound()

    def _required_password(self) -> str:
        if self._password:
            return self._password
        raise SourceRefused(
            f"{self._where.address} asks user {self._user!r} for a password and none is given.",
            remedy="Put the password into the source's dsn, PGPASSWORD or the password file (mode 0600).",
            user=self._user,
        )

    def _md5(self, salt: bytes) -> str:
        if len(salt) != 4:
            raise self._broken("an md5 request without a salt")
        inner = hashlib.md5(cstring(self._required_password())[:-1] + cstring(self._user)[:-1], usedforsecurity=False).hexdigest()
        return "md5" + hashlib.md5(inner.encode() + salt, usedforsecurity=False).hexdigest()

    def _scram_begin(self, body: bytes) -> None:
        offered = [name.decode("ascii", "replace") for name in body.split(b"\0") if name]
        known = [name for name in offered if name in ("SCRAM-SHA-256", "SCRAM-SHA-256-PLUS")]
        if not known:
            raise SourceRefused(
                f"{self._where.address} offers only {', '.join(offered) or 'no'} authentication, which is not supported.",
                remedy="Give this user scram-sha-256 in pg_hba.conf for this client's address.",
            )
        binding = self._channel_binding()
        if self._binding == "require" and (binding is None or "SCRAM-SHA-256-PLUS" not in known):
            raise self._unbound()
        if binding is None and "SCRAM-SHA-256" not in known:
            raise SourceRefused(f"{self._where.address} insists on channel binding, which this connection cannot give.")
        password = self._required_password()
        # The server takes the user from the startup message and ignores the name sent here.
        self._scram = scramp.ScramClient(known, "penstock", "", channel_binding=binding)
        self._scram.password = prepared(password)
        self._proved = False
        self._bound = self._scram.mechanism_name.endswith("-PLUS")
        first = self._scram.get_client_first().encode()
        self._stream.send(encode(b"p", cstring(self._scram.mechanism_name) + struct.pack("!i", len(first)) + first))

    def _channel_binding(self) -> tuple[str, ssl.SSLObject] | None:
        channel = self._stream.channel
        if self._binding == "disable" or not isinstance(channel, TlsChannel):
            return None
        return ("tls-server-end-point", channel.session)

    def _scram_step(self, code: int, body: bytes) -> None:
        if self._scram is None or self._proved:
            raise self._broken("a SCRAM message outside of an exchange")
        try:
            text = body.decode("ascii")
            if code == _SASL_FINAL:
                self._scram.set_server_final(text)
                self._proved = True
                return
            self._scram.set_server_first(text)
            answer = self._scram.get_client_final().encode()
        except (scramp.ScramException, UnicodeDecodeError, ValueError) as error:
            raise SourceRefused(
                f"{self._where.address} failed the SCRAM exchange for user {self._user!r}: {error}.",
                remedy="Check that the dsn points at the right server, and set the password anew with scram_iterations >= 4096.",
            ) from error
        self._stream.send(encode(b"p", answer))

    def _unbound(self) -> SourceRefused:
        return SourceRefused(
            f"{self._where.address} cannot give the channel binding that the dsn's channel_binding=require asks for.",
            remedy="Use sslmode=require or stronger and scram-sha-256 for this user, or channel_binding=prefer.",
        )

    def _broken(self, what: str) -> ProtocolBroken:
        return ProtocolBroken(f"{self._where.address} sent {what}.")


def prepared(password: str) -> bytes:
    """The password's bytes for SCRAM: normalised where the rules allow it and as they are where not, like PostgreSQL."""
    try:
        return bytes(scramp.core.Password(password))
    except scramp.ScramException:
        return password.encode("utf-8", "surrogateescape")
