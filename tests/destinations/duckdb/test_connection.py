"""The DuckDB file: who holds it, what stands in its way, and what the operator is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from penstock.destinations.base import Held
from penstock.destinations.duckdb.connection import Connection
from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.errors import DestinationUnwritable
from tests.batches import insert, table, update
from tests.conformance.harness import Harness, work

ONE = table({"id": pa.int64(), "v": pa.string()})


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[Harness]:
    made = Harness("duckdb", tmp_path)
    yield made
    made.close()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the file open."""
    path = str(tmp_path / "target.duckdb")
    code = f"import duckdb, sys; c = duckdb.connect({path!r}); print('open', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def until(claim: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.01)


def can_be_read(path: Path) -> bool:
    """Whether another process can open the file now."""
    code = f"import duckdb; duckdb.connect({str(path)!r}, read_only=True).execute('SELECT 1')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_position_of_an_earlier_version_is_read_and_its_table_grows(duck: Harness, tmp_path: Path) -> None:
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": "a"})]))
    duck.close()
    with duckdb.connect(str(tmp_path / "target.duckdb")) as connection:
        connection.execute("ALTER TABLE penstock.positions DROP COLUMN part")
    assert duck.destination.committed() == Held(1000, 1)
    duck.deliver(2, work(ONE, [update({"id": 1, "v": "b"}, position=1001)]))
    duck.close()
    assert duck.destination.committed() == Held(2000, 2)


def test_a_file_that_is_open_elsewhere_names_the_process(duck: Harness, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(DestinationUnwritable) as refused:
        duck.destination.committed()
    assert refused.value.facts["pid"] == holder.pid
    assert str(holder.pid) in refused.value.message and str(holder.pid) in refused.value.remedy
    (finding,) = duck.destination.check()
    assert not finding.ok and str(holder.pid) in finding.detail
    holder.kill()
    holder.wait()
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": "a"})]))
    assert duck.state(ONE) == {(1,): {"id": 1, "v": "a"}}


def test_an_idle_file_is_released_and_taken_again(tmp_path: Path) -> None:
    duck = Harness("duckdb", tmp_path, release="50ms")
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": "a"})]))
    until(lambda: can_be_read(tmp_path / "target.duckdb"))
    destination = duck.destination
    duck.deliver(2, work(ONE, [insert({"id": 2, "v": "b"}, position=1001)]))
    assert duck.destination is destination
    until(lambda: can_be_read(tmp_path / "target.duckdb"))
    assert len(duck.state(ONE)) == 2


def test_without_release_the_file_stays_ours(tmp_path: Path) -> None:
    duck = Harness("duckdb", tmp_path, release="0ms")
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": "a"})]))
    assert not can_be_read(tmp_path / "target.duckdb")
    duck.close()
    assert can_be_read(tmp_path / "target.duckdb")


def test_a_reader_of_a_released_file_is_waited_for(tmp_path: Path) -> None:
    duck = Harness("duckdb", tmp_path, release="20ms")
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": "a"})]))
    path = tmp_path / "target.duckdb"
    until(lambda: can_be_read(path))
    code = f"import duckdb, time; c = duckdb.connect({str(path)!r}, read_only=True); print('open', flush=True); time.sleep(0.5)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        duck.deliver(2, work(ONE, [insert({"id": 2, "v": "b"}, position=1001)]))
    assert len(duck.state(ONE)) == 2


@pytest.mark.parametrize("content", [b"", b"some text", b"x" * 100_000], ids=["empty", "short", "long"])
def test_a_file_that_is_no_database_is_said_to_be_none(duck: Harness, content: bytes) -> None:
    (duck.home / "target.duckdb").write_bytes(content)
    with pytest.raises(DestinationUnwritable, match="not a DuckDB database"):
        duck.destination.committed()
    assert (duck.home / "target.duckdb").read_bytes() == content


def test_a_path_that_cannot_be_written_is_found_by_the_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    duck = Harness("duckdb", tmp_path, path=str(tmp_path / "file" / "x.duckdb"))
    (finding,) = duck.destination.check()
    assert not finding.ok and finding.code == "destination_unwritable" and finding.remedy
    with pytest.raises(DestinationUnwritable):
        duck.destination.committed()


def test_missing_directories_are_made(tmp_path: Path) -> None:
    duck = Harness("duckdb", tmp_path, path=str(tmp_path / "a" / "b" / "target.duckdb"))
    assert all(finding.ok for finding in duck.destination.check())
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": "a"})]))
    duck.close()
    assert (tmp_path / "a" / "b" / "target.duckdb").exists()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["staging", "commit"])
