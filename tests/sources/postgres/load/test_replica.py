"""A standby that serves reads: waited for, refused when it is none, and exact about what it shows."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import ReadStopped, ReplicaBehind, SourceSettings
from penstock.sources.chunks import never
from penstock.sources.postgres.load import replica
from penstock.sources.postgres.load.hold import BEGIN, Login
from penstock.sources.postgres.load.visibility import contains
from tests.conftest import Database
from tests.sources.postgres.load.loads import Load, loading
from tests.sources.postgres.test_lineage import SETTINGS, Maker, caught_up, standby_of

pytestmark = pytest.mark.slow


@contextmanager
def pair() -> Iterator[tuple[Database, EmbeddedPostgres]]:
    """A primary and its standby."""
    with ExitStack() as stack:

        def make(**more: Any) -> EmbeddedPostgres:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-replica-")))
            return EmbeddedPostgres(place, settings=SETTINGS, **more)

        maker: Maker = make
        with make() as primary:
            primary.run("create table t (id int primary key, xid text default pg_current_xact_id()::text)")
            with standby_of(maker, primary) as standby:
                yield Database(primary, "postgres"), standby


def described(load: Load) -> tuple[set[int], str, set[int]]:
    """What one read of the standby shows, how it describes its snapshot, and what that contains of all there is now."""
    (chunk,) = load.plan()
    path, receipt = load.read(chunk)
    found = {int(x) for b in load.decode(path, load.table("t")) for x in b.rows.column("xid").to_pylist()}
    everything = [int(x) for (x,) in load.database.rows("select distinct xid from t")]
    seen = contains(receipt.described, np.array(everything, np.int64))
    return found, receipt.described, {x for x, s in zip(everything, seen, strict=True) if s}


def ending_in_between(database: Database, standby: EmbeddedPostgres) -> None:
    """A snapshot that a transaction may or may not be in, because it ended while it was taken, is not described."""
    login = Login(standby.dsn(), "flow")
    with login.connect() as connection, database.connect() as older, database.connect() as younger, database.connect() as other:
        asked = replica.Replica(login, "")
        older.execute("begin; insert into t (id) values (-11)")
        younger.execute("begin; insert into t (id) values (-12)")
        other.execute("insert into t (id) values (-13)")
        caught_up(database.server, standby)
        asked.reach(connection, 0, never)
        connection.query(BEGIN)
        ((taken,),) = connection.query("select pg_current_snapshot()::text")
        assert asked.describe(connection, str(taken)) is not None
        younger.execute("commit")
        caught_up(database.server, standby)
        assert asked.describe(connection, str(taken)) is None
        older.execute("rollback")
    caught_up(database.server, standby)


def test_a_standby_serves_chunks_and_says_exactly_what_they_contain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair() as (database, standby):
        caught_up(database.server, standby)
        with loading(database, tmp_path, snapshot_dsn=standby.dsn()) as load:
            ending_in_between(database, standby)
            stop = threading.Event()

            def write(session: int) -> None:
                with psycopg.connect(database.dsn, autocommit=True) as connection:
                    for i in range(100_000):
                        if stop.wait(0.003):
                            return
                        connection.execute(f"insert into t (id) values ({session * 1_000_000 + i})".encode())

            with database.connect() as long, database.connect() as plain:
                long.execute("begin; insert into t (id) values (-1)")
                ((xid,),) = long.execute("select xid from t where id = -1").fetchall()
                plain.execute("insert into t (id) values (-2)")
                caught_up(database.server, standby)
                # What the standby itself says leaves the running transaction out: it would count as contained.
                ((text,),) = standby.run("select pg_current_snapshot()::text")
                assert bool(contains(str(text), np.array([int(xid)]))[0])
                found, exact, seen = described(load)
                assert int(xid) not in found and not contains(exact, np.array([int(xid)]))[0] and found == seen
                threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2)]
                for thread in threads:
                    thread.start()
                try:
                    for _ in range(10):
                        found, _, seen = described(load)
                        assert found == seen
                finally:
                    stop.set()
                    for thread in threads:
                        thread.join()
                long.execute("commit")
            head = load.source.head()
            (chunk,) = load.plan()
            _, receipt = load.read(chunk, after=head)
            assert receipt.position >= head and int(receipt.rows) == database.rows("select count(*) from t")[0][0]
            # A named snapshot is the primary's, whatever the options say.
            held = load.source.hold_snapshot()
            _, shared = load.read(chunk, held.name)
            assert shared.described == held.described
            held.close()
            monkeypatch.setattr(replica, "PATIENCE", 0.5)
            with pytest.raises(ReplicaBehind, match="is needed"):
                load.read(chunk, after=head + (1 << 30))
            with pytest.raises(ReadStopped):
                load.read(chunk, after=head + (1 << 30), stopping=lambda: True)


def test_a_server_that_is_no_replica_is_refused(database: Database, older_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    with loading(database, tmp_path, snapshot_dsn=older_postgres.dsn()) as load:
        (chunk,) = load.plan()
        with pytest.raises(SourceSettings, match="not a replica"):
            load.read(chunk)
    # The primary itself, or a standby that was promoted, is read like any primary.
    with loading(database, tmp_path, snapshot_dsn=database.dsn) as load:
        assert load.rows(load.plan()[0]) == []
