"""Logs: structured, secrets masked; JSON lines in a file, short lines for people on stderr."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from penstock.core.printable import printable
from penstock.core.secret import MASK, mask

MAX_BYTES = 16 << 20
KEPT_FILES = 3
_SECRET_KEYS = frozenset({"password", "passwd", "secret", "secret_key", "session_token", "token", "authorization"})
# Libraries that tell at level info what only their authors want to know.
_QUIET = ("alembic", "asyncio", "numba", "pyspark")


def configure(level: str = "info", path: Path | None = None, console: bool = True, *, owner: bool = True) -> None:
    """Sends all logging of this process, structlog's and the standard library's, to the file and to stderr.

    The owner of the file also rotates it; other processes that log into it find the new one by themselves.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        mask_secrets,
    ]
    handlers: list[logging.Handler] = []
    if path is not None:
        handlers.append(_file(path, shared, owner))
    if console:
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(_formatter(shared, render_line))
        handlers.append(stream)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    for handler in handlers or [logging.NullHandler()]:
        root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def mask_secrets(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Masks passwords in every text of the event, and values whose name says that they are secret."""
    return {key: MASK if key.lower() in _SECRET_KEYS else _masked(value) for key, value in event.items()}


def render_line(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """One line for people, whatever names it holds: time, level, what happened, facts; an exception follows on its own lines."""
    time, level = str(event.pop("timestamp", ""))[11:19], str(event.pop("level", ""))
    what, trace = printable(str(event.pop("event", ""))), event.pop("exception", None)
    event.pop("logger", None)
    facts = " ".join(f"{key}={_short(value)}" for key, value in event.items())
    line = f"{time} {level:<7} {what} {facts}".rstrip()
    return f"{line}\n{trace}" if trace else line


def _file(path: Path, shared: list[Processor], owner: bool) -> logging.Handler:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler: logging.Handler
    if owner:
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=KEPT_FILES, encoding="utf-8")
    else:
        handler = logging.handlers.WatchedFileHandler(path, encoding="utf-8")
    handler.setFormatter(_formatter(shared, structlog.processors.JSONRenderer(default=str)))
    return handler


def _formatter(shared: list[Processor], renderer: Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {k: MASK if str(k).lower() in _SECRET_KEYS else _masked(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(v) for v in value]
    return value


def _short(value: Any) -> str:
    text = printable(str(value))
    return f'"{text}"' if " " in text or not text else text
