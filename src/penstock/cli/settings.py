"""Settings: what commands take from the environment or from `settings` in `config.yaml` of PENSTOCK_HOME, and `penstock config`.

settings:
  http_listen: 127.0.0.1:9000

A flag counts before the environment, that before the file, and that before the default.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.files import JsonOption
from penstock.cli.screen import Screen
from penstock.core.secret import mask
from penstock.embedded.cache import home_directory
from penstock.engine.properties import CONF, MASTER, conf_of, local_master
from penstock.errors import ProfileRefused

PREFIX = "PENSTOCK_"
MASK = "***"


@dataclass(frozen=True)
class Setting:
    """One setting; its variable has its name in capitals after PENSTOCK_."""

    name: str
    default: str
    about: str
    in_file: bool = True
    """Whether it may stand in the file; who a command goes to is a profile's business there."""
    secret: bool = False

    given: str | None = None
    """The variable, where that is not its name in capitals."""

    @property
    def variable(self) -> str:
        """The environment's name for it."""
        return self.given or PREFIX + self.name.upper()


MasterOption = Annotated[
    str | None,
    typer.Option(
        "--spark-master",
        metavar="MASTER",
        help="Spark's tasks on this machine, such as local[64]; no cluster.",
        show_default=False,
    ),
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-conf", metavar="KEY=VALUE", help="A property of Spark, before ours; may be repeated.", show_default=False
    ),
]
WireFormatOption = Annotated[
    str | None,
    typer.Option("--wire-format", metavar="FORMAT", help="The format of flows that name no wire_format.", show_default=False),
]
WireEnforceOption = Annotated[
    bool, typer.Option("--wire-enforce", help="Refuse a destination whose format is another than its flow's wire_format.")
]

SETTINGS = (
    Setting("home", "~/.penstock", "Ledger, journals, logs and caches; --state on the command line.", in_file=False),
    Setting("cache", "cache in home", "What is costly to make and can be made again."),
    Setting("database_url", "a SQLite file in home", "A PostgreSQL server as ledger.", secret=True),
    Setting("http_listen", "127.0.0.1:8466", "Where a server answers REST; --listen."),
    Setting("grpc_listen", "the next port on 127.0.0.1", "Where a server answers gRPC, or none; --grpc-listen."),
    Setting("grpc_reflection", "false", "Whether gRPC tools are told what may be called; --grpc-reflection."),
    Setting("wire_format", "the destination's own", "The format of flows that name no wire_format; --wire-format."),
    Setting("wire_enforce", "false", "Whether a destination whose format is another than the flow's is refused; --wire-enforce."),
    Setting("spark_master", "local", "Spark's tasks on this machine; --spark-master."),
    Setting("profile", "none", "Which of the file's profiles commands use; --profile.", in_file=False),
    Setting("server", "none", "Which server commands go to; --server.", in_file=False),
    Setting("token", "none", "The token for that server.", in_file=False, secret=True),
    Setting("ca_file", "the system's", "The authorities of that server's certificate.", in_file=False),
    Setting("debug", "false", "Whether failures show tracebacks; --debug.", in_file=False),
)


def config(as_json: JsonOption = False) -> None:
    """Show every setting with its value and where that comes from; secrets are masked.

    A flag counts before the environment, that before the file, and that before the default.
    """
    rows = [(setting, *_found(setting)) for setting in (*SETTINGS, *_properties())]
    screen = Screen()
    if as_json:
        known = [{"name": s.name, "value": value, "origin": origin, "variable": s.variable} for s, value, origin in rows]
        screen.data({"file": str(_file()), "settings": known})
        return
    cells = [[s.name, value if value is not None else s.default, origin, s.variable, s.about] for s, value, origin in rows]
    screen.table(["setting", "value", "origin", "variable", "what it is"], cells)
    there = "" if _file().is_file() else ", which is not there"
    screen.line(f"file: {_file()}{there}")


@contextmanager
def from_file() -> Iterator[None]:
    """Has the file's settings count as if the environment named them, where it does not. ProfileRefused."""
    named = conf_of(os.environ)
    read = {name: value for name, value in _read().items() if not conf_of({name: ""}).keys() & named.keys()}
    given = {name: value for name, value in read.items() if not os.environ.get(name)}
    os.environ.update(given)
    _from_file.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)
            _from_file.pop(name, None)


