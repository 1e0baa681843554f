"""A postgres destination in a database of its own, by each of the ways that rows travel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.destinations import staging
from penstock.destinations.folding import staged
from penstock.destinations.postgres import rows
from tests.conformance.harness import Harness


@pytest.fixture(params=["arrays", "copy", "pour"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Few rows go as array parameters in a pipeline; `copy` sends them the way of many, `pour` new ones straight to the table."""
    if request.param != "arrays":
        monkeypatch.setattr(staging, "_INLINE_BYTES", 0)
        monkeypatch.setattr(rows, "FEW_BYTES", 0)
    if request.param == "pour":
        monkeypatch.setattr(staged, "_MANY_BYTES", 0)
    return str(request.param)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Harness]:
    made = Harness("postgres", tmp_path)
    yield made
    made.close()
