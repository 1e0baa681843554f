"""What a dsn means: hosts, user, database and options, from dsn, service file, environment and defaults as libpq takes them."""

from __future__ import annotations

import os
import pwd
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg import conninfo, pq

from penstock.errors import SourceRefused

# libpq waits without end when connect_timeout is not given; a flow must come back and say that nobody answers.
DEFAULT_TIMEOUT = 30.0

SOCKET_DIRECTORIES = ("/var/run/postgresql", "/tmp")


class Where(NamedTuple):
    """The server, user and database that a message names; never a secret."""

    host: str
    port: int
    user: str
    database: str

    @property
    def address(self) -> str:
        """Host and port as an operator writes them, or the path of the socket."""
        if self.host.startswith(("/", "@")):
            return f"{self.host}/.s.PGSQL.{self.port}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Host(NamedTuple):
    """One place to try: the name it is known by, the numeric address if the dsn gives one, and the port."""

    name: str
    address: str
    port: int

    @property
    def target(self) -> str:
        """What to connect to: an address, a name, or a socket directory."""
        return self.address or self.name

    @property
    def is_local(self) -> bool:
        """The host is a directory of unix sockets, or an abstract one."""
        return self.target.startswith(("/", "@"))


@dataclass(frozen=True)
class Conninfo:
    """A resolved dsn."""

    hosts: tuple[Host, ...]
    user: str
    database: str
    # Not shown, because the password is among them.
    values: Mapping[str, str] = field(repr=False)
    mint: Callable[[Where], str] | None = field(default=None, repr=False)
    """Makes the password of a new connection, where it is not a lasting one."""

    def value(self, name: str) -> str:
        """The option's value, or nothing."""
        return self.values.get(name, "")

    def choice(self, name: str, *allowed: str) -> str:
        """The option's value, which must be one of `allowed`; the first of them stands for an option not given."""
        value = self.value(name) or allowed[0]
        if value not in allowed:
            raise refused_option(name, value, f"it may be {', '.join(allowed)}")
        return value

    def number(self, name: str) -> int | None:
        """The option as a whole number, or None where it is not given."""
        text = self.value(name).strip()
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise refused_option(name, text, "it must be a whole number") from None

    @property
    def timeout(self) -> float | None:
        """Seconds for one attempt at one address; None waits for ever, which connect_timeout=0 asks for."""
        seconds = self.number("connect_timeout")
        if seconds is None:
            return DEFAULT_TIMEOUT
        return float(seconds) if seconds > 0 else None

    def where(self, host: Host) -> Where:
        """How messages name this attempt."""
        return Where(host.name or host.address, host.port, self.user, self.database)

    def in_order(self) -> list[Host]:
        """The hosts in the order in which they are to be tried."""
        hosts = list(self.hosts)
        if self.choice("load_balance_hosts", "disable", "random") == "random":
            random.shuffle(hosts)
        return hosts


def refused_option(name: str, value: str, reason: str) -> SourceRefused:
    """The refusal of an option that cannot be honoured; only for options whose values are no secrets."""
    return SourceRefused(
        f"The dsn's {name}={value} cannot be used: {reason}.", remedy=f"Correct {name} in the source's dsn.", option=name
    )


def resolve(dsn: str, mint: Callable[[Where], str] | None = None) -> Conninfo:
    """Everything that libpq would take from `dsn`, the service file, the environment and its compiled defaults, in that order.

    With `mint` passwords are made by it, and a connection is encrypted unless the operator has chosen otherwise.
    """
    try:
        values = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.ProgrammingError:
        # libpq's message quotes the part it stumbled over, which may be a piece of the password.
        raise SourceRefused(
            "The source's dsn cannot be read as a PostgreSQL connection string.",
            remedy="Write key=value pairs with quotes around values that hold spaces, or "
            "postgresql://user:password@host:port/database with special characters percent-encoded.",
        ) from None
    service = values.get("service") or os.environ.get("PGSERVICE")
    if service:
        for name, value in read_service(service).items():
            values.setdefault(name, value)
    options = pq.Conninfo.get_defaults()
    for option in options:
        if option.envvar and (given := os.environ.get(option.envvar.decode())) is not None:
            values.setdefault(option.keyword.decode(), given)
    if values.get("sslrootcert") == "system":
        values.setdefault("sslmode", "verify-full")
    if mint is not None:
        # The server asks for such a password in the clear.
        values.setdefault("sslmode", "require")
    for option in options:
        if option.compiled is not None:
            values.setdefault(option.keyword.decode(), option.compiled.decode())
    user = values.get("user") or pwd.getpwuid(os.geteuid()).pw_name
    return Conninfo(_hosts(values), user, values.get("dbname") or user, values, mint)


def _hosts(values: Mapping[str, str]) -> tuple[Host, ...]:
    names = values["host"].split(",") if values.get("host") else []
    addresses = values["hostaddr"].split(",") if values.get("hostaddr") else []
    if names and addresses and len(names) != len(addresses):
        raise refused_option("hostaddr", values["hostaddr"], f"it names {len(addresses)} addresses for {len(names)} hosts")
    count = len(names) or len(addresses) or 1
    ports = values.get("port", "").split(",")
    if len(ports) not in (1, count):
        raise refused_option("port", values["port"], f"it names {len(ports)} ports for {count} hosts")
    ports = ports * count if len(ports) == 1 else ports
    names = names or [""] * count
    addresses = addresses or [""] * count
    return tuple(_host(name, address, port) for name, address, port in zip(names, addresses, ports, strict=True))


def _host(name: str, address: str, port: str) -> Host:
    number = int(port) if port.strip().isascii() and port.strip().isdigit() else 0 if port.strip() else 5432
    if not 0 < number < 65536:
        raise refused_option("port", port, "it must be a number from 1 to 65535")
    if not name and not address:
        found = [directory for directory in SOCKET_DIRECTORIES if Path(directory, f".s.PGSQL.{number}").exists()]
        name = (found or SOCKET_DIRECTORIES)[0]
    return Host(name.strip(), address.strip(), number)


def read_service(service: str) -> dict[str, str]:
    """The options of `service`, from the user's service file, else from the system's."""
    own = os.environ.get("PGSERVICEFILE") or str(Path.home() / ".pg_service.conf")
    for path in (Path(own), Path(os.environ.get("PGSYSCONFDIR") or "/etc/postgresql-common", "pg_service.conf")):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        found = _service_options(text, service)
        if found is not None:
            return found
    raise SourceRefused(
        f"No service file defines the service {service!r} that the dsn names.",
        remedy=f"Define [{service}] in ~/.pg_service.conf, or point PGSERVICEFILE at the file that does.",
    )


def _service_options(text: str, service: str) -> dict[str, str] | None:
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    found: dict[str, str] | None = None
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            if found is not None:
                break
            found = {} if line == f"[{service}]" else None
        elif found is not None:
            name, equals, value = line.partition("=")
            if not equals or name not in known or name == "service":
                raise SourceRefused(
                    f"The service {service!r} holds a line that is no connection option.",
                    remedy="Correct the service file: one option=value a line.",
                )
            found.setdefault(name, value)
    return found
