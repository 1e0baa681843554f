"""TLS as libpq does it: which certificates are trusted, which is shown, and what is checked, by sslmode."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
from pathlib import Path

from penstock.errors import ProtocolBroken, SourceRefused
from penstock.sources.postgres.conninfo import Conninfo, Host, Where, refused_option
from penstock.sources.postgres.messages import broken_socket

MODES = ("prefer", "disable", "allow", "require", "verify-ca", "verify-full")
_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


def make_context(info: Conninfo) -> ssl.SSLContext:
    """A context that trusts, shows and accepts what the dsn says."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["postgresql"])
    if lowest := _version(info, "ssl_min_protocol_version"):
        context.minimum_version = lowest
    if highest := _version(info, "ssl_max_protocol_version"):
        context.maximum_version = highest
    _trust(context, info)
    _show(context, info)
    return context


def check_options(info: Conninfo) -> None:
    """Refuse what contradicts itself, before anything is sent to anybody."""
    mode = info.choice("sslmode", *MODES)
    if info.value("sslrootcert") == "system" and mode != "verify-full":
        raise refused_option("sslmode", mode, "sslrootcert=system needs verify-full")
    if info.choice("sslnegotiation", "postgres", "direct") == "direct" and mode in ("disable", "allow", "prefer"):
        raise refused_option("sslnegotiation", "direct", "it needs sslmode=require or stronger")
    if info.choice("sslcertmode", "allow", "disable", "require") == "require":
        raise refused_option("sslcertmode", "require", "whether the server asked for the certificate cannot be seen here")
    if mode == "verify-full" and info.value("sslsni") == "0":
        raise refused_option("sslsni", "0", "verify-full sends the name it checks")
    lowest, highest = _version(info, "ssl_min_protocol_version"), _version(info, "ssl_max_protocol_version")
    if lowest and highest and lowest > highest:
        raise refused_option("ssl_min_protocol_version", lowest.name, "it is above ssl_max_protocol_version")


def _version(info: Conninfo, name: str) -> ssl.TLSVersion | None:
    value = info.value(name)
    if value and value not in _VERSIONS:
        raise refused_option(name, value, f"it may be {', '.join(_VERSIONS)}")
    return _VERSIONS.get(value)


def _trust(context: ssl.SSLContext, info: Conninfo) -> None:
    mode = info.choice("sslmode", *MODES)
    root = info.value("sslrootcert")
    if root == "system":
        context.load_default_certs()
    else:
        path = Path(root) if root else _home("root.crt")
        if not path.exists():
            if mode.startswith("verify"):
                raise SourceRefused(
                    f"The dsn's sslmode={mode} needs root certificates, and {path} does not exist.",
                    remedy="Set sslrootcert to the file of the server's certificate authority, or to `system`.",
                )
            return
        _load(context, "sslrootcert", cafile=path)
    # A root certificate that is there is checked in every mode, as libpq does: require then means verify-ca.
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = mode == "verify-full"
    _revoke(context, info)


def _revoke(context: ssl.SSLContext, info: Conninfo) -> None:
    # libpq goes on without a word when the list it was given is not there; who names one wants it to be used.
    path = info.value("sslcrl")
    directory = info.value("sslcrldir")
    own = _home("root.crl")
    if path or (not directory and own.exists()):
        _load(context, "sslcrl", cafile=Path(path) if path else own)
    elif not directory:
        return
    if directory:
        _load(context, "sslcrldir", capath=Path(directory))
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _load(context: ssl.SSLContext, option: str, cafile: Path | None = None, capath: Path | None = None) -> None:
    try:
        context.load_verify_locations(cafile, capath)
    except OSError as error:
        raise refused_option(option, str(cafile or capath), error.strerror or "it holds no certificate") from error


def _show(context: ssl.SSLContext, info: Conninfo) -> None:
    certificate = Path(info.value("sslcert") or _home("postgresql.crt"))
    if info.value("sslcertmode") == "disable" or not certificate.exists():
        return
    key = Path(info.value("sslkey") or _home("postgresql.key"))
    _check_key(key)
    try:
        # An empty password instead of none: OpenSSL would otherwise ask for it on the terminal.
        context.load_cert_chain(certificate, key, password=info.value("sslpassword"))
    except OSError as error:
        raise SourceRefused(
            f"The client certificate {certificate} with the key {key} cannot be used: {_reason(error)}.",
            remedy="Check sslcert, sslkey and sslpassword in the source's dsn.",
        ) from error


