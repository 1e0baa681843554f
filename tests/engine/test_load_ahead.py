"""Lanes begin with the next chunks of a load while the last ones are committed, and a kill anywhere in between costs no row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.destinations.files.reader import read_changes
from penstock.engine import intake, loading
from penstock.engine.places import ledger_address
from penstock.journal.chunks import chunk_bytes, chunk_path
from penstock.ledger.ledger import Ledger
from penstock.ledger.loads import Load, LoadChunk
from penstock.observe import failpoints
from tests.conftest import Database
from tests.engine.delivery import deadly_failpoints
from tests.engine.loads import LoadedDelivery, ReadersHere
from tests.flows import wait_until

ROWS = 12_000
BOUNDARIES = (
    "engine.before_plan",
    "engine.after_plan",
    "engine.after_prepare",
    "lane.before_write",
    "lane.after_write",
    "engine.before_commit",
    "destination.before_publish",
    "destination.in_publish",
    "destination.after_publish",
    "engine.after_commit",
    "engine.after_checkpoint",
)


@pytest.fixture
def delivery(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadedDelivery]:
    """A first load of several chunks, each an epoch of its own."""
    deadly_failpoints(monkeypatch)
    monkeypatch.setattr(intake, "EPOCH_BYTES", 1)
    monkeypatch.setattr(loading, "GROUP_BYTES", 1)
    monkeypatch.setattr(loading, "SPARE_BYTES", 1)
    database.execute("create table big (id int primary key, t text not null)")
    database.execute(f"insert into big select i, repeat(md5(i::text), 31) from generate_series(1, {ROWS}) i")
    database.execute("vacuum analyze big")
    made = LoadedDelivery(database, tmp_path, "files", path=str(tmp_path / "log"))
    made.eager = True
    made.begin_first()
    with made.captured.running():
        yield made
        made.stop()
    failpoints.arm("")


def ids(delivery: LoadedDelivery) -> list[int]:
    return sorted(row["id"] for part in read_changes(delivery.options["path"], "public", "big") for row in part.to_pylist())


def kill(delivery: LoadedDelivery, where: str) -> None:
    """A worker whose loop is killed there; its readers go on until every chunk is read."""
    failpoints.arm(where)
    delivery.start()

    def is_over() -> bool:
        (load,) = delivery.ledger.loads.open("flow")
        return delivery.was_killed and load.state == "delivering"

    wait_until(is_over, 60, f"{where} was not reached")
    delivery.stop()
    delivery.was_killed = False


def planned(delivery: LoadedDelivery) -> list[int]:
    with contextlib.closing(Ledger(ledger_address(delivery.state))) as ledger:
        return [epoch.number for epoch in ledger.planned("flow", "target")]


def test_lanes_have_the_next_chunks_before_the_last_ones_are_committed(delivery: LoadedDelivery) -> None:
    kill(delivery, "engine.before_plan")
    assert planned(delivery) == []
    kill(delivery, "engine.before_commit")
    assert delivery.lanes is not None
    assert [work[0]["epoch"]["number"] for work in delivery.lanes.asked] == [1, 2] == planned(delivery)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.timeout(120)
def test_a_load_killed_at_any_boundary_brings_every_row_once(delivery: LoadedDelivery, boundary: str, count: int) -> None:
    kill(delivery, f"{boundary}:{count}")
    kill(delivery, boundary)
    delivery.start()
    delivery.finish()
    assert ids(delivery) == list(range(1, ROWS + 1))


def test_what_is_being_read_counts_as_read_ahead(delivery: LoadedDelivery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers, and room for one chunk: the second is begun when the first is delivered."""
    monkeypatch.setattr(loading, "AHEAD", 1)
    undelivered: list[int] = []
    begun = 0
    read = ReadersHere.read

    def counted(self: ReadersHere, load: Load, chunks: Sequence[LoadChunk], *about: Any) -> Any:
        nonlocal begun
        begun += len(chunks)
        undelivered.append(begun - len(delivery.ledger.loads.delivered(load.id).get("target", ())))
        return read(self, load, chunks, *about)

    monkeypatch.setattr(ReadersHere, "read", counted)
    delivery.start()
    delivery.finish()
    assert ids(delivery) == list(range(1, ROWS + 1))
    assert len(undelivered) > 3 and set(undelivered) == {1}


def test_files_of_delivered_chunks_are_written_over_and_none_is_left(
    delivery: LoadedDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "AHEAD", 1)
    reused: list[str] = []
    read = ReadersHere.read

    def seen(self: ReadersHere, load: Load, chunks: Sequence[LoadChunk], *about: Any) -> Any:
        reused.extend(about[-1])
        if len(reused) == 1:
            # Whoever gave the file back may be gone, and with it the file.
            chunk_path(delivery.captured.directory, load.id, reused[0]).unlink(missing_ok=True)
        return read(self, load, chunks, *about)

    monkeypatch.setattr(ReadersHere, "read", seen)
    delivery.start()
    delivery.finish()
    assert ids(delivery) == list(range(1, ROWS + 1))
    assert len(reused) >= 2 and len(set(reused)) == len(reused)
    assert chunk_bytes(delivery.captured.directory) in (None, 0)
