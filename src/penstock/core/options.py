"""Options: frozen pydantic models whose field docstrings are their help, with durations and sizes people can read."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)\s*$")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?\s*$")
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_duration(value: Any) -> float:
    """Seconds from text such as 200ms, 10s, 7d; a bare number is refused because its unit would be a guess."""
    if isinstance(value, str) and (match := _DURATION.match(value)):
        return float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, float | int) and not isinstance(value, bool) and value == 0:
        return 0.0
    raise ValueError("a duration is a number with a unit: 200ms, 10s, 5m, 24h, 7d")


def format_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back."""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        amount = seconds / _SECONDS[unit]
        if amount >= 1 and abs(amount - round(amount)) < 1e-9:
            return f"{round(amount)}{unit}"
    return f"{seconds}s" if seconds else "0ms"


def parse_size(value: Any) -> int:
    """Bytes from text such as 64MiB or 10GB, or from a whole number."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE.match(value)):
        return int(float(match[1]) * _BYTES[match[2] or "B"])
    raise ValueError("a size is a number of bytes, or a number with a unit: 64MiB, 10GB")


def format_size(count: float) -> str:
    """Bytes for people: 64.0 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str, when_used="json")]
Size = Annotated[int, BeforeValidator(parse_size)]


class Options(BaseModel):
    """The base of every option model: frozen, unknown keys refused, docstrings as help."""

    # An error that nobody has made into sentences must not show the options: they may hold passwords.
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, str_strip_whitespace=False, hide_input_in_errors=True
    )


def matches(patterns: Sequence[str], schema: str, table: str) -> bool:
    """Whether `schema.table` fits one of the patterns (`*` and `?`; a pattern without a dot is a table of any schema)."""
    name = f"{schema}.{table}"
    # The plain comparison: a name may itself contain the signs of a pattern.
    return any(p == name or fnmatch.fnmatchcase(name, p) or ("." not in p and fnmatch.fnmatchcase(table, p)) for p in patterns)