@contextmanager
def from_flags(**given: str | bool | None) -> Iterator[None]:
    """Has what flags have said count before environment and file, for workers that this process starts too."""
    said = {_variable(name): _text(value) for name, value in given.items() if value not in (None, False)}
    # The property that a variable sets may have been set by another spelling of it.
    taken = {name for name in os.environ if conf_of({name: ""}).keys() & conf_of(said).keys()}
    before = {name: os.environ.get(name) for name in {*said, *taken}}
    for name in taken:
        del os.environ[name]
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def heed(
    context: typer.Context, master: str | None, properties: list[str] | None, wire_format: str | None, wire_enforce: bool
) -> None:
    """Has the flags of a command that runs flows count until the command ends. SparkMasterRefused."""
    found: dict[str, str | bool | None] = {"spark_master": master, "wire_format": wire_format, "wire_enforce": wire_enforce}
    for text in properties or ():
        name, there, value = text.partition("=")
        if not there or not name.startswith("spark."):
            raise typer.BadParameter(f"{text!r} is no property: write spark.driver.memory=2g", param_hint="--spark-conf")
        found[f"{_CONF}.{name}"] = value
    context.with_resource(from_flags(**found))
    # Now, and not when a server's first flow starts, which would be tried again and again.
    local_master(os.environ.get(MASTER) or "local", conf_of(os.environ))


_CONF = "spark_conf"
_WORDS = r"secret|passw|pwd|passphrase|token|credential|signature|(?<![a-z0-9])(?:sas|sig)(?![a-z0-9])|key(?![a-z0-9])"
_SECRET = re.compile(_WORDS, re.IGNORECASE)
"""What is secret by its name: a word anywhere in it, or a dotted part, as in spark.hadoop.fs.azure.account.key.NAME.blob."""
_PAIR = re.compile(rf"(?P<head>[\w.-]*?(?:{_WORDS})[\w.-]*\s*=\s*)(?:'[^']*'|\"[^\"]*\"|{{[^}}]*}}|[^\s&;,}}]+)", re.IGNORECASE)
"""The same within a value, such as a JVM's -Dx.secretKey=… or a connection string's AccountKey=…."""
_from_file: dict[str, str] = {}


def _properties() -> list[Setting]:
    """Each property of Spark that is set."""
    names = sorted(name for name in os.environ if name.startswith(CONF))
    about = "A property of Spark; --spark-conf."
    properties = {name: next(iter(conf_of({name: ""})), name) for name in names}
    return [
        Setting(f"{_CONF}.{property_}", "", about, secret=bool(_SECRET.search(property_)), given=name)
        for name, property_ in properties.items()
    ]


def _variable(name: str) -> str:
    conf, _, property_ = name.partition(".")
    return f"{PREFIX}{conf.upper()}_{property_}" if property_ else PREFIX + name.upper()


def _found(setting: Setting) -> tuple[str | None, str]:
    """The setting's value, None when nobody has set it, and its origin."""
    value = os.environ.get(setting.variable)
    if not value:
        return None, "default"
    origin = "file" if setting.variable in _from_file else "environment"
    return MASK if setting.secret else mask(_PAIR.sub(rf"\g<head>{MASK}", value)), origin


def _file() -> Path:
    return home_directory() / "config.yaml"


def _read() -> dict[str, str]:
    """The file's settings by their variables."""
    path = _file()
    if not path.is_file():
        return {}
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileRefused(f"{path} cannot be used: {type(error).__name__}") from error
    given = content.get("settings") if isinstance(content, dict) else None
    if given is None:
        return {}
    known = {setting.name: setting for setting in SETTINGS if setting.in_file}
    if isinstance(given, dict) and isinstance(given.get(_CONF), dict):
        properties = given.pop(_CONF)
        given |= {f"{_CONF}.{name}": value for name, value in properties.items()}
        known |= {f"{_CONF}.{name}": Setting("", "", "", given=_variable(f"{_CONF}.{name}")) for name in properties}
    if not isinstance(given, dict):
        raise ProfileRefused(f"{path} cannot be used: settings has no names", remedy="Write a setting and its value a line.")
    for name, value in given.items():
        if name not in known or isinstance(value, dict | list):
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"Did you mean {near[0]}? " if near and name not in known else ""
            raise ProfileRefused(
                f"{path} cannot be used: settings.{name} is no setting of a file",
                remedy=f"{hint}It may have: {', '.join([*known, _CONF])}.",
            )
    return {known[name].variable: _text(value) for name, value in given.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
