"""Names and conditions as every SQL destination reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def quoted(name: str) -> str:
    """An identifier, whatever it contains."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def listed(names: Iterable[str]) -> str:
    """Identifiers, quoted, with commas between."""
    return ", ".join(quoted(name) for name in names)


def equal(left: Sequence[str], right: Sequence[str]) -> str:
    """The condition that two lists of columns are equal, pair by pair."""
    return " AND ".join(f"{a} = {b}" for a, b in zip(left, right, strict=True))
