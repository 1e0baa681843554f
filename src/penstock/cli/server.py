"""`penstock up|server`: the control plane as a process, with the flows that it runs."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.files import StateOption, state_directory
from penstock.cli.screen import Screen
from penstock.cli.settings import MasterOption, PropertyOption, WireEnforceOption, WireFormatOption, heed
from penstock.cli.stopping import stopping
from penstock.cli.worker import Level
from penstock.embedded.memory import few_pools, loading
from penstock.errors import ExtraMissing, LedgerUnusable

if TYPE_CHECKING:
    from penstock.api.settings import Settings
    from penstock.control.launching import Launcher
    from penstock.control.service import Service


class Launching(StrEnum):
    """How flows are run."""

    embedded = "embedded"
    process = "process"
    none = "none"


ListenOption = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", envvar="PENSTOCK_HTTP_LISTEN", help="Where to answer; port 0 is any free.")
]
GrpcOption = Annotated[
    str | None,
    typer.Option(
        "--grpc-listen",
        metavar="HOST:PORT",
        envvar="PENSTOCK_GRPC_LISTEN",
        help="Where to answer gRPC; the next port on 127.0.0.1 when not given, none for not at all.",
        show_default=False,
    ),
]
ReflectionOption = Annotated[
    bool, typer.Option("--grpc-reflection", envvar="PENSTOCK_GRPC_REFLECTION", help="Tell gRPC tools what may be called.")
]
CertificateOption = Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate.", show_default=False)]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key.", show_default=False)]
PlainOption = Annotated[
    bool, typer.Option("--plain-http", help="Serve others than this machine without TLS, because a proxy in front has it.")
]
SecretsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--secret-files",
        metavar="DIR",
        help="Definitions may refer to files here, besides /run/secrets and secrets/ of the state directory; may be repeated.",
        show_default=False,
    ),
]
LevelOption = Annotated[Level, typer.Option("--log-level", help="How much is logged.")]
DEFAULT = "127.0.0.1:8466"


def up(
    context: typer.Context,
    state: StateOption = None,
    listen: ListenOption = DEFAULT,
    grpc_listen: GrpcOption = None,
    reflection: ReflectionOption = False,
    launcher: Annotated[
        Launching, typer.Option("--launcher", help="Flows in this process with one Spark, or each in its own.")
    ] = Launching.embedded,
    secret_files: SecretsOption = None,
    spark_master: MasterOption = None,
    spark_conf: PropertyOption = None,
    wire_format: WireFormatOption = None,
    wire_enforce: WireEnforceOption = False,
    level: LevelOption = Level.info,
) -> None:
    """Run everything on this machine in one process: APIs, ledger and the flows that are to run; Ctrl-C ends it in order.

    It answers on loopback within seconds; Spark comes up with the first flow. Exit codes: 0 ended as asked, 1 failed.
    """
    heed(context, spark_master, spark_conf, wire_format, wire_enforce)
    _serve(state, Listening(listen, grpc_listen, reflection), launcher, secret_files, level)


def server(
    context: typer.Context,
    state: StateOption = None,
    listen: ListenOption = DEFAULT,
    grpc_listen: GrpcOption = None,
    reflection: ReflectionOption = False,
    launcher: Annotated[
        Launching, typer.Option("--launcher", help="Each flow in its own process, all in this one, or none by this server.")
    ] = Launching.process,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    plain: PlainOption = False,
    secret_files: SecretsOption = None,
    spark_master: MasterOption = None,
    spark_conf: PropertyOption = None,
    wire_format: WireFormatOption = None,
    wire_enforce: WireEnforceOption = False,
    level: LevelOption = Level.info,
) -> None:
    """Serve REST and gRPC, and run each flow in its own process; several servers may share a ledger, and one of them runs flows.

    An address beyond this machine needs tokens (`penstock token create`) and TLS. Exit codes: 0 ended as asked, 1 failed.
    """
    heed(context, spark_master, spark_conf, wire_format, wire_enforce)
    listening = Listening(listen, grpc_listen, reflection, certificate, key, plain)
    _serve(state, listening, launcher, secret_files, level)


@dataclass(frozen=True)
class Listening:
    """Where the server answers, as it was asked for."""

    rest: str
    grpc: str | None
    reflection: bool
    certificate: Path | None = None
    key: Path | None = None
    plain: bool = False

    def settings(self) -> tuple[Settings, Settings | None]:
        """For REST and, unless it is off, for gRPC. ListenRefused."""
        from penstock.api.settings import Settings, parse_listen

        host, port = parse_listen(self.rest)
        rest = Settings(host, port, self.certificate, self.key, self.plain)
        if (self.grpc or "").strip().lower() in ("none", "off"):
            return rest, None
        following = port + 1 if 0 < port < 65535 else 0
        there, number = parse_listen(self.grpc or "127.0.0.1", following)
        return rest, replace(rest, host=there, port=number)


def _serve(state: Path | None, listening: Listening, launching: Launching, secret_files: list[Path] | None, level: Level) -> None:
    few_pools()
    try:
        with loading():
            from penstock.api.grpc.serving import GrpcServing
            from penstock.api.limits import MOST_SLOW, Room, Watchers
            from penstock.api.serving import Serving
            from penstock.control.service import Service
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"the server needs the library {error.name}, which is not installed", remedy="pip install 'penstock[server]'"
        ) from error

    home = state_directory(state)
    _log_to(home / "logs" / "server.log", level)
    settings, grpc_settings = listening.settings()
    with Service(home, [path.absolute() for path in secret_files or []], logs=True) as service:
        flows = Flows(service, home, launching)
        shared: dict[str, Any] = {"runs": flows.runs, "watchers": Watchers(settings.most_watchers), "slow": Room(MOST_SLOW)}
        faces: list[Serving | GrpcServing] = [Serving(service, settings, **shared)]
        ended = threading.Event()
        try:
            if grpc_settings is not None:
                shown = listening.reflection
                faces.append(GrpcServing(service, grpc_settings, reflection=shown, **shared))
            for face in faces:
                face.start()
            where = " and ".join(face.url for face in faces)
            Screen(sys.stderr).line(f"penstock answers at {where}, state in {home}; Ctrl-C ends it", "green")
            # Now, when it answers already: Spark's libraries take a second to load.
            flows.start()
            with stopping(ended.set):
                while not ended.wait(1.0):
                    pass
                Screen(sys.stderr).line("stopping: running epochs are finished first; a second signal ends at once")
                flows.close()
        finally:
            for face in faces:
                face.close()


class Flows:
    """The runner of this server, if it has one."""

    def __init__(self, service: Service, home: Path, launching: Launching) -> None:
        from penstock.control.runner import Runner

        self._service, self._home, self._launching = service, home, launching
        self._launcher: Launcher | None = None
        self._runner: Runner | None = None

    def start(self) -> None:
        """Begins to run flows."""
        from penstock.control.runner import Runner

        if self._launching is Launching.none:
            return
        if self._launching is Launching.embedded:
            from penstock.control.embedding import EmbeddedLauncher

            self._launcher = EmbeddedLauncher(self._home)
        else:
            from penstock.control.launching import ProcessLauncher

            self._launcher = ProcessLauncher(self._home)
        self._runner = Runner(self._service.premises, self._launcher)
        self._runner.start()

    def runs(self) -> tuple[str | None, str | None]:
        """How flows are run here, and what Spark does, for whoever asks the server."""
        name = None if self._launching is Launching.none else self._launching.value
        return name, getattr(self._launcher, "spark", "waiting" if self._launching is Launching.embedded else None)

    def close(self) -> None:
        """Ends them in order."""
        if self._runner is not None:
            self._runner.close()


def _log_to(path: Path, level: Level) -> None:
    from penstock.observe import log

    try:
        log.configure(level.value, path)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        remedy = "Mend its rights, or choose another directory with --state."
        raise LedgerUnusable(f"The state directory {path.parent.parent} cannot be written: {reason}.", remedy=remedy) from error
