"""Loads through staging tables, on real databases: what is staged, what the stream does meanwhile, and how it is resolved."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.core.batch import Op
from penstock.core.connectors import cards
from penstock.core.schema import TableSchema
from penstock.destinations.base import Resolution
from penstock.errors import LedgerFenced, SchemaRefused, StagingRefused
from tests.batches import Change, delete, insert, move, table, truncate, update
from tests.conformance.harness import Harness, Work, work
from tests.table_model import ONE, TWO, State, key_of, logs, replay, shared_out, start

NAMES = [c.name for c in cards("destination").values() if "staging_table" in c.options.model_fields]
SOURCE = (ONE.schema, ONE.name)
STAGING = table({c.name: (c.type, c.native) for c in ONE.columns}, name="orders_staging")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def replacing(name: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(name, tmp_path, batch_mode="staging", batch_resolution="replace")
    yield made
    made.close()


def row(number: int, value: int = 0, big: str | None = "b") -> dict[str, Any]:
    return {"id": number, "v": value, "big": big, "large": f"l{number}"}


def loaded(*rows: dict[str, Any], at: int = 500) -> list[Change]:
    """A chunk of a load that stands at a position."""
    return [Change(Op.SNAPSHOT, one, position=at, ordinal=n) for n, one in enumerate(rows, 1)]


def everything(schema: str, table: str) -> bool:
    return True


def open_load(harness: Harness, load: str = "first", schema: TableSchema = ONE) -> None:
    harness.destination.prepare([schema])
    harness.destination.begin_load(load, [(schema.schema, schema.name)])


def values(state: State) -> dict[Any, Any]:
    return {key[0]: found["v"] for key, found in state.items()}


def test_a_load_waits_beside_the_table_until_it_ends(replacing: Harness) -> None:
    open_load(replacing)
    replacing.deliver(1, work(ONE, loaded(row(1), row(2))))
    assert replacing.state(ONE) == {} and values(replacing.state(STAGING)) == {1: 0, 2: 0}
    ended = replacing.destination.end_load("first", [SOURCE])
    assert ended == [Resolution(*SOURCE, "replaced", 2, 0)]
    assert values(replacing.state(ONE)) == {1: 0, 2: 0} and replacing.state(STAGING) == {}
    assert replacing.destination.end_load("first", [SOURCE]) == []
    assert replacing.destination.resolve_staging(everything) == []
    assert values(replacing.state(ONE)) == {1: 0, 2: 0}


def test_replace_removes_what_the_source_does_not_have_and_keeps_what_the_stream_brought(replacing: Harness) -> None:
    replacing.deliver(1, work(ONE, [insert(row(n), position=10, ordinal=n) for n in (1, 2, 3, 4)]))
    open_load(replacing)
    # The source has lost row 4 without a word, row 5 has never come, and row 3 is another one.
    replacing.deliver(2, work(ONE, loaded(row(1), row(2), row(3, 3), row(5), at=1500)))
    stream = [
        update(row(1, 11), position=2001),
        delete({"id": 2}, position=2002),
        insert(row(6, 6), position=2003),
        *move({"id": 5}, row(50, 5), position=2004),
    ]
    replacing.deliver(3, work(ONE, stream))
    assert values(replacing.state(ONE)) == {1: 11, 3: 0, 4: 0, 6: 6, 50: 5}
    ended = replacing.destination.end_load("first", [SOURCE])
    assert (ended[0].outcome, ended[0].removed) == ("replaced", 1)
    assert values(replacing.state(ONE)) == {1: 11, 3: 3, 6: 6, 50: 5}
    replacing.deliver(4, work(ONE, [update(row(3, 4), position=3001)]))
    assert values(replacing.state(ONE)) == {1: 11, 3: 4, 6: 6, 50: 5} and replacing.state(STAGING) == {}


def test_append_adds_what_is_missing_and_touches_nothing_else(name: str, tmp_path: Path) -> None:
    harness = Harness(name, tmp_path, batch_mode="staging", batch_resolution="append")
    harness.deliver(1, work(ONE, [insert(row(1, 1), position=10)]))
    open_load(harness)
    harness.deliver(2, work(ONE, loaded(row(1, 99), row(2, 2), row(3, 3), at=1500)))
    harness.deliver(3, work(ONE, [delete({"id": 3}, position=2001), insert(row(4, 4), position=2002)]))
    assert harness.destination.end_load("first", [SOURCE]) == [Resolution(*SOURCE, "appended", 1, 0)]
    assert values(harness.state(ONE)) == {1: 1, 2: 2, 4: 4}


def test_none_leaves_the_staging_table_and_the_next_load_begins_with_an_empty_one(name: str, tmp_path: Path) -> None:
    harness = Harness(name, tmp_path, batch_mode="staging")
    open_load(harness)
    harness.deliver(1, work(ONE, loaded(row(1), row(2))))
    assert harness.destination.end_load("first", [SOURCE]) == [Resolution(*SOURCE, "left")]
    harness.deliver(2, work(ONE, [insert(row(9), position=1001)]))
    assert values(harness.state(STAGING)) == {1: 0, 2: 0} and values(harness.state(ONE)) == {9: 0}
    assert harness.destination.resolve_staging(everything) == [Resolution(*SOURCE, "left")]
    open_load(harness, "second")
    harness.deliver(3, work(ONE, loaded(row(7), at=2500)))
    assert values(harness.state(STAGING)) == {7: 0}


def test_an_empty_source_replaces_a_table_by_nothing(replacing: Harness) -> None:
    replacing.deliver(1, work(ONE, [insert(row(1), position=10)]))
    open_load(replacing)
    replacing.destination.end_load("first", [SOURCE])
    assert replacing.state(ONE) == {}


def test_a_load_that_has_ended_does_not_begin_again(replacing: Harness) -> None:
    open_load(replacing)
    replacing.deliver(1, work(ONE, loaded(row(1))))
    replacing.destination.end_load("first", [SOURCE])
    # A worker that was killed before it knew begins and ends the load once more.
    open_load(replacing)
    assert replacing.destination.end_load("first", [SOURCE]) == []
    assert values(replacing.state(ONE)) == {1: 0}
    # A row of it that was set aside comes late, and has no staging table to wait in.
    replacing.deliver(2, work(ONE, loaded(row(2), at=600)))
    assert values(replacing.state(ONE)) == {1: 0, 2: 0} and replacing.state(STAGING) == {}


def test_nothing_is_resolved_while_its_load_runs(replacing: Harness) -> None:
    replacing.deliver(1, work(ONE, [insert(row(1), position=10)]))
    open_load(replacing)
    replacing.deliver(2, work(ONE, loaded(row(2), at=1500)))
    assert replacing.destination.resolve_staging(everything) == [Resolution(*SOURCE, "loading")]
    assert values(replacing.state(ONE)) == {1: 0}


def test_options_that_do_not_say_how_resolve_nothing(name: str, tmp_path: Path) -> None:
    harness = Harness(name, tmp_path, batch_mode="staging", batch_resolution="append")
    open_load(harness)
    harness.deliver(1, work(ONE, loaded(row(1))))
    book = harness.destination._book  # type: ignore[attr-defined]
    with harness.destination._fenced() as store:  # type: ignore[attr-defined]
        assert book.end(store, "first", [SOURCE]) == [SOURCE]
    harness.close()
    # The worker was killed between the end of the load and its resolution, and the options have changed.
    changed = Harness(name, tmp_path, batch_mode="staging")
    with pytest.raises(StagingRefused, match="batch_resolution is none"):
        changed.destination.resolve_staging(everything)
    changed.close()
    again = Harness(name, tmp_path, batch_resolution="append")
    assert again.destination.resolve_staging(everything) == [Resolution(*SOURCE, "appended", 1, 0)]
    assert values(again.state(ONE)) == {1: 0}


def test_an_epoch_that_runs_again_stages_nothing_twice(replacing: Harness) -> None:
    open_load(replacing)
    chunk = work(ONE, loaded(row(1), row(2)))
    receipts = replacing.deliver(1, chunk)
    epoch = replacing.epoch(1)
    replacing.destination.commit(epoch, receipts)
    replacing.close()
    replacing.recover(1, chunk)
    assert values(replacing.state(STAGING)) == {1: 0, 2: 0}


def test_a_worker_that_was_taken_over_neither_begins_nor_resolves(replacing: Harness) -> None:
    replacing.destination.fence(3)
    open_load(replacing)
    replacing.deliver(1, work(ONE, loaded(row(1))), generation=3)
    replacing.close()
    replacing.destination.fence(5)
    replacing.close()
    late = replacing.destination
    late._generation = 3  # type: ignore[attr-defined]
    for act in (
        lambda: late.begin_load("second", [SOURCE]),
        lambda: late.end_load("first", [SOURCE]),
        lambda: late.resolve_staging(everything),
    ):
        with pytest.raises(LedgerFenced):
            act()
    replacing.close()
    assert replacing.state(ONE) == {} and values(replacing.state(STAGING)) == {1: 0}


def test_values_that_the_log_left_out_are_found_where_they_are(replacing: Harness) -> None:
    open_load(replacing)
    replacing.deliver(1, work(ONE, loaded(row(1, big="one"), row(2, big="two"), row(3, big="three"))))
    # The table is empty: what these rows leave out is in the staging table only.
    stream = [update({"id": 1, "v": 5, "large": "new"}, position=1001), *move({"id": 2}, {"id": 20, "v": 6}, position=1002)]
    replacing.deliver(2, work(ONE, stream))
    expected = {"id": 1, "v": 5, "big": "one", "large": "new"}, {"id": 20, "v": 6, "big": "two", "large": "l2"}
    assert list(replacing.state(ONE).values()) == list(expected)
    replacing.destination.end_load("first", [SOURCE])
    assert sorted(replacing.state(ONE).values(), key=lambda r: r["id"]) == [expected[0], row(3, big="three"), expected[1]]


def test_a_truncate_empties_both_and_the_load_goes_on(replacing: Harness) -> None:
    replacing.deliver(1, work(ONE, [insert(row(8), position=10)]))
    open_load(replacing)
    replacing.deliver(2, work(ONE, loaded(row(1), row(2), at=1500)))
    replacing.deliver(3, work(ONE, [truncate(position=2001), insert(row(3, 3), position=2002)]))
    replacing.deliver(4, work(ONE, loaded(row(4, 4), at=3500)))
    replacing.destination.end_load("first", [SOURCE])
    assert values(replacing.state(ONE)) == {3: 3, 4: 4}


def test_a_schema_change_in_the_middle_of_a_load_reaches_the_staging_table(replacing: Harness) -> None:
    open_load(replacing)
    replacing.deliver(1, work(ONE, loaded(row(1), row(2))))
    columns = {c.name: (c.type, c.native) for c in ONE.columns} | {"v": (pa.int64(), "bigint"), "more": (pa.string(), "text")}
    wider = table(columns, version=2)
    replacing.deliver(2, work(wider, [update({**row(1, 1 << 40), "more": "m"}, position=1001)]))
    replacing.deliver(3, work(wider, loaded({**row(3, 1 << 41), "more": "n"}, at=2500)))
    replacing.destination.end_load("first", [SOURCE])
    found = {r["id"]: (r["v"], r["more"]) for r in replacing.state(wider).values()}
    assert found == {1: (1 << 40, "m"), 2: (0, None), 3: (1 << 41, "n")}


def test_hostile_names_are_staged_too(name: str, tmp_path: Path) -> None:
    hostile = table(
        {'i"d': pa.int64(), "select": pa.string(), "päth'; --": pa.string()},
        key=('i"d', "select"),
        schema='s"x',
        name="o' \"rders",
    )
    options = {"batch_mode": "staging", "batch_resolution": "replace", "staging_schema": 'wait"ing {schema}'}
    harness = Harness(name, tmp_path, staging_table="{table} 'load'", **options)
    open_load(harness, "l'1\"", hostile)
    rows = [{'i"d': 1, "select": "'", "päth'; --": '"'}, {'i"d': 2, "select": '"', "päth'; --": None}]
    harness.deliver(1, work(hostile, loaded(*rows)))
    harness.deliver(2, work(hostile, [delete({'i"d': 1, "select": "'"}, position=1001)]))
    harness.destination.end_load("l'1\"", [(hostile.schema, hostile.name)])
    assert list(harness.state(hostile).values()) == [rows[1]]


@pytest.mark.parametrize("order", ["table first", "staging first"])
def test_a_staging_table_never_stands_where_another_table_does(name: str, tmp_path: Path, order: str) -> None:
    harness = Harness(name, tmp_path, batch_mode="staging", exclude=["nothing"])
    other = table({"id": pa.int64()}, name="orders_staging")
    for schema in (other, ONE) if order == "table first" else (ONE, other):
        if schema is (ONE if order == "table first" else other):
            with pytest.raises(SchemaRefused):
                harness.destination.prepare([schema])
        else:
            harness.destination.prepare([schema])


def test_one_staging_table_for_two_tables_is_refused(name: str, tmp_path: Path) -> None:
    harness = Harness(name, tmp_path, batch_mode="staging", staging_table="waiting")
    harness.destination.prepare([ONE])
    with pytest.raises(SchemaRefused, match=r"staging table of public\.orders"):
        harness.destination.prepare([TWO])


def test_a_table_that_is_there_by_itself_is_no_staging_table(name: str, tmp_path: Path) -> None:
    before = Harness(name, tmp_path, table_template="{table}_staging")
    before.deliver(1, work(ONE, [insert(row(1), position=10)]))
    before.close()
    with pytest.raises(SchemaRefused, match="not penstock's"):
        Harness(name, tmp_path, batch_mode="staging").destination.prepare([ONE])


@pytest.mark.parametrize("given_options", [{"staging_suffix": ""}, {"staging_schema": "{schema}", "staging_table": "{table}"}])
def test_a_staging_table_needs_a_place_of_its_own(name: str, tmp_path: Path, given_options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="place of its own"):
        Harness(name, tmp_path, batch_mode="staging", **given_options)


class Source:
    """A table at a source: its history cut into stream epochs, and chunks that are read somewhere in between."""

    def __init__(self, schema: TableSchema, log: list[Change], chance: random.Random) -> None:
        self.schema, self.chance = schema, chance
        # A change's two halves stay together.
        marks = sorted({(c.position, c.ordinal) for c in log})
        cuts = sorted({0, len(marks), *(chance.randrange(len(marks) + 1) for _ in range(chance.randrange(5)))})
        self.epochs = [[c for c in log if (c.position, c.ordinal) in set(marks[a:b])] for a, b in itertools.pairwise(cuts)]
        self.state = start(schema)

    def chunks(self) -> list[list[Any]]:
        """All keys there may ever be, shared out."""
        shares: list[list[Any]] = [[] for _ in range(self.chance.randrange(1, 4))]
        for n in range(9):
            self.chance.choice(shares).append(n)
        return shares

    def read(self, share: list[Any]) -> list[Change]:
        """The rows of a chunk, as they are now."""
        rows = [r for key, r in self.state.items() if int(key[0]) in share]
        return [Change(Op.SNAPSHOT, r, position=1, ordinal=n) for n, r in enumerate(rows, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("given_schema", [ONE, TWO], ids=["one key column", "two key columns"])
@pytest.mark.parametrize(
    ("resolution", "before"), [("replace", "live"), ("replace", "drifted"), ("append", "live"), ("append", "empty")]
)
def test_any_history_with_a_load_in_it_ends_as_the_sources_table(
    name: str, given_schema: TableSchema, resolution: str, before: str, tmp_path: Path
) -> None:
    harness = Harness(name, tmp_path, batch_mode="staging", batch_resolution=resolution)
    number = itertools.count(1)
    names = itertools.count(1)

    @settings(max_examples=8, deadline=None, phases=[Phase.reuse, Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def ends_as_the_source(data: st.DataObject) -> None:
        # A table of its own in one database: making databases took most of the time.
        schema = dataclasses.replace(given_schema, name=f"{given_schema.name}{next(names)}")
        chance = random.Random(data.draw(st.integers(0, 1 << 30)))
        source = Source(schema, data.draw(logs(schema)), chance)

        def deliver(changes: list[Change], *, buckets: int = 1) -> None:
            shares: Work = [(schema, shared_out(schema, changes, buckets))]
            harness.deliver(next(number), shares, cuts=[chance.randrange(9)])

        there = list(source.state.values())
        if before == "drifted":
            # A row is missing, one is not the source's, one is another.
            strange = {**there[0], **dict(zip(schema.key, ghost(schema), strict=True))}
            there = [*there[1:-1], {**there[-1], "big": "wrong"}, strange]
        if before != "empty":
            deliver([Change(Op.INSERT, r, position=1, ordinal=n) for n, r in enumerate(there, 1)])
        open_load(harness, schema.name, schema)
        # A row that moves between an unread chunk and a read one, and leaves out what the target has wrong, is nowhere right.
        waiting = source.chunks() if before != "drifted" else [list(range(9))]
        if before == "empty":
            # A table that is loaded for the first time has no stream until all of it is there.
            for share in waiting:
                deliver(source.read(share))
            waiting = []
        for changes in source.epochs:
            while waiting and chance.random() < 0.5:
                deliver(source.read(waiting.pop()), buckets=chance.choice((1, 2)))
            deliver(changes, buckets=1 if any(c.op == Op.ENTER for c in changes) else chance.choice((1, 2)))
            source.state = replay(schema, changes, source.state)
        for share in waiting:
            deliver(source.read(share))
        for _ in range(2):
            harness.destination.end_load(schema.name, [(schema.schema, schema.name)])
            assert harness.state(schema) == source.state

    ends_as_the_source()
    harness.close()


def ghost(schema: TableSchema) -> Any:
    """A key that no log has."""
    return (99,) if len(schema.key) == 1 else (99, "x")


def test_the_model_s_keys_are_in_some_chunk() -> None:
    assert all(0 <= int(key_of(schema, r)[0]) < 9 for schema in (ONE, TWO) for r in start(schema).values())
