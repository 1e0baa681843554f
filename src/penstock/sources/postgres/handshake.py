"""From a dsn to a session: hosts in order, sockets, TLS by sslmode, startup message, authentication."""

from __future__ import annotations

import pwd
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ProtocolBroken, SourceRefused, SourceUnreachable
from penstock.sources.postgres import tls
from penstock.sources.postgres.authentication import Authentication, accepted_methods
from penstock.sources.postgres.conninfo import Conninfo, Host, Where, refused_option
from penstock.sources.postgres.messages import (
    SSL_REQUEST,
    STARTUP_LIMIT,
    STARTUP_MESSAGES,
    MessageStream,
    broken_socket,
    encode_startup,
)
from penstock.sources.postgres.passfile import password_for
from penstock.sources.postgres.server_errors import raise_server_error

RECEIVE_BUFFER = 16 << 20
Address = str | tuple[Any, ...]

_SESSION_KINDS = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")


@dataclass
class Session:
    """A server that has accepted us and waits for a command."""

    stream: MessageStream
    where: Where
    parameters: dict[str, str]


def open_session(info: Conninfo, parameters: Mapping[str, str]) -> Session:
    """A session with the first host that answers and fits target_session_attrs; a refusal by one host is final, as in libpq."""
    wanted = info.choice("target_session_attrs", *_SESSION_KINDS)
    if info.value("gssencmode") == "require":
        raise refused_option("gssencmode", "require", "GSS encryption is not supported")
    tls.check_options(info)
    accepted_methods(info)
    rounds = ("standby", "any") if wanted == "prefer-standby" else (wanted,)
    failures: dict[str, None] = {}
    for kind in rounds:
        for host in info.in_order():
            try:
                session = _open_host(info, host, parameters, kind)
            except SourceUnreachable as error:
                failures[error.message.rstrip(".")] = None
                last = error
                continue
            return session
    if len(failures) == 1:
        raise last
    raise SourceUnreachable(f"None of the hosts can be used: {'; '.join(failures)}.", hosts=len(info.hosts)) from last


def _open_host(info: Conninfo, host: Host, parameters: Mapping[str, str], kind: str) -> Session:
    where = info.where(host)
    last: SourceUnreachable | None = None
    # Before anybody waits: to mint one may take longer than a server's authentication_timeout allows.
    password = password_for(info, host)
    for family, address in _addresses(host, where):
        try:
            session = _open_address(info, host, family, address, parameters, password)
        except SourceUnreachable as error:
            last = error
            continue
        if fits(session.parameters, kind):
            return session
        session.stream.channel.close()
        last = SourceUnreachable(
            f"{where.address} is not {kind}, which target_session_attrs asks for.",
            remedy="Correct the hosts or target_session_attrs in the dsn.",
        )
    raise last or SourceUnreachable(f"{where.address} has no address.")


def fits(parameters: Mapping[str, str], kind: str) -> bool:
    """The server is of the kind that target_session_attrs asks for; from PostgreSQL 14 on it says so by itself."""
    standby = parameters.get("in_hot_standby") == "on"
    read_only = standby or parameters.get("default_transaction_read_only") == "on"
    return {"any": True, "read-write": not read_only, "read-only": read_only, "primary": not standby, "standby": standby}[kind]


def _addresses(host: Host, where: Where) -> Iterator[tuple[int, Address]]:
    if host.is_local:
        path = f"{host.target}/.s.PGSQL.{host.port}"
        yield socket.AF_UNIX, "\0" + path[1:] if path.startswith("@") else path
        return
    try:
        flags = socket.AI_NUMERICHOST if host.address else 0
        found = socket.getaddrinfo(host.target, host.port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a valid name"
        raise SourceUnreachable(f"The host name {host.target!r} cannot be resolved: {reason}.") from error
    for family, _, _, _, address in found:
        yield family, address


def _open_address(
    info: Conninfo, host: Host, family: int, address: Address, parameters: Mapping[str, str], password: str | None
) -> Session:
    """One address under the encryption that sslmode allows, `allow` and `prefer` with a second choice when the first fails."""
    mode = info.choice("sslmode", *tls.MODES)
    if family == socket.AF_UNIX or mode == "disable":
        attempts: tuple[str, ...] = ("plain",)
    else:
        attempts = {"allow": ("plain", "tls"), "prefer": ("either", "plain")}.get(mode, ("tls",))
    failures: dict[str, SourceRefused | ProtocolBroken] = {}
    for attempt in attempts:
        stream = _connect(info, host, family, address)
        encrypted = attempt != "plain"
        try:
            if encrypted:
                encrypted = _encrypt(stream, info, host, needed=attempt == "tls")
            return _start(stream, info, parameters, password)
        except (SourceRefused, ProtocolBroken) as error:
            stream.channel.close()
            failures[attempt] = error
            if attempt == "either" and not encrypted:
                break
        except BaseException:
            stream.channel.close()
            raise
    # What the encrypted attempt met is the better story: the plain one is usually refused for being plain.
    raise failures.get("tls") or failures.get("either") or failures["plain"]


def _connect(info: Conninfo, host: Host, family: int, address: Address) -> MessageStream:
    where = info.where(host)
    sock = socket.socket(family, socket.SOCK_STREAM)
    stream = MessageStream(sock, where)
    stream.deadline = time.monotonic() + info.timeout if info.timeout else None
    try:
        _tune(sock, info)
        stream.arm()
        sock.connect(address)
        if family == socket.AF_UNIX:
            _check_peer(sock, info, where)
    except OSError as error:
        sock.close()
        if isinstance(error, TimeoutError):
            raise broken_socket(error, where) from error
        reason = error.strerror or type(error).__name__
        raise SourceUnreachable(f"{where.address} cannot be reached: {reason.lower()}.") from error
    except BaseException:
        sock.close()
        raise
    return stream


KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
"""What holds where the dsn says nothing: a peer that vanished is noticed in half a minute, not after the kernel's two hours."""


def _tune(sock: socket.socket, info: Conninfo) -> None:
    if sock.family == socket.AF_UNIX:
        return
    # Before the connection is made, because the window's scale is agreed on in its first packet.
    if _may_widen():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tuned = {"tcp_user_timeout": "TCP_USER_TIMEOUT"}
    if info.value("keepalives") != "0":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        tuned |= {"keepalives_idle": "TCP_KEEPIDLE", "keepalives_interval": "TCP_KEEPINTVL", "keepalives_count": "TCP_KEEPCNT"}
    for option, constant in tuned.items():
        value = info.number(option) or KEEPALIVES[option]
        if value and value > 0 and hasattr(socket, constant):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, constant), value)


