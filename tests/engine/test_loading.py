"""Loads: under changes of the very rows that are read, every destination ends as the source, and no row goes back in time."""

from __future__ import annotations

import contextlib
import itertools
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from penstock.destinations.files.reader import read_changes
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine import loading
from penstock.errors import LoadMissing, LoadTooLarge
from penstock.ledger.loads import Load, LoadChunk
from penstock.observe import failpoints
from tests.conftest import Database
from tests.destinations.postgres import subject as target
from tests.engine.delivery import deadly_failpoints
from tests.engine.loads import LoadedDelivery
from tests.flows import SCHEMA, load, source_rows, wait_until
from tests.sources.postgres.test_lineage import SETTINGS, standby_of

TABLES = (("accounts", "id"), ("lines", "a, b"), ('"We""ird; table"', '"Id"'), ("steps", "n"))
FILL = """
insert into accounts select i, 0, i / 7.0, repeat(md5(i::text), 90), now() from generate_series(0, 299) i;
insert into lines select i % 40, 'b' || i % 5, i from generate_series(0, 39) i on conflict do nothing;
insert into "We""ird; table" select i, 'x' from generate_series(0, 299) i;
insert into steps values (0)
"""


KINDS = ("duckdb", "files", "postgres")


@pytest.fixture
def filled(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    # Chunks are small here: files are written over all the same.
    monkeypatch.setattr(loading, "SPARE_BYTES", 1)
    database.execute(SCHEMA)
    database.execute(FILL)
    return database


@contextlib.contextmanager
def delivering(database: Database, directory: Path, kind: str, *, first: bool, lanes: int = 2) -> Iterator[LoadedDelivery]:
    places = {"duckdb": {"path": str(directory / "t.duckdb")}, "files": {"path": str(directory / "log")}}
    place = places[kind] if kind in places else target.options(directory)
    made = LoadedDelivery(database, directory, kind, lanes, **place)
    if first:
        made.begin_first()
    with made.captured.running():
        try:
            yield made
        finally:
            made.stop()


def final_rows(delivery: LoadedDelivery, table: str, key: str) -> list[tuple[Any, ...]]:
    """What the destination holds, or what its log adds up to."""
    if delivery.kind == "duckdb":
        with contextlib.closing(duckdb.connect(delivery.options["path"], read_only=True)) as connection:
            connection.execute("set timezone = 'UTC'")
            found = connection.execute(f"select * from public.{table} order by {key}").to_arrow_table().to_pylist()
        return [tuple(row.values()) for row in found]
    if delivery.kind == "postgres":
        return target.asked(delivery.directory, f"select * from public.{table} order by {key}")
    return log_state(Path(delivery.options["path"]), table, key)


def log_state(path: Path, table: str, key: str) -> list[tuple[Any, ...]]:
    """The change log of a table, applied in the order in which it stands."""
    name = table.strip('"').replace('""', '"')
    keys = [k.strip().strip('"') for k in key.split(",")]
    state: dict[tuple[Any, ...], dict[str, Any]] = {}
    for batch in read_changes(path, "public", name):
        for row in batch.to_pylist():
            op, before, unchanged = row["__op"], row["__before"], set(row["__unchanged"] or ())
            own = {k: v for k, v in row.items() if not k.startswith("__")}
            at = tuple(own[k] for k in keys)
            old = tuple(before[k] for k in keys) if before is not None and op == "update" else at
            if op == "truncate":
                state.clear()
                continue
            base = state.pop(old, {})
            if op == "delete":
                continue
            if unchanged:
                assert base, f"{name} {at}: an update leaves out {unchanged}, and nothing is known of the row"
            state[at] = {k: base[k] if k in unchanged else v for k, v in own.items()}
    return [tuple(row.values()) for _, row in sorted(state.items())]


def assert_equal(delivery: LoadedDelivery, tables: tuple[tuple[str, str], ...] = TABLES) -> None:
    for table, key in tables:
        expected = sorted(source_rows(delivery.database, table, key), key=str)
        found = sorted(final_rows(delivery, table, key), key=str)
        missing, surplus = [r for r in expected if r not in found], [r for r in found if r not in expected]
        assert found == expected, f"{table}: missing {str(missing)[:300]}, surplus {str(surplus)[:300]}"


@pytest.mark.parametrize("kind", ["duckdb", "files"])
@pytest.mark.timeout(300)
def test_a_first_load_under_changes_ends_as_the_source(filled: Database, tmp_path: Path, kind: str) -> None:
    with delivering(filled, tmp_path, kind, first=True) as delivery, load(filled, seed=5):
        delivery.start()
        wait_until(lambda: not delivery.ledger.loads.open("flow"), 120, "the load does not end")
    # The load's writer has ended; what it wrote last is delivered.
    with delivery.captured.running():
        delivery.start()
        delivery.finish()
        delivery.stop()
    assert_equal(delivery)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [s if s < 3 else pytest.param(s, marks=pytest.mark.chaos) for s in range(20)])