def test_a_full_disk_loses_nothing(tmp_path: Path, when: str) -> None:
    code = f"""
import os, resource, signal
from pathlib import Path
from penstock.errors import DestinationUnwritable
from tests.batches import insert
from tests.conformance.harness import Harness, work
from tests.destinations.duckdb.test_connection import ONE
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
duck = Harness("duckdb", Path({str(tmp_path)!r}))
duck.deliver(1, work(ONE, [insert({{"id": 1, "v": "a"}})]))
big = work(ONE, [insert({{"id": n, "v": os.urandom(400).hex()}}, position=1001, ordinal=n) for n in range(2, 4000)])
epoch = duck.epoch(2)
limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
if {when!r} == "staging":
    limit()
try:
    receipts = duck.write(epoch, big)
    limit()
    duck.destination.commit(epoch, receipts)
except DestinationUnwritable as error:
    print("refused", duck.destination.committed().position)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == "refused 1000\n", done.stderr
    duck = Harness("duckdb", tmp_path)
    assert duck.destination.committed() == Held(1000, 1)
    duck.destination.abort(duck.epoch(2))
    duck.deliver(2, work(ONE, [insert({"id": 2, "v": "b"}, position=1001)]))
    assert duck.state(ONE) == {(1,): {"id": 1, "v": "a"}, (2,): {"id": 2, "v": "b"}}


def test_errors_never_show_values(duck: Harness) -> None:
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": "a"})]))
    duck.close()
    with duckdb.connect(str(duck.home / "target.duckdb")) as connection:
        connection.execute("ALTER TABLE public.orders ALTER v TYPE INTEGER USING 1")
    epoch = duck.epoch(2)
    receipts = duck.write(epoch, work(ONE, [insert({"id": 2, "v": "s3cret"}, position=1001)]))
    with pytest.raises(Exception, match="refused a value") as refused:
        duck.destination.commit(epoch, receipts)
    assert not re.search("s3cret", f"{refused.value}{getattr(refused.value, 'facts', '')}")
    assert duck.destination.committed() == Held(1000, 1)


@pytest.mark.slow
def test_a_small_epoch_does_not_rewrite_a_big_table(tmp_path: Path) -> None:
    schema = table({"id": pa.int64(), **{f"c{n}": pa.string() for n in range(8)}, "big": pa.string()})
    duck = Harness("duckdb", tmp_path, release="0ms")
    duck.destination.prepare([schema])
    with duck.destination._connection.use() as connection:  # type: ignore[attr-defined]
        cells = ", ".join(["repeat(md5(i::VARCHAR), 2)"] * 9)
        connection.execute(f"INSERT INTO public.orders SELECT i, {cells} FROM range(150000) AS r(i)")
        connection.execute("CHECKPOINT")
    news = {f"c{n}": "new" for n in range(8)}
    duck.deliver(1, work(schema, [update({"id": n * 300, **news}, position=10, ordinal=n) for n in range(500)]))
    assert (tmp_path / "target.duckdb.wal").stat().st_size > 0, "the commit was followed by a checkpoint"
    duck.close()


def test_a_long_log_is_folded_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.destinations.duckdb.connection._LOG_BYTES", 10_000)
    duck = Harness("duckdb", tmp_path, release="0ms")
    log = tmp_path / "target.duckdb.wal"
    sizes = []
    for number in range(1, 30):
        duck.deliver(number, work(ONE, [insert({"id": number, "v": os.urandom(500).hex()}, position=number * 1000)]))
        sizes.append(log.stat().st_size if log.exists() else 0)
    assert max(sizes) < 20_000 and len(set(sizes)) > 2


def test_nothing_is_drawn_on_standard_output(duck: Harness) -> None:
    connection = Connection(DuckDBOptions(path=str(duck.home / "target.duckdb")))
    with connection.use() as session:
        assert session.execute("SELECT current_setting('enable_progress_bar')").fetchone() == (False,)
    connection.close()