def _may_widen() -> bool:
    """A buffer of a fixed size would not be smaller than what the kernel's own tuning reaches, which it switches off."""
    try:
        limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
        tuned = int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return False
    return min(limit, RECEIVE_BUFFER) >= tuned


def _check_peer(sock: socket.socket, info: Conninfo, where: Where) -> None:
    wanted = info.value("requirepeer")
    if not wanted:
        return
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    try:
        found = pwd.getpwuid(uid).pw_name
    except KeyError:
        found = str(uid)
    if found != wanted:
        raise SourceRefused(f"The server behind {where.address} runs as {found!r}, and the dsn's requirepeer wants {wanted!r}.")


def _encrypt(stream: MessageStream, info: Conninfo, host: Host, needed: bool) -> bool:
    """Put TLS under the stream; False and still plain where the server has none and the mode does not insist."""
    sock = stream.channel
    assert isinstance(sock, socket.socket)
    if info.value("sslnegotiation") != "direct":
        stream.send(SSL_REQUEST)
        answer = stream.read_byte()
        if answer == b"N":
            if needed:
                raise SourceRefused(
                    f"{stream.where.address} does not offer TLS, which the dsn's sslmode asks for.",
                    remedy="Turn ssl on in the server, or choose sslmode=prefer for a network that is trusted.",
                )
            return False
        if answer == b"E":
            # Its text is not to be shown: nothing has proved yet who sent it (CVE-2024-10977).
            raise SourceUnreachable(f"{stream.where.address} failed before TLS could be agreed on.")
        if answer != b"S":
            raise ProtocolBroken(f"{stream.where.address} answered with something that is not the PostgreSQL protocol.")
    context = tls.make_context(info)
    stream.arm()
    stream.channel = tls.wrap(sock, context, info, host, stream.where)
    return True


def _start(stream: MessageStream, info: Conninfo, parameters: Mapping[str, str], password: str | None) -> Session:
    where = stream.where
    stream.send(encode_startup(parameters))
    authentication = Authentication(stream, info, where, password)
    accepted = False
    reported: dict[str, str] = {}
    for _ in range(STARTUP_MESSAGES):
        kind, payload = stream.read(STARTUP_LIMIT)
        if kind == b"E":
            raise_server_error(payload, where)
        if kind == b"R" and not accepted:
            accepted = authentication.step(payload)
        elif kind == b"S" and accepted:
            name, _, value = payload.rstrip(b"\0").partition(b"\0")
            reported[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        elif kind == b"Z" and accepted:
            stream.deadline = None
            return Session(stream, where, reported)
        elif kind != b"N" and not (kind == b"K" and accepted):
            break
    raise ProtocolBroken(f"{where.address} answered with something that is not the PostgreSQL protocol.")


def startup_parameters(info: Conninfo, application_name: str, options: str, *, replication: bool = True) -> dict[str, str]:
    """What the startup message says; the dsn's own options come first, so that ours have the last word."""
    own = info.value("options")
    if (len(own) - len(own.rstrip("\\"))) % 2:
        own = own[:-1]  # a lone backslash at the end would swallow the space that parts its options from ours
    return {
        "user": info.user,
        "database": info.database,
        **({"replication": "database"} if replication else {}),
        "client_encoding": "UTF8",
        "application_name": info.value("application_name") or application_name,
        "options": f"{own} {options}".strip(),
    }
