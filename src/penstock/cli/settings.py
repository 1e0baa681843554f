"""Settings: what commands take from the environment or from `settings` in `config.yaml` of PENSTOCK_HOME, and `penstock config`.

settings:
  http_listen: 127.0.0.1:9000

A flag counts before the environment, that before the file, and that before the default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.files import JsonOption
from penstock.cli.screen import Screen
from penstock.embedded.cache import home_directory
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

    @property
    def variable(self) -> str:
        """The environment's name for it."""
        return PREFIX + self.name.upper()


SETTINGS = (
    Setting("home", "~/.penstock", "Ledger, journals, logs and caches; --state on the command line.", in_file=False),
    Setting("cache", "cache in home", "What is costly to make and can be made again."),
    Setting("database_url", "a SQLite file in home", "A PostgreSQL server as ledger.", secret=True),
    Setting("http_listen", "127.0.0.1:8466", "Where a server answers REST; --listen."),
    Setting("grpc_listen", "the next port on 127.0.0.1", "Where a server answers gRPC, or none; --grpc-listen."),
    Setting("grpc_reflection", "false", "Whether gRPC tools are told what may be called; --grpc-reflection."),
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
    rows = [(setting, *_found(setting)) for setting in SETTINGS]
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
    given = {name: value for name, value in _read().items() if not os.environ.get(name)}
    os.environ.update(given)
    _from_file.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)
            _from_file.pop(name, None)


_from_file: dict[str, str] = {}


def _found(setting: Setting) -> tuple[str | None, str]:
    """The setting's value, None when nobody has set it, and its origin."""
    value = os.environ.get(setting.variable)
    if not value:
        return None, "default"
    origin = "file" if setting.variable in _from_file else "environment"
    return MASK if setting.secret else value, origin


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
    if not isinstance(given, dict):
        raise ProfileRefused(f"{path} cannot be used: settings has no names", remedy="Write a setting and its value a line.")
    for name, value in given.items():
        if name not in known or isinstance(value, dict | list):
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"Did you mean {near[0]}? " if near and name not in known else ""
            raise ProfileRefused(
                f"{path} cannot be used: settings.{name} is no setting of a file",
                remedy=f"{hint}It may have: {', '.join(known)}.",
            )
    return {known[name].variable: _text(value) for name, value in given.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
