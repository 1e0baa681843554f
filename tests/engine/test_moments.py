"""Moments of the source, compared with a journal that is trimmed meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.core import connectors
from penstock.engine.moments import Moments
from penstock.journal.record import SliceFlag
from penstock.journal.retention import trim
from penstock.journal.writer import JournalWriter
from tests.journal.test_journal import BEGIN, a_slice


def test_a_load_is_planned_also_where_the_journal_was_trimmed_since_the_last_one(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=1000)
    writer.begin(BEGIN)
    reader = connectors.find("source", "postgres").load("chunks")
    marks = [110]
    moments = Moments(tmp_path, lambda: reader({}), lambda: marks[-1], lambda: None, None)
    hold: dict[str, Any] = {"name": "x", "described": "900:900:", "position": 150, "alive": lambda: True, "close": lambda: None}
    source: Any = SimpleNamespace(hold_snapshot=lambda: SimpleNamespace(**hold))
    whole = int(SliceFlag.PIECE | SliceFlag.LAST_PIECE)
    for position in range(BEGIN + 1, 141):
        place = writer.append(memoryview(b"x" * 200))
        writer.publish([a_slice(place, position, flags=whole, xid=position)], [], 0)
        if position == 110:
            assert moments.take(source, 0).low == 110
    writer.close()
    marks.append(140)
    assert trim(tmp_path, 130, retention=0, max_bytes=0, now=2e10)
    assert moments.take(source, 0).low == 140
    hold["described"] = "138:900:138"
    moments = Moments(tmp_path, lambda: reader({}), lambda: 140, lambda: None, None)
    assert moments.take(source, 0).low == 137
