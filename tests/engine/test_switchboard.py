"""Where lanes call in: nothing of a killed worker stays for ever, nothing of a living one goes."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from penstock.engine.switchboard import OLD, PREFIX, Switchboard


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_killed_workers_have_left_is_removed_and_what_lives_stays(place: Path) -> None:
    living = Switchboard()
    abandoned, recent = place / f"{PREFIX}abandoned", place / f"{PREFIX}recent"
    for directory in (abandoned, recent):
        directory.mkdir()
        (directory / "lanes").touch()
    long_ago = time.time() - 2 * OLD
    for directory in (abandoned, Path(living.address).parent):
        os.utime(directory, (long_ago, long_ago))
    Switchboard().close()
    assert not abandoned.exists()
    assert recent.exists() and Path(living.address).exists()
    living.close()
