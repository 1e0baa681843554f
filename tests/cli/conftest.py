"""Commands on a flow of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.objects import Commands
from tests.conftest import Database


@pytest.fixture
def commands(database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """`penstock` on the flow `shop` of the test's database."""
    return Commands(database, tmp_path, capsys)
