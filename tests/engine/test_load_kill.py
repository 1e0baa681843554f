"""A worker that is killed in the middle of a first load: the next one reads what is left, and no finished chunk again."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.conftest import Database
from tests.flows import FlowUnderTest, source_rows, wait_until

ROWS = 24_000
KILLED_AT = 0.7
MOST_AGAIN = 0.35


def _read_chunks(flow: FlowUnderTest) -> tuple[int, int]:
    """How many chunks the ledger has as read, and how many there are."""
    path = flow.state / "ledger.db"
    if not path.exists():
        return 0, 0
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
        try:
            found = connection.execute(
                "select state = 'read', count(*) from load_chunks where state <> 'gone' group by 1"
            ).fetchall()
        except sqlite3.OperationalError:
            return 0, 0
    counts = dict(found)
    return counts.get(1, 0), sum(counts.values())


def _tuples_read(database: Database) -> int:
    """Rows of the table that the server says it has read, whatever by; sessions tell their share at the latest when they end."""
    ours = "select 1 from pg_stat_activity where datname = current_database() and application_name like 'penstock %'"
    wait_until(lambda: not database.rows(ours), 60, "sessions of the worker are left")
    return int(database.rows("select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relname = 'big'")[0][0])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_first_load_is_finished_by_the_next_worker_and_no_finished_chunk_is_read_again(
    database: Database, tmp_path: Path
) -> None:
    database.execute("create table big (id int primary key, v int not null, t text not null)")
    database.execute(f"insert into big select i, 0, repeat(md5(i::text), 31) from generate_series(1, {ROWS}) i")
    database.execute("vacuum analyze big")
    before = _tuples_read(database)
    pace: dict[str, Any] = {"snapshot": "initial", "snapshot_chunk": "1MiB", "snapshot_workers": 2, "snapshot_rate": "10MiB"}
    flow = FlowUnderTest(database, tmp_path, parallelism=1, **pace)
    process = flow.start()

    def is_far() -> bool:
        assert process.poll() is None, flow.output()
        read, count = _read_chunks(flow)
        return count > 0 and read >= KILLED_AT * count

    wait_until(is_far, 120, f"the load does not come so far: {flow.output()}")
    flow.kill()
    read, count = _read_chunks(flow)
    assert count >= 20 and read < count, "there is nothing left to resume"
    first = _tuples_read(database) - before
    assert first >= KILLED_AT * ROWS, "the server does not count these reads"

    # Rows of chunks that are read, of others, and between them.
    database.execute("update big set v = v + 1 where id % 500 = 0; delete from big where id % 501 = 0")
    database.execute(f"update big set id = id + {ROWS} where id % 997 = 0; insert into big values (0, 7, 'new')")
    own = _tuples_read(database) - before - first
    flow.run_out()
    again = _tuples_read(database) - before - first - own
    assert again < MOST_AGAIN * ROWS, f"{again} of {ROWS} rows were read again after {read} of {count} chunks"
    with contextlib.closing(duckdb.connect(str(flow.duckdb), read_only=True)) as connection:
        assert connection.execute("select * from public.big order by id").fetchall() == source_rows(database, "big", "id")