def _reason(error: OSError) -> str:
    return error.strerror if error.strerror and not isinstance(error, ssl.SSLError) else "wrong format or password"


def _check_key(key: Path) -> None:
    try:
        status = key.stat()
    except OSError as error:
        raise SourceRefused(
            f"The private key {key} of the client certificate cannot be read: {error.strerror}.",
            remedy="Set sslkey in the source's dsn.",
        ) from error
    # libpq's rule: nobody else may read it, except a group when root owns it.
    forbidden = stat.S_IRWXG | stat.S_IRWXO if status.st_uid else stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
    if status.st_mode & forbidden:
        raise SourceRefused(f"The private key {key} is open to group or world.", remedy=f"Run `chmod 0600 {key}`.")


def _home(name: str) -> Path:
    return Path.home() / ".postgresql" / name


class TlsChannel:
    """TLS over a socket in memory, so that one system call brings many records.

    An SSLSocket makes two system calls a record, and a walsender makes a record of each message: 5.9 µs a message where this
    takes 2.6. Blocking until streaming begins; from then on `decrypt` and `encrypt` are called under the caller's lock.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str | None) -> None:
        self.socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._gulp = memoryview(bytearray(1 << 18))
        self._ended = False

    def shake_hands(self) -> None:
        """Agree on keys and check the certificate; obeys the socket's timeout."""
        while True:
            try:
                self.session.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()
            finally:
                # An alert of ours, too, is for the peer to read.
                self._flush()

    def settimeout(self, timeout: float | None) -> None:
        """As a socket's."""
        self.socket.settimeout(timeout)

    def recv(self, size: int) -> bytes:
        """As a socket's: at least one byte, or none at the end."""
        while True:
            try:
                return self.session.read(size)
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def sendall(self, data: bytes) -> None:
        """As a socket's."""
        self.session.write(data)
        self._flush()

    def close(self) -> None:
        """As a socket's; no farewell, which libpq's peers do not expect either."""
        self.socket.close()

    def decrypt(self, view: memoryview) -> int:
        """Fill `view` with what the socket has now; 0 means nothing yet, an EOFError that nothing will come any more."""
        filled = 0
        while filled < len(view):
            try:
                size = int(self.session.read(len(view) - filled, view[filled:]))
                filled += size
                if not size:  # the peer has said goodbye
                    self._ended = True
                    break
            except ssl.SSLWantReadError:
                if not self._gulped():
                    break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self._ended = True
                break
        if self._ended and not filled and len(view):
            raise EOFError
        return filled

    def encrypt(self, data: bytes) -> bytes:
        """The bytes for the socket that carry `data`, and whatever TLS itself has had to say since."""
        self.session.write(data)
        return self._outgoing.read()

    def _gulped(self) -> bool:
        try:
            size = self.socket.recv_into(self._gulp)
        except BlockingIOError:
            return False
        self._ended = not size
        self._incoming.write(self._gulp[:size])
        return bool(size)

    def _feed(self) -> None:
        data = self.socket.recv(65536)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        if self._outgoing.pending:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.socket.sendall(self._outgoing.read())


def wrap(sock: socket.socket, context: ssl.SSLContext, info: Conninfo, host: Host, where: Where) -> TlsChannel:
    """The socket under TLS, its certificate checked as the mode wants."""
    name = host.name or None
    if context.check_hostname and name is None:
        raise refused_option("sslmode", "verify-full", "it needs a host name beside hostaddr")
    channel = TlsChannel(sock, context, None if info.value("sslsni") == "0" else name)
    try:
        channel.shake_hands()
    except ssl.SSLCertVerificationError as error:
        raise SourceRefused(
            f"The certificate of {where.address} is not accepted: {error.verify_message}.",
            remedy="Check sslrootcert, sslcrl and the host name in the source's dsn against the server's certificate.",
        ) from error
    except ssl.SSLError as error:
        if isinstance(error, ssl.SSLEOFError) or "ALERT" in (error.reason or ""):
            raise broken_socket(error, where) from error
        reason = (error.reason or "no reason").lower().replace("_", " ")
        raise ProtocolBroken(f"{where.address} answered with something that is not TLS: {reason}.") from error
    except OSError as error:
        raise broken_socket(error, where) from error
    if info.value("sslnegotiation") == "direct" and channel.session.selected_alpn_protocol() != "postgresql":
        raise ProtocolBroken(f"{where.address} speaks TLS but not PostgreSQL's direct negotiation.")
    return channel
