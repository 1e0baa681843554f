"""A lane's signs of life: a writer that waits gives them too, and learns from them that nobody wants its work any more."""

from __future__ import annotations

from multiprocessing import Pipe
from pathlib import Path

import pytest

from penstock.core.epoch import Epoch
from penstock.engine import lane
from penstock.engine.messages import receive
from penstock.journal.record import pack_slices


def test_a_writer_s_progress_reaches_the_driver_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "PROGRESS", 0.0)
    setup = {
        "flow": "shop",
        "name": "hook",
        "destination": "http",
        "options": {"url": "http://127.0.0.1:9/"},
        "source": "postgres",
    }
    work = lane.Work({**setup, "staging": str(tmp_path / "staging"), "journal": str(tmp_path / "journal")})
    driver, ours = Pipe()
    epoch = Epoch("shop", "hook", "src1", 1, 0, 10, 1, 1)
    receipt = work.do({"ask": 7, "epoch": epoch.to_data(), "bucket": 0, "slices": pack_slices([])}, ours)
    assert receipt["rows"] == 0
    work._writer.progress()
    assert receive(driver) == {"ask": 7, "progress": 0}
    driver.close()
    with pytest.raises(ConnectionError):
        work._writer.progress()
    work.close()
    ours.close()
