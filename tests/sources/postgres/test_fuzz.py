"""Hostile bytes in a process of its own, whose kernels check every index: an error of ours or a sound result."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.sources.postgres
from penstock.embedded.cache import cache_directory
from tests.conftest import Database
from tests.sources.postgres.captured import Captured

TARGETS = ("decoder", "relation", "copy", "value", "assembly")
SECONDS = float(os.environ.get("PENSTOCK_FUZZ_SECONDS", "4"))
"""For each target."""
SEED = int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(1 << 32))
COMPILING = 200

MADE = """
create table t (id int primary key, a int2, b int8, n numeric(12,2), f float8, ok bool, d date, at timestamptz, r bytea, v text);
create table c (x int, y text, v text, primary key (x, y));
create table f (id int primary key, v text, m money);
create table big (id int primary key, v int, w text);
alter table f replica identity full; alter table f alter v set storage external; alter table big alter w set storage external
"""
WORK = (
    "insert into t select g, g, g, g / 3.0, g / 7.0, g % 2 = 0, '2024-01-01', 'infinity', '\\x00ff', repeat('v', g)"
    " from generate_series(1, 20) g",
    "insert into t (id) values (100); update t set a = 1 where id < 5; delete from t where id = 7",
    "update t set id = 101 where id = 100",
    "insert into c values (1, 'a', 'v'), (2, 'b', null); update c set y = 'z' where x = 1; delete from c where x = 2",
    "insert into f values (1, repeat('x', 3000), 5); update f set m = 6; update f set id = 2; delete from f",
    "insert into big values (1, 1, repeat('y', 3000)); update big set v = 2; truncate big, c",
    "begin; insert into t (id) values (200); alter table t add column extra int; insert into t values (201); commit",
    "update t set extra = 5 where id > 100; select pg_logical_emit_message(true, 'outbox', 'content')",
    "select pg_logical_emit_message(false, 'outbox', ''); begin; savepoint a; insert into c select g, 'g', repeat('s', 900)"
    " from generate_series(1, 200) g; rollback to a;"
    " insert into c select -g, 'g', repeat('s', 900) from generate_series(1, 200) g; commit",
)


@pytest.mark.slow
def test_hostile_bytes_give_an_error_of_ours_or_a_sound_result(database: Database, tmp_path: Path) -> None:
    database.execute(MADE)
    # Streamed, because a little is already more than the server keeps in memory here.
    database.execute(f"alter role postgres in database {database.name} set logical_decoding_work_mem = '64kB'")
    with Captured(database, tmp_path / "journal").running() as captured:
        for statement in WORK:
            database.execute(statement)
        captured.drain()
    progress = tmp_path / "progress"
    given = [str(tmp_path / "journal"), ",".join(TARGETS), str(SEED), str(SECONDS), str(progress)]
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(_cache()), "PYTHONFAULTHANDLER": "1"}
    limit = SECONDS * len(TARGETS) + COMPILING
    try:
        command = [sys.executable, "-m", "tests.sources.postgres.fuzz", *given]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        pytest.fail(f"PENSTOCK_SEED={SEED}: {progress.read_text().strip()} does not end")
    sys.stdout.write(f"PENSTOCK_SEED={SEED}\n{done.stdout}")
    assert done.returncode == 0, f"PENSTOCK_SEED={SEED}: {progress.read_text().strip()}\n{done.stderr}"


def _cache() -> Path:
    """A cache for these very kernels: numba does not see that a function which another file's kernel calls has changed."""
    home = Path(penstock.sources.postgres.__path__[0])
    sources = b"".join(path.read_bytes() for path in sorted(home.rglob("*.py")))
    return cache_directory("numba-checked") / hashlib.sha256(sources).hexdigest()[:16]