def test_first_loads_and_backfills_end_as_the_source_on_random_schedules(
    filled: Database, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are killed at random boundaries, snapshots are lost with them, and backfills run under the same changes."""
    deadly_failpoints(monkeypatch)
    run_schedule(filled, tmp_path, seed, KINDS[seed % len(KINDS)])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.chaos) for kind in KINDS[1:])])
def test_commits_that_the_journal_has_before_a_snapshot_sees_them_are_not_lost(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synchronous standby that applies late keeps every commit from being seen for a while after the log has it."""
    deadly_failpoints(monkeypatch)
    with ExitStack() as stack:

        def make(**more: Any) -> EmbeddedPostgres:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-lagging-")))
            return EmbeddedPostgres(place, settings=SETTINGS, **more)

        primary = stack.enter_context(make())
        database = Database(primary, "postgres")
        database.execute(SCHEMA)
        database.execute(FILL)
        stack.enter_context(standby_of(make, primary, recovery_min_apply_delay="120ms"))
        wait_until(lambda: database.rows("select 1 from pg_stat_replication where state = 'streaming'") != [], 30, "no standby")
        primary.run("alter database postgres set synchronous_commit = 'remote_apply'")
        primary.run("alter system set synchronous_standby_names = '*'")
        primary.run("select pg_reload_conf()")
        run_schedule(database, tmp_path, 5, kind)
        # Before the standby goes: whoever waits for it would wait for ever.
        primary.run("alter system set synchronous_standby_names = ''")
        primary.run("select pg_reload_conf()")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_commit_that_no_snapshot_sees_yet_wins_over_the_row_that_is_read(tmp_path: Path) -> None:
    """It waits for a standby that there is not, so it is in the journal, and at the destination, when the table is read."""
    settings = {"fsync": "off", "synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    with EmbeddedPostgres(settings=settings) as server, psycopg.connect(server.dsn(), autocommit=True) as waiting:
        database = Database(server, "postgres")
        database.execute(SCHEMA)
        database.execute(FILL)
        waiting.execute("set synchronous_commit = on")
        update = threading.Thread(target=waiting.execute, args=("update accounts set v = 77 where id = 5",))
        with delivering(database, tmp_path, "files", first=True) as delivery:

            def version() -> Any:
                return {row[0]: row[1] for row in final_rows(delivery, "accounts", "id")}[5]

            delivery.start()
            delivery.finish()
            update.start()
            try:
                wait_until(lambda: version() == 77, 20, "the change does not arrive")
                delivery.backfill("accounts")
                wait_until(lambda: not delivery.ledger.loads.open("flow"), 30, "the load does not end")
                assert version() == 77
            finally:
                database.execute("select pg_cancel_backend(%s)", waiting.info.backend_pid)
                update.join(30)
            delivery.finish()
            assert_equal(delivery)


def run_schedule(database: Database, directory: Path, seed: int, kind: str) -> None:
    """A first load, six workers, backfills and a constant load of changes, as the seed has it."""
    chance = random.Random(seed)
    points = ["engine.after_plan", "engine.before_commit", "engine.after_commit", "engine.after_checkpoint", "lane.before_write"]
    with delivering(database, directory, kind, first=True, lanes=chance.choice((1, 2))) as delivery:
        with load(database, seed=seed, pause=0.002):
            for turn in range(6):
                delivery.most = chance.choice((0, 1, 2, 3, None))
                failpoints.arm(f"{chance.choice(points)}:{chance.randrange(1, 6)}" if turn < 5 and chance.random() < 0.7 else "")
                delivery.was_killed = False
                loop = delivery.start()
                if turn >= 2:
                    delivery.backfill("accounts", "lines")
                end = len(delivery.readers.read_chunks) + chance.randrange(1, 8)
                with contextlib.suppress(AssertionError):
                    wait_until(
                        lambda end=end, loop=loop: (  # type: ignore[misc]
                            delivery.was_killed or len(delivery.readers.read_chunks) >= end or loop.error is not None
                        ),
                        chance.uniform(0.5, 4.0),
                        "",
                    )
                assert loop.error is None, loop.error
                delivery.stop()
        failpoints.arm("")
        delivery.most, delivery.was_killed = None, False
        delivery.start()
        delivery.finish(240)
        delivery.stop()
        assert_equal(delivery)


@pytest.mark.timeout(300)
def test_a_backfill_mends_what_the_destination_has_lost(filled: Database, tmp_path: Path) -> None:
    with delivering(filled, tmp_path, "duckdb", first=True) as delivery:
        delivery.start()
        delivery.finish()
        delivery.stop()
        with contextlib.closing(duckdb.connect(delivery.options["path"])) as connection:
            connection.execute("delete from public.accounts where id < 100")
        with load(filled, seed=9):
            delivery.start()
            delivery.backfill("accounts")
            wait_until(lambda: not delivery.ledger.loads.open("flow"), 120, "the load does not end")
        delivery.finish()
        delivery.stop()
        assert_equal(delivery)


@pytest.mark.timeout(300)
def test_a_backfill_where_takes_only_such_rows(filled: Database, tmp_path: Path) -> None:
    with delivering(filled, tmp_path, "files", first=False) as delivery:
        delivery.start()
        delivery.backfill("accounts", where="id % 10 = 3")
        delivery.finish()
        delivery.stop()
        assert [row[0] for row in final_rows(delivery, "accounts", "id")] == list(range(3, 300, 10))


@pytest.mark.timeout(300)
def test_no_row_goes_back_in_time_or_is_seen_half_filled_while_it_is_loaded(filled: Database, tmp_path: Path) -> None:
    """After every commit of the destination versions have only grown, and the big column is there."""
    seen: dict[int, int] = {}
    troubles: list[str] = []
    with delivering(filled, tmp_path, "files", first=True) as delivery:
        done = threading.Event()

        def write() -> None:
            with psycopg.connect(filled.dsn, autocommit=True) as writer:
                for i in itertools.count():
                    writer.execute("update accounts set v = v + 1 where id = %s", (i % 300,))
                    if done.is_set():
                        return

        thread = threading.Thread(target=write)
        thread.start()
        try:
            delivery.start()
            wait_until(lambda: not delivery.ledger.loads.open("flow"), 120, "the load does not end")
            delivery.backfill("accounts")
            wait_until(lambda: not delivery.ledger.loads.open("flow"), 120, "the load does not end")
        finally:
            done.set()
            thread.join()
        delivery.finish()
        delivery.stop()
        for batch in read_changes(Path(delivery.options["path"]), "public", "accounts"):
            for row in batch.select(["__op", "__unchanged", "id", "v", "big"]).to_pylist():
                number, version = row["id"], row["v"]
                if row["big"] is None and (number not in seen or "big" not in row["__unchanged"]):
                    troubles.append(f"{number} is half-filled")
                if version < seen.get(number, -1):
                    troubles.append(f"{number} went back from {seen[number]} to {version} by {row['__op']}")
                seen[number] = version
        assert not troubles, troubles[:5]
        assert len(seen) == 300
        assert_equal(delivery, (("accounts", "id"),))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "how"), [("duckdb", "by command"), ("duckdb", "again"), ("files", "by pattern"), ("duckdb", "by hand")]
)
def test_a_table_that_joins_goes_over_to_the_stream_without_gap_or_overlap(
    filled: Database, tmp_path: Path, kind: str, how: str
) -> None:
    """Also one that the flow once had and that was left out since: what is gone from the source meanwhile goes."""
    had_before = how == "again"

    def make() -> None:
        filled.execute("create table late (id int primary key, v int, big text); alter table late alter big set storage external")
        filled.execute("insert into late select i, 0, repeat(md5(i::text), 90) from generate_series(1, 300) i")

    if had_before:
        make()
    done = threading.Event()

    def write() -> None:
        chance = random.Random(3)
        with psycopg.connect(filled.dsn, autocommit=True) as writer:
            while not done.is_set():
                number = chance.randrange(1, 400)
                writer.execute("update late set v = v + 1 where id = %s", (number,))
                writer.execute("insert into late values (%s, 0, 'x') on conflict do nothing", (number,))
                writer.execute("delete from late where id = %s", (chance.randrange(1, 400),))
                writer.execute("update late set id = id + 1000 where id = %s", (chance.randrange(1, 400),))
                writer.execute("delete from late where id > 1000")

    with delivering(filled, tmp_path, kind, first=True) as delivery:
        publication = delivery.captured.source.publication
        loop = delivery.start()
        wait_until(lambda: not delivery.ledger.loads.open("flow"), 120, "the first load does not end")
        if had_before:
            filled.execute(f'alter publication "{publication}" drop table late')
        else:
            make()
        thread = threading.Thread(target=write)
        thread.start()
        add = f'alter publication "{publication}" add table late'
        try:
            if how in ("by pattern", "by hand"):
                delivery.watch_joining()
                if how == "by hand":
                    filled.execute(add)
                    wait_until(lambda: "public.late" in loop.status.rows, 60, "it is not streamed")
                assert not delivery.ledger.loads.open("flow")
                delivery.captured.source.look()
                assert delivery.ledger.loads.open("flow"), "nobody loads it"
            else:
                number = delivery.ledger.loads.request("flow", "table", {"tables": ["public.late"]}, "test")
                delivery.loading.look_soon()
                wait_until(lambda: any(e.load == number for e in delivery.ledger.loads.entries("flow")), 60, "not taken up")
                filled.execute(add)
            position = loop.status.position
            filled.execute("insert into steps values (7)")

            def over() -> bool:
                assert loop.error is None, loop.error
                delivery.captured.link.asked += 1
                return not delivery.ledger.loads.open("flow")

            wait_until(over, 120, "the load does not end")
            assert loop.status.position > position, "the others were held up"
            count = len(delivery.ledger.loads.all("flow"))
            delivery.captured.source.look()
            assert len(delivery.ledger.loads.all("flow")) == count, "it is loaded again"
        finally:
            done.set()
            thread.join()
        delivery.finish()
        delivery.stop()
        assert_equal(delivery, (("late", "id"), ("steps", "n")))


