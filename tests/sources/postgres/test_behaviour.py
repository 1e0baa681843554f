"""What a slot delivers for what is done on the server, and what penstock makes of it, on two major versions.

One test per observed behaviour. Transactions that are streamed before their commit are in test_streaming.py, logical
messages in test_messages.py, and what may be confirmed when in test_confirming.py.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from penstock.core.batch import Image, Op
from penstock.errors import IdentityMissing, PublicationMissing
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from penstock.sources.postgres.wire import ReplicationConnection
from tests.conftest import Database
from tests.raw_stream import is_commit, read_frames
from tests.sources.postgres.captured import Captured
from tests.sources.postgres.tap import Tap, letters

PUBLICATION = "penstock_flow"
BIG = "create table t (id int primary key, v int, big text); alter table t alter big set storage external"


@pytest.fixture
def database(each_database: Database) -> Database:
    return each_database


def test_copied_rows_share_one_lsn_and_have_identities_of_their_own(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    with Captured(database, tmp_path).running() as captured, Tap(database, PUBLICATION) as tap:
        database.execute("insert into t values (0)")
        with database.connect() as c, c.cursor().copy("copy t from stdin") as copy:
            copy.write("1\n2\n3\n")
        captured.drain()
        messages = tap.messages()
    assert letters(messages) == "BRICBIIIC"
    begin, *copied = [m.lsn for m in messages[-5:-1]]
    # All at one place: the previous commit's end, unless the server has written something of its own in between.
    assert set(copied) == {begin} and begin >= messages[-6].commit_end
    first, *three = captured.events("t")
    assert [e["row"]["id"] for e in three] == [1, 2, 3]
    assert {e["id"][0] for e in three} == {messages[-1].commit_end} != {first["id"][0]}
    assert [e["id"][1] for e in three] == [1, 2, 3]


def test_a_table_description_has_no_lsn_and_moves_no_progress(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path)
    with Tap(database, PUBLICATION) as tap:
        for step in ("insert into t values (1)", "alter table t add v int", "insert into t values (2, 2)"):
            with captured.running():
                before = captured.mark
                database.execute(step)
                captured.drain()
                assert captured.mark > before
        messages = tap.messages()
    assert [m.lsn for m in messages if m.kind == "R"] == [0, 0]
    positions = [e["id"][0] for e in captured.events("t")]
    assert positions == [m.commit_end for m in messages if m.kind == "C" and m.commit_end in positions]
    assert captured.mark >= positions[-1]


def test_an_untouched_toasted_column_is_neither_value_nor_null(database: Database, tmp_path: Path) -> None:
    database.execute(BIG)
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1, 1, repeat('x', 5000)); update t set v = 2")
        database.execute("update t set big = null; update t set big = ''")
        captured.drain()
    value, unchanged, null, empty = captured.events("t")
    assert (value["row"]["big"], value["unchanged"]) == ("x" * 5000, [])
    assert (unchanged["row"]["v"], unchanged["unchanged"], unchanged["before"]) == (2, ["big"], None)
    assert (null["row"]["big"], null["unchanged"]) == (None, [])
    assert (empty["row"]["big"], empty["unchanged"]) == ("", [])


def test_identity_full_fills_an_untouched_toasted_column_from_the_old_row(database: Database, tmp_path: Path) -> None:
    database.execute(f"{BIG}; alter table t replica identity full")
    with Captured(database, tmp_path).running() as captured, Tap(database, PUBLICATION) as tap:
        database.execute("insert into t values (1, 1, repeat('x', 5000)); update t set v = 2")
        captured.drain()
        (update,) = [m.body for m in tap.messages() if m.kind == "U"]
    assert update[5:6] == b"O" and update.endswith(b"u")
    _, event = captured.events("t")
    assert event["row"] == {"id": 1, "v": 2, "big": "x" * 5000} and event["unchanged"] == []
    assert event["before"] == {"id": 1, "v": 1, "big": "x" * 5000}


def test_a_changed_key_moves_the_row_with_its_untouched_column(database: Database, tmp_path: Path) -> None:
    database.execute(BIG)
    with Captured(database, tmp_path).running() as captured, Tap(database, PUBLICATION) as tap:
        database.execute("insert into t values (1, 1, repeat('x', 5000)); update t set id = 7")
        captured.drain()
        (update,) = [m.body for m in tap.messages() if m.kind == "U"]
    assert update[5:6] == b"K" and update.endswith(b"u")
    _, leave, enter = captured.events("t")
    assert (leave["op"], leave["row"]["id"], enter["op"], enter["row"]["id"]) == ("leave", 1, "enter", 7)
    assert leave["id"] == enter["id"]
    assert enter["unchanged"] == ["big"] and enter["before"]["id"] == 1


def test_before_is_unknown_and_not_empty_without_an_old_row(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v int)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1, 1); update t set v = 2")
        captured.drain()
    (batch,) = captured.batches()
    assert batch.op.to_pylist() == [Op.INSERT, Op.UPDATE]
    assert batch.before is None and batch.image.to_pylist() == [Image.NONE, Image.NONE]


def test_an_update_that_changes_nothing_is_an_update(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v int)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1, 1); update t set v = v")
        captured.drain()
    assert [(e["op"], e["row"]) for e in captured.events("t")] == [
        ("insert", {"id": 1, "v": 1}),
        ("update", {"id": 1, "v": 1}),
    ]


def test_truncate_is_one_message_and_one_event_per_table_at_one_position(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    database.execute("create table c (id int primary key references a)")
    with Captured(database, tmp_path).running() as captured, Tap(database, PUBLICATION) as tap:
        database.execute("insert into a values (1); insert into b values (1); insert into c values (1)")
        database.execute("truncate a, b cascade")
        captured.drain()
        truncates = [m for m in tap.messages() if m.kind == "T"]
    assert [m.truncated for m in truncates] == [3]
    events = [captured.events(name)[-1] for name in "abc"]
    assert [e["op"] for e in events] == ["truncate"] * 3
    assert len({e["id"][0] for e in events}) == 1 and {e["id"][1] for e in events} == {1, 2, 3}


PARTITIONED = """
create table root (id int, part int, v text, primary key (id, part)) partition by list (part);
create table one partition of root for values in (1);
create table two partition of root for values in (2);
"""


def test_a_row_that_moves_to_another_partition_is_deleted_and_inserted_on_the_root(database: Database, tmp_path: Path) -> None:
    database.execute(PARTITIONED)
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into root values (7, 1, 'x')")
        database.execute("update root set part = 2")
        captured.drain()
    assert {b.table.name for b in captured.batches()} == {"root"}
    assert [(e["op"], e["row"]) for e in captured.events("root")] == [
        ("insert", {"id": 7, "part": 1, "v": "x"}),
        ("delete", {"id": 7, "part": 1, "v": None}),
        ("insert", {"id": 7, "part": 2, "v": "x"}),
    ]


@pytest.mark.parametrize(
    "silent",
    ["truncate one", "alter table root attach partition three for values in (3)", "alter table root detach partition one"],
    ids=["truncate", "attach", "detach"],
)
def test_what_happens_to_whole_partitions_is_not_delivered(database: Database, tmp_path: Path, silent: str) -> None:
    database.execute(f"{PARTITIONED} insert into root values (1, 1, 'x')")
    database.execute("create table three (like root including all)")
    captured = Captured(database, tmp_path, publication_tables=["public.root"])
    database.execute("insert into three values (3, 3, 'z')")
    with captured.running(), Tap(database, PUBLICATION) as tap:
        database.execute(silent)
        database.execute("insert into root values (2, 2, 'y')")
        captured.drain()
        messages = tap.messages()
    assert letters(messages).replace("R", "") == "BIC"
    assert [(e["op"], e["row"]["id"]) for e in captured.events("root")] == [("insert", 2)]


def test_several_schema_changes_arrive_as_one_description_without_rows(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, a int, b int)")
    with Captured(database, tmp_path).running() as captured, Tap(database, PUBLICATION) as tap:
        database.execute("insert into t values (1, 10, 20)")
        database.execute("alter table t add c text default 'd'")
        database.execute("alter table t rename a to z")
        database.execute("alter table t alter b type text using b::text")
        database.execute("insert into t values (2, 30, 'forty')")
        captured.drain()
        messages = tap.messages()
    assert letters(messages).count("R") == letters(messages).count("I") == 2 and "U" not in letters(messages)
    old, new = captured.batches()
    assert (old.table.version, [c.name for c in old.table.columns]) == (1, ["id", "a", "b"])
    assert (new.table.version, [c.name for c in new.table.columns]) == (2, ["id", "z", "b", "c"])
    assert old.rows.to_pylist() == [{"id": 1, "a": 10, "b": 20}]
    assert new.rows.to_pylist() == [{"id": 2, "z": 30, "b": "forty", "c": "d"}]


def test_a_table_that_is_made_again_has_its_name_and_another_identity(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1)")
        database.execute(
            f"begin; drop table t; create table t (id int primary key); alter publication {PUBLICATION} add table t; commit"
        )
        database.execute("insert into t values (1)")
        captured.drain()
    old, new = captured.batches()
    assert old.table.qualified == new.table.qualified == "public.t"
    assert old.table.columns == new.table.columns
    assert old.table.identity != new.table.identity and (old.table.version, new.table.version) == (1, 2)


def test_new_and_renamed_labels_are_not_announced_and_old_rows_keep_theirs(database: Database, tmp_path: Path) -> None:
    database.execute("create type mood as enum ('sad', 'fine'); create table t (id int primary key, m mood)")
    with Captured(database, tmp_path).running() as captured, Tap(database, PUBLICATION) as tap:
        database.execute("insert into t values (1, 'sad')")
        tap.messages()
        captured.drain()
        database.execute("alter type mood add value 'happy'")
        database.execute("alter type mood rename value 'sad' to 'blue'")
        assert tap.messages() == []
        database.execute("insert into t values (2, 'happy'), (3, 'blue')")
        captured.drain()
        assert letters(tap.messages()) == "BIIC"
    assert [e["row"]["m"] for e in captured.events("t")] == ["sad", "happy", "blue"]
    assert {e["version"] for e in captured.events("t")} == {1}


def test_a_table_without_identity_is_refused_before_the_publication_is_touched(database: Database) -> None:
    database.execute("create table sound (id int primary key); create table t (v int); insert into t values (1)")
    source = PostgresSource("flow", PostgresOptions(dsn=database.dsn))
    with pytest.raises(IdentityMissing, match=r"public\.t") as refused:
        source.prepare(None)
    source.close()
    assert database.rows("select pubname from pg_publication") == []
    # What would have happened to the application, and that the fix as printed mends it.
    database.execute("create publication p for table t")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
        database.execute("update t set v = 2")
    database.execute(refused.value.remedy.partition(";")[0])
    database.execute("update t set v = 2")


def test_rows_that_leave_or_enter_a_row_filter_are_deletes_and_inserts(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v int); alter table t replica identity full")
    database.execute(f"create publication {PUBLICATION} for table t where (v > 0)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1, 1), (2, -2)")
        database.execute("update t set v = -v")
        captured.drain()
    assert [(e["op"], e["row"]) for e in captured.events("t")] == [
        ("insert", {"id": 1, "v": 1}),
        ("delete", {"id": 1, "v": 1}),
        ("insert", {"id": 2, "v": 2}),
    ]


@pytest.mark.parametrize("published", [False, True])
def test_generated_columns_are_the_same_in_stream_and_catalogue(database: Database, tmp_path: Path, published: bool) -> None:
    database.execute("create table t (id int primary key, twice int generated always as (id * 2) stored, v int)")
    able = database.rows("select current_setting('server_version_num')::int >= 180000")[0][0]
    option = " with (publish_generated_columns = stored)" if published and able else ""
    database.execute(f"create publication {PUBLICATION} for table t{option}")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1, default, 5)")
        captured.drain()
        (described,) = captured.source.discover()
    (batch,) = captured.batches()
    assert [c.name for c in described.columns] == [c.name for c in batch.table.columns]
    assert batch.rows.to_pylist() == ([{"id": 1, "twice": 2, "v": 5}] if option else [{"id": 1, "v": 5}])


def test_a_slot_older_than_its_publication_fails_before_18(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    with ReplicationConnection.connect(database.dsn) as connection:
        connection.query("CREATE_REPLICATION_SLOT early TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')")
        database.execute("insert into t values (1)")
        database.execute("create publication late for table t")
        database.execute("insert into t values (2)")
        connection.start_replication("early", 0, {"proto_version": "1", "publication_names": "late"})
        if database.rows("select current_setting('server_version_num')::int >= 180000")[0][0]:
            assert read_frames(connection, is_commit)
        else:
            frames = read_frames(connection, lambda frame: frame[0] == b"E")
            assert any(kind == b"E" and b"late" in body for kind, body in frames)


def test_the_publication_is_made_before_the_slot(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    with Captured(database, tmp_path).running():
        assert database.rows(
            "select catalog_xmin::text::bigint > p.xmin::text::bigint from pg_replication_slots, pg_publication p "
            "where slot_name = 'penstock_flow'"
        ) == [(True,)]


def test_a_slot_that_waited_for_its_publication_is_streamed_from_the_publication_on(database: Database, tmp_path: Path) -> None:
    """A slot that was made beforehand for the flow: what it holds from before the publication could never be delivered."""
    database.execute("create table t (id int primary key)")
    database.execute("select pg_create_logical_replication_slot('penstock_flow', 'pgoutput')")
    database.execute("insert into t values (1)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (2)")
        captured.drain()
    assert [e["row"]["id"] for e in captured.events("t")] == [2]


def test_a_transaction_that_is_open_while_the_publication_is_made_stops_nothing(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("select pg_create_logical_replication_slot('penstock_flow', 'pgoutput')")
    with database.connect() as older:
        older.execute("begin")
        older.execute("insert into t values (1)")
        captured = Captured(database, tmp_path)
        older.execute("commit")
    with captured.running():
        database.execute("insert into t values (2)")
        captured.drain()
    assert [e["row"]["id"] for e in captured.events("t")] == [2]


def test_a_publication_that_is_dropped_is_named(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path)
    database.execute(f"drop publication {PUBLICATION}")
    with pytest.raises(PublicationMissing, match=PUBLICATION):
        captured.source.prepare(captured.prepared.start)
    captured.source.close()
