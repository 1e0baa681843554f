"""Where a server listens, and what it demands there: loopback asks for nothing, any other address for tokens and TLS."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ListenRefused

PORT = 8466


@dataclass(frozen=True)
class Settings:
    """How the server is reached."""

    host: str = "127.0.0.1"
    port: int = PORT
    certificate: Path | None = None
    key: Path | None = None
    plain: bool = False
    """Whether an address beyond this machine may be served without TLS, because something in front of it has that."""
    most_watchers: int = 64
    """How many requests may stay open to watch."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """The address for people and clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate is not None else 'http'}://{host}:{self.port}"

    def check(self, *, tokens: bool) -> None:
        """ListenRefused when more than this machine would be let in unguarded. `tokens` says whether there are any."""
        if (self.certificate is None) != (self.key is None):
            raise ListenRefused("a certificate and its key belong together", remedy="Give both --tls-cert and --tls-key.")
        for path in (self.certificate, self.key):
            if path is not None and not path.is_file():
                raise ListenRefused(f"there is no file {path}", remedy="Check --tls-cert and --tls-key.")
        if self.is_loopback:
            return
        if not tokens:
            raise ListenRefused(
                f"{self.host} is reached by others than this machine, and nobody has a token",
                remedy="`penstock token create NAME --role admin` makes the first; or listen on 127.0.0.1.",
            )
        if self.certificate is None and not self.plain:
            raise ListenRefused(
                f"{self.host} is reached by others than this machine, and tokens would travel in the clear",
                remedy="Give --tls-cert and --tls-key, or --plain-http where a proxy in front of the server has TLS.",
            )


def parse_listen(text: str, default: int = PORT) -> tuple[str, int]:
    """Host and port of `host:port`, `[host]:port`, `host` or `:port`. ListenRefused."""
    host, _, port = text.rpartition(":") if ":" in text and not text.endswith("]") else (text, "", "")
    if text.count(":") > 1 and not text.startswith("["):
        host, port = text, ""
    host = host.strip("[]") or "127.0.0.1"
    if port and not (port.isdigit() and int(port) < 1 << 16):
        raise ListenRefused(f"{text!r} is no address to listen on", remedy="Write HOST:PORT, such as 127.0.0.1:8466.")
    return host, int(port) if port else default
