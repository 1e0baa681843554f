"""A flow with a worker of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.flows import SCHEMA, FlowUnderTest


@pytest.fixture
def flow(database: Database, tmp_path: Path) -> Iterator[FlowUnderTest]:
    """The shop's flow, its slot made and nothing written yet; its worker, if it still runs, is killed afterwards."""
    database.execute(SCHEMA)
    made = FlowUnderTest(database, tmp_path)
    # The slot exists before the first row: what was written before it is not the stream's to deliver.
    made.make_slot()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()
