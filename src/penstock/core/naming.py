"""Names of tables as people write them on a command line: whole, as patterns, or quoted as SQL quotes."""

from __future__ import annotations

import fnmatch
import re

from penstock.core.options import matches

# "schema"."table" as SQL writes it; what is not in quotes is folded to small letters, as a server does.
_PART = r'("(?:[^"]|"")+"|[^".]+)'
_QUOTED = re.compile(rf"(?:{_PART}\.)?{_PART}")
_WORD = re.compile(r'(?:"(?:[^"]|"")*"|[^,"]|")+')


def fits(word: str, schema: str, table: str) -> bool:
    """Whether a name or pattern means the table: as in a flow's options, or quoted as SQL quotes."""
    if matches((word,), schema, table) or word == table:
        return True
    quoted = _QUOTED.fullmatch(word) if '"' in word else None
    if quoted is None:
        return False
    return _means(quoted[2], table) and (quoted[1] is None or _means(quoted[1], schema))


def _means(part: str, name: str) -> bool:
    """A part in quotes is the name itself, one without may be a pattern."""
    return _plain(part) == name or (not part.startswith('"') and fnmatch.fnmatchcase(name, part))


def listed(words: str | None) -> list[str]:
    """Names that stand in a row, with commas between them; a comma in double quotes is part of a name."""
    return [word.strip() for word in _WORD.findall(words or "") if word.strip()]


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()
