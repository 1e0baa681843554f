"""Text that may be shown: names come from servers, and may hold anything."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` on one line and without control characters, which stand there as Python would write them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
