"""Positions: commit boundaries in a source's log, comparable within one timeline."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LSN = re.compile(r"^([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})$")


def format_lsn(position: int) -> str:
    """A PostgreSQL position as the server writes it, such as 0/16B6C50."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The position that `format_lsn` wrote; ValueError when the text is none."""
    match = _LSN.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not an LSN such as 0/16B6C50")
    return (int(match[1], 16) << 32) | int(match[2], 16)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the log: after `after`, up to and including `upto`."""

    after: int
    upto: int

    def __str__(self) -> str:
        return f"({format_lsn(self.after)}, {format_lsn(self.upto)}]"
