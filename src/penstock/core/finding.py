"""A finding: one line of a check, good or bad, with what mends it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What a check saw; `remedy` is the SQL or the sentence that mends a bad one, `code` the error it would become.

    A good one with a remedy is advice: it stands in nobody's way and could be better.
    """

    subject: str
    ok: bool
    detail: str = ""
    remedy: str = ""
    code: str = ""
