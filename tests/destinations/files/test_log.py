"""The change log in files: same names and bytes on every replay, whole epochs by manifest, nothing half-written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.core.epoch import Epoch
from penstock.destinations.base import Held
from penstock.destinations.files import writer as files_writer
from penstock.destinations.files.manifest import Manifests
from penstock.destinations.files.options import FilesOptions
from penstock.destinations.files.reader import read_changes
from penstock.errors import DestinationFailed, DestinationUnwritable, SchemaRefused
from tests.batches import Change, batch, delete, insert, move, table, truncate, update
from tests.conformance.deliver import FIRST, SECOND
from tests.conformance.harness import Harness, Work, work
from tests.table_model import ONE, TWO, shared_out

ROWS = [insert({"id": n, "v": n, "big": "x" * 500, "large": str(n)}, position=10, ordinal=n) for n in range(1, 200)]


def published(home: Path) -> dict[str, bytes]:
    root = home / "log"
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.*")) if p.suffix in (".parquet", ".json")}


def seen(harness: Harness, schema: Any = ONE) -> list[tuple[str, int]]:
    return [(change["__op"], change["id"]) for change in harness.changes(schema)]


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_replay_gives_the_same_names_and_the_same_bytes(tmp_path: Path, format: str) -> None:
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        harness = Harness("files", home, format=format)
        harness.deliver(1, FIRST)
        harness.deliver(2, SECOND)
    assert published(homes[0]) == published(homes[1])


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_changes_can_be_read_back_in_every_format(tmp_path: Path, format: str) -> None:
    harness = Harness("files", tmp_path, format=format)
    harness.deliver(1, work(ONE, [*ROWS[:2], update({"id": 1, "v": 5}, position=10, ordinal=300)]))
    harness.deliver(2, work(ONE, [delete({"id": 2}, position=1001), *move({"id": 1}, {"id": 9, "v": 1}, position=1002)]))
    assert seen(harness) == [("insert", 1), ("insert", 2), ("update", 1), ("delete", 2), ("update", 9)]
    later = [row["__op"] for part in read_changes(tmp_path / "log", "public", "orders", after=1000) for row in part.to_pylist()]
    assert later == ["delete", "update"]


def test_a_file_made_ahead_is_used_or_replaced_and_never_left(tmp_path: Path) -> None:
    """By the lane that rests between epochs, also when a recovery has cleared it away meanwhile."""
    staging = tmp_path / "log" / "_staging" / "flow.files"
    harness = Harness("files", tmp_path)
    lane = harness.writer()
    lane.rest()
    assert not staging.exists()
    for number, lost in ((1, False), (2, False), (3, True)):
        epoch = harness.epoch(number)
        receipt = lane.write(epoch, 0, iter([batch(ONE, [insert({"id": number, "v": 1, "big": "", "large": ""}, position=1)])]))
        assert [p.name for p in staging.iterdir()] == [receipt["files"][0]["staged"]]
        harness.destination.commit(epoch, [receipt])
        lane.rest()
        assert [p.name[:7] for p in staging.iterdir()] == [".spare."]
        if lost:
            harness.destination.committed()
            assert not list(staging.iterdir())
    lane.write(harness.epoch(5), 0, iter([batch(ONE, ROWS[:1])]))
    lane.rest()
    lane.close()
    assert len(list(staging.iterdir())) == 1


def test_files_lie_where_the_specification_says(tmp_path: Path) -> None:
    harness = Harness("files", tmp_path)
    harness.deliver(1, FIRST)
    name = f"{1000:016X}-000000000001-0000-000001-0000.parquet"
    assert (tmp_path / "log" / "public" / "orders" / name).exists()
    assert (tmp_path / "log" / "public" / "lines" / name).exists()
    found = duckdb.sql(f"SELECT count(*), min(__op) FROM '{tmp_path}/log/public/orders/*.parquet'").fetchall()
    assert found == [(5, "insert")]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_a_file_that_is_full_is_followed_by_another(tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.formats.parquet._GROUP_BYTES", 10_000)
    harness = Harness("files", tmp_path, max_file_bytes="20KiB", compression=compression)
    harness.deliver(1, work(ONE, ROWS), cuts=range(0, 200, 10))
    names = [Path(name).name for name in published(tmp_path) if name.endswith(".parquet")]
    assert names == [f"{1000:016X}-000000000001-0000-000001-{n:04d}.parquet" for n in range(len(names))]
    assert len(names) > 2
    assert seen(harness) == [("insert", n) for n in range(1, 200)]


def test_memory_is_bounded_over_all_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_writer, "_MOST_BUFFERED", 50_000)
    monkeypatch.setattr(files_writer, "_MOST_OPEN", 3)
    tables = [table({"id": pa.int64(), "v": pa.string()}, name=f"t{n}") for n in range(8)]
    changes = [insert({"id": n, "v": "x" * 1000}, position=10, ordinal=n) for n in range(1, 30)]
    harness = Harness("files", tmp_path)
    interleaved: Work = [(schema, [[change]]) for change in changes for schema in tables]
    harness.deliver(1, interleaved)
    for schema in tables:
        assert seen(harness, schema) == [("insert", n) for n in range(1, 30)]


def test_truncate_is_logged_once(tmp_path: Path) -> None:
    harness = Harness("files", tmp_path)
    harness.deliver(1, [(ONE, shared_out(ONE, [*ROWS[:5], truncate(position=11)], 3))])
    assert [op for op, _ in seen(harness)].count("truncate") == 1


def test_tables_without_a_key_and_empty_epochs_are_logged(tmp_path: Path) -> None:
    keyless = table({"id": pa.int64()}, key=())
    harness = Harness("files", tmp_path)
    harness.deliver(1, work(keyless, [insert({"id": 1}, position=10), delete({"id": 1}, position=11)]))
    harness.deliver(2, [])
    assert seen(harness, keyless) == [("insert", 1), ("delete", 1)]
    assert harness.destination.committed() == Held(2000, 2)


def test_what_a_crash_left_published_is_replaced_and_never_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.formats.parquet._GROUP_BYTES", 1)
    harness = Harness("files", tmp_path, max_file_bytes="1B")
    epoch = harness.epoch(1)
    harness.destination.prepare([ONE])
    receipts = harness.write(epoch, work(ONE, ROWS), cuts=[50, 100])
    # The crash came after the renames and before the manifest; then the operator changed an option.
    harness.destination._publish(epoch, receipts)  # type: ignore[attr-defined]
    left = {name for name in published(tmp_path) if name.endswith(".parquet")}
    assert len(left) == 2
    harness = Harness("files", tmp_path)
    assert harness.destination.committed() is None
    harness.destination.abort(epoch)
    assert {name for name in published(tmp_path) if name.endswith(".parquet")} == left, "no row vanishes meanwhile"
    harness.deliver(1, work(ONE, ROWS))
    assert len([name for name in published(tmp_path) if name.endswith(".parquet")]) == 1
    assert seen(harness) == [("insert", n) for n in range(1, 200)]


def test_a_commit_that_was_interrupted_can_be_called_again(tmp_path: Path) -> None:
    harness = Harness("files", tmp_path)
    harness.destination.prepare([ONE, TWO])
    receipts = harness.write(harness.epoch(1), FIRST)
    harness.destination._publish(harness.epoch(1), receipts)  # type: ignore[attr-defined]
    harness.destination.commit(harness.epoch(1), receipts)
    assert len(seen(harness)) == 5


def test_what_an_earlier_version_left_without_a_manifest_is_replaced_and_what_it_committed_is_not(tmp_path: Path) -> None:
    harness = Harness("files", tmp_path)
    harness.destination.prepare([ONE])
    directory = tmp_path / "log" / "public" / "orders"
    # Earlier versions named a file by its position only: one of each epoch, and an attempt at the second that died.
    committed, left = (directory / f"{upto:016X}-0000-000001-0000.parquet" for upto in (1000, 2000))
    receipts = harness.write(harness.epoch(1), work(ONE, ROWS[:1]))
    harness.destination.commit(harness.epoch(1), receipts)
    newer = directory / f"{1000:016X}-000000000001-0000-000001-0000.parquet"
    newer.rename(committed)
    page = next(tmp_path.rglob("_manifests/*/*.jsonl"))
    page.write_text(page.read_text().replace(newer.name, committed.name))
    left.write_bytes(committed.read_bytes())
    staged = tmp_path / "log" / "_staging" / "flow.files" / f".{2000:016X}.0123456789abcdef.000000.tmp"
    staged.write_bytes(b"")
    harness.close()
    assert harness.destination.committed() == Held(1000, 1) and not staged.exists()
    harness.destination.abort(harness.epoch(2, at=1000))
    harness.deliver(2, work(ONE, ROWS[1:2]), at=1000)
    harness.destination.abort(Epoch("flow", "files", "src1", 3, 1000, 2000, 1, 1))
    harness.destination.commit(Epoch("flow", "files", "src1", 3, 1000, 2000, 1, 1), [])
    assert committed.exists() and not left.exists()
    assert seen(harness) == [("insert", 1), ("insert", 2)]


def test_two_flows_do_not_share_a_directory(tmp_path: Path) -> None:
    Harness("files", tmp_path).deliver(1, FIRST)
    other = Harness("files", tmp_path)
    other.place = type(other.place)("another", "files", tmp_path / "staging2")
    with pytest.raises(SchemaRefused, match="flow flow"):
        other.destination.prepare([ONE])


def manifest_line(upto: int) -> bytes:
    about = {"flow": "f", "destination": "d", "source": "s", "epoch": 1, "generation": 1, "after": 0, "upto": upto, "files": []}
    return json.dumps(about).encode() + b"\n"


def test_the_newest_position_is_the_last_whole_line(tmp_path: Path) -> None:
    home = tmp_path / "_manifests" / "f.d"
    home.mkdir(parents=True)
    for page in range(3):
        (home / f"{page:09X}.jsonl").write_bytes(b"".join(manifest_line((page << 28) + n) for n in range(2000)))
    manifests = Manifests(tmp_path, "f", "d")
    newest = manifests.newest()
    assert newest is not None and newest.upto == (2 << 28) + 1999
    (home / f"{3:09X}.jsonl").write_bytes(manifest_line(3 << 28)[:-1])
    newest = manifests.newest()
    assert newest is not None and newest.upto == (2 << 28) + 1999, "a line without its end was never committed"
    assert len(list(manifests)) == 6000


@pytest.mark.parametrize("cut", [0, 1, 60, -1])
def test_a_manifest_cut_off_by_a_crash_is_no_commit_and_is_written_again(tmp_path: Path, cut: int) -> None:
    harness = Harness("files", tmp_path)
    harness.deliver(1, work(ONE, ROWS[:1]))
    page = next(tmp_path.rglob("_manifests/*/*.jsonl"))
    whole = page.read_bytes()
    harness.deliver(2, work(ONE, [update({"id": 1, "v": 2}, position=1001)]))
    both = page.read_bytes()
    page.write_bytes(whole + both[len(whole) : len(both) + cut] if cut < 0 else both[: len(whole) + cut])
    harness = Harness("files", tmp_path)
    assert harness.destination.committed() == Held(1000, 1)
    harness.destination.abort(harness.epoch(2))
    harness.deliver(2, work(ONE, [update({"id": 1, "v": 2}, position=1001)]))
    assert page.read_bytes() == both
    assert len(seen(harness)) == 2


def test_an_epoch_of_one_file_costs_three_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness("files", tmp_path)
    harness.deliver(1, work(ONE, ROWS[:1]))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    harness.destination.prepare([ONE])
    harness.deliver(2, work(ONE, [update({"id": 1, "v": 2}, position=1001)]))
    # The file, its directory, the manifest's line.
    assert len(synced) == 3


def test_nothing_unsynced_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rename into sight is of a file whose bytes have been synced since it was last written."""
    harness = Harness("files", tmp_path)
    durable: set[int] = set()
    real_sync, real_rename, real_replace = os.fsync, os.rename, os.replace

    def sync(handle: int) -> None:
        real_sync(handle)
        durable.add(os.fstat(handle).st_ino)

    def rename(source: Any, target: Any) -> None:
        assert os.stat(source).st_ino in durable, source
        (real_rename if str(source).endswith("arrow") else real_replace)(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", rename)
    harness.deliver(1, FIRST)
    harness.deliver(2, SECOND)
    assert len(seen(harness)) > 5


def test_a_staged_file_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    harness = Harness("files", tmp_path)
    harness.destination.prepare([ONE, TWO])
    receipts = harness.write(harness.epoch(1), FIRST)
    for path in (tmp_path / "log" / "_staging").rglob("*.tmp"):
        path.unlink()
    with pytest.raises(DestinationFailed):
        harness.destination.commit(harness.epoch(1), receipts)
    assert harness.destination.committed() is None


def test_a_path_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    harness = Harness("files", tmp_path)
    (finding,) = harness.destination.check()
    assert not finding.ok and finding.code == "destination_unwritable" and finding.remedy
    with pytest.raises(DestinationUnwritable):
        harness.destination.prepare([ONE])
    with pytest.raises(DestinationUnwritable):
        harness.write(harness.epoch(1), FIRST)


@pytest.mark.slow
def test_a_full_disk_shows_nothing_half_written(tmp_path: Path) -> None:
    code = f"""
import os, resource, signal
from pathlib import Path
from penstock.errors import DestinationUnwritable
from tests.batches import insert
from tests.conformance.harness import Harness, work
from tests.table_model import ONE
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
harness = Harness("files", Path({str(tmp_path)!r}))
rows = [insert({{"id": n, "v": n, "big": os.urandom(400).hex(), "large": ""}}, ordinal=n) for n in range(2000)]
harness.destination.prepare([ONE])
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    harness.deliver(1, work(ONE, rows))
except DestinationUnwritable as error:
    print(error.code)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == "destination_unwritable\n", done.stderr
    assert not list((tmp_path / "log" / "public").rglob("*.parquet"))
    harness = Harness("files", tmp_path)
    harness.destination.abort(harness.epoch(1))
    harness.deliver(1, work(ONE, ROWS[:3]))
    assert len(seen(harness)) == 3


def test_an_unknown_format_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ValueError, match="installed: json, parquet"):
        FilesOptions(path="x", format="csv")


def test_counted_rows_leave_out_the_halves_of_key_changes(tmp_path: Path) -> None:
    harness = Harness("files", tmp_path)
    changes: list[Change] = [*ROWS[:2], *move({"id": 1}, {"id": 9, "v": 1}, position=11)]
    receipt = harness.writer().write(harness.epoch(1), 0, iter([batch(ONE, changes)]))
    assert receipt["rows"] == 3 and receipt["tables"] == {"public.orders": 3}
    assert receipt["bytes"] > 0