@pytest.mark.parametrize("kind", ["duckdb", "files"])
def test_a_table_is_emptied_before_its_rows_come_whichever_chunk_is_read_first(
    filled: Database, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.execute("create table late (id int primary key, big text); alter table late alter big set storage external")
    filled.execute("insert into late select i, repeat(md5(i::text), 90) from generate_series(1, 1200) i; analyze late")
    with delivering(filled, tmp_path, kind, first=True) as delivery:
        delivery.start()
        wait_until(lambda: not delivery.ledger.loads.open("flow"), 120, "the first load does not end")
        read, behind = delivery.readers.read, []

        def emptying_last(load: Load, chunks: Sequence[LoadChunk], *rest: Any) -> Any:
            if any(c.content.get("empties") for c in chunks):
                # Until others are delivered, or clearly wait.
                deadline = time.monotonic() + 1
                while time.monotonic() < deadline and not delivery.ledger.loads.delivered(load.id):
                    behind.append(sum(c.state == "read" for c in delivery.ledger.loads.chunks(load.id)))
                    time.sleep(0.01)
            return read(load, chunks, *rest)

        monkeypatch.setattr(delivery.readers, "read", emptying_last)
        delivery.ledger.loads.request("flow", "table", {"tables": ["public.late"]}, "test")
        delivery.loading.look_soon()
        delivery.finish()
        assert max(behind) > 0, "no other chunk was read before the one that empties"
        delivery.stop()
        assert_equal(delivery, (("late", "id"),))


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("first", ["int", "text"])
@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_key_whose_index_has_another_order_than_the_table_is_the_same_in_load_and_stream(
    filled: Database, tmp_path: Path, lanes: int, first: str, identity: str
) -> None:
    filled.execute(f"create table mirror (a int, b {first}, v text, primary key (b, a))")
    filled.execute(f"alter table mirror replica identity {identity}")
    filled.execute("insert into mirror select i / 20, i % 20, 'old' from generate_series(0, 399) i")
    with delivering(filled, tmp_path, "duckdb", first=False, lanes=lanes) as delivery:
        delivery.start()
        read = delivery.readers.read

        def read_and_changed(*about: Any) -> Any:
            found = read(*about)
            filled.execute("update mirror set v = 'new' where a < b::int")
            return found

        delivery.readers.read = read_and_changed  # type: ignore[assignment,method-assign]
        delivery.backfill("public.mirror")
        delivery.finish()
        delivery.stop()
        assert_equal(delivery, (("mirror", "a, b"),))


KEYLESS = """
create table keyless (id int, big text); alter table keyless alter big set storage external;
alter table keyless replica identity full;
insert into keyless select i, repeat(md5(i::text), 90) from generate_series(1, 3000) i; analyze keyless
"""


def test_rows_without_a_key_that_wait_for_each_other_keep_nothing_from_being_read(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.execute(KEYLESS)
    monkeypatch.setattr(loading, "MOST_WAITING", 1 << 20)
    monkeypatch.setattr(loading, "GROUP_BYTES", 1)
    with delivering(filled, tmp_path, "files", first=True) as delivery:
        delivery.start()
        delivery.finish(60)
        delivery.stop()
        assert len(log_state(tmp_path / "log", "keyless", "id")) == 3000


def test_rows_without_a_key_that_are_more_than_the_journal_may_hold_are_refused(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.execute(KEYLESS)
    monkeypatch.setattr(loading, "GROUP_BYTES", 1)
    with delivering(filled, tmp_path, "files", first=True) as delivery:
        delivery.config = {"journal": {"max_bytes": "1MiB"}}
        delivery.start()
        wait_until(lambda: delivery.loading.error is not None, 60, "nobody says so")
        assert isinstance(delivery.loading.error, LoadTooLarge) and "public.keyless" in delivery.loading.error.message


@pytest.mark.timeout(300)
def test_a_load_through_staging_replaces_the_table_when_it_ends(filled: Database, tmp_path: Path) -> None:
    place = {"path": str(tmp_path / "t.duckdb"), "batch_mode": "staging", "batch_resolution": "replace"}
    delivery = LoadedDelivery(filled, tmp_path, "duckdb", 2, **place)
    delivery.begin_first()
    with delivery.captured.running():
        try:
            delivery.start()
            delivery.finish()
            delivery.stop()
            with contextlib.closing(duckdb.connect(place["path"])) as connection:
                connection.execute("insert into public.lines values (99, 'not of the source', 1)")
            with load(filled, seed=12):
                delivery.start()
                delivery.backfill("lines", "accounts")
                wait_until(lambda: not delivery.ledger.loads.open("flow"), 120, "the load does not end")
            delivery.finish()
        finally:
            delivery.stop()
    assert_equal(delivery)


@pytest.mark.timeout(300)
def test_a_backfill_with_a_wrong_name_reads_nothing_and_says_which_and_names_may_be_quoted(
    filled: Database, tmp_path: Path
) -> None:
    with delivering(filled, tmp_path, "files", first=False) as delivery:
        delivery.start()
        number = delivery.backfill("acounts", "public.lines", "nothing.*", "public.stops")
        wait_until(lambda: not delivery.ledger.loads.open("flow"), 60, "it is still open")
        (found,) = [one for one in delivery.ledger.loads.all("flow") if one.id == number]
        assert found.state == "failed" and "tables_missing" in str(found.reason)
        assert "fits acounts, nothing.*, public.stops →" in str(found.reason) and not delivery.readers.read_chunks
        delivery.backfill('PUBLIC."We""ird; table"', "lines")
        delivery.finish()
        delivery.stop()
        assert_equal(delivery, (TABLES[1], TABLES[2]))


@pytest.mark.timeout(300)
def test_a_load_whose_state_is_not_kept_begins_anew_and_ends_as_the_source(filled: Database, tmp_path: Path) -> None:
    with delivering(filled, tmp_path, "files", first=True) as delivery:
        delivery.source_options["snapshot_state_backend"] = "none"
        delivery.most = 1
        delivery.start()
        wait_until(lambda: delivery.readers.read_chunks != [], 60, "nothing is read")
        wait_until(lambda: any(delivery.ledger.loads.delivered(1).values()), 60, "nothing is delivered")
        ((had, _, _),) = delivery.readers.read_chunks
        delivery.stop()
        filled.execute("delete from accounts where id < 10; delete from lines where a = 1; delete from steps")
        delivery.most = None
        delivery.start()
        delivery.finish()
        assert {name for name, _, _ in delivery.readers.read_chunks} >= {had, "accounts", "lines", "steps"}
        delivery.stop()
        assert_equal(delivery)


@pytest.mark.timeout(300)
def test_a_load_that_is_cancelled_leaves_its_tables_streaming(filled: Database, tmp_path: Path) -> None:
    with delivering(filled, tmp_path, "files", first=True) as delivery:
        delivery.most = 0
        delivery.start()
        (first,) = delivery.ledger.loads.open("flow")
        assert delivery.ledger.loads.wish("flow", first.id, "cancelled")
        delivery.loading.look_soon()
        filled.execute("insert into steps values (1)")
        delivery.finish()
        delivery.stop()
        assert [row[0] for row in final_rows(delivery, "steps", "n")] == [1]
        assert delivery.ledger is not None


def test_a_flow_that_has_never_run_has_no_loads(tmp_path: Path) -> None:
    from penstock.control.backfills import LoadDesk

    with pytest.raises(LoadMissing, match="knows no flow"):
        LoadDesk("shop", tmp_path)
