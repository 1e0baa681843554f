"""The commit: rows and position as one, once, and only by the worker whose turn it is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from penstock.destinations.base import Held
from penstock.destinations.postgres.options import PostgresOptions
from penstock.errors import DestinationBehind, DestinationFailed, DestinationUnreachable, LedgerFenced
from penstock.sources.postgres.options import PostgresOptions as SourceOptions
from penstock.sources.postgres.source import PostgresSource
from tests.batches import insert, table, update
from tests.conformance.harness import Harness, work
from tests.destinations.postgres.subject import asked, dsn

ONE = table({"id": pa.int64(), "v": pa.int32()})
FIRST = work(ONE, [insert({"id": 1, "v": 1})])
SECOND = work(ONE, [update({"id": 1, "v": 2}, position=1001)])
EITHER = pytest.mark.parametrize("way", ["arrays", "copy"], indirect=True)
POSITION = "SELECT flow, destination, source, position, epoch, generation, committed_at IS NOT NULL FROM penstock.positions"


@pytest.fixture
def rival(tmp_path: Path) -> Iterator[Harness]:
    """Another worker of the same flow and destination."""
    made = Harness("postgres", tmp_path)
    yield made
    made.close()


def test_the_position_is_where_anyone_can_read_it(target: Harness) -> None:
    target.deliver(1, FIRST)
    target.deliver(2, [])
    assert asked(target.home, POSITION) == [("flow", "postgres", "src1", 2000, 2, 1, True)]


def test_the_position_of_an_earlier_version_is_read_and_its_table_grows(target: Harness) -> None:
    target.deliver(1, FIRST)
    target.close()
    asked(target.home, "ALTER TABLE penstock.positions DROP COLUMN part")
    assert target.destination.committed() == Held(1000, 1)
    target.close()
    target.deliver(2, SECOND)
    assert target.destination.committed() == Held(2000, 2)


def test_a_flow_from_the_target_leaves_our_own_tables_out(target: Harness) -> None:
    target.deliver(1, FIRST)
    source = PostgresSource("onwards", SourceOptions(dsn=dsn(target.home)))
    assert [t.qualified for t in source.discover()] == ["public.orders"]
    source.close()


@EITHER
def test_a_worker_that_was_overtaken_unawares_writes_nothing(target: Harness, rival: Harness, way: str) -> None:
    target.deliver(1, FIRST)
    receipts = target.write(target.epoch(2), work(ONE, [update({"id": 1, "v": 99}, position=1001)]))
    rival.deliver(2, SECOND, generation=2)
    with pytest.raises(LedgerFenced):
        target.destination.commit(target.epoch(2), receipts)
    with pytest.raises(LedgerFenced):
        target.destination.committed()
    assert asked(target.home, "SELECT v FROM public.orders") == [(2,)]
    assert asked(target.home, POSITION)[0][5] == 2


@EITHER
def test_a_higher_generation_fences_before_it_has_moved_the_position(target: Harness, way: str) -> None:
    target.deliver(1, FIRST)
    asked(target.home, "UPDATE penstock.positions SET generation = 2")
    with pytest.raises(LedgerFenced):
        target.deliver(2, SECOND)
    assert asked(target.home, "SELECT v FROM public.orders") == [(1,)]
    assert asked(target.home, POSITION)[0][3] == 1000


@EITHER
def test_an_epoch_that_another_session_committed_is_not_applied_again(target: Harness, rival: Harness, way: str) -> None:
    target.deliver(1, FIRST)
    receipts = target.write(target.epoch(2), work(ONE, [update({"id": 1, "v": 99}, position=1001)]))
    rival.deliver(2, SECOND)
    target.destination.commit(target.epoch(2), receipts)
    assert asked(target.home, "SELECT v FROM public.orders") == [(2,)]


def test_two_workers_at_one_moment_take_turns(target: Harness, rival: Harness) -> None:
    """The row of the position is held until the commit; who waits for it then sees what the other has done."""
    target.deliver(1, FIRST)
    rival.destination.committed()
    outcome: list[BaseException | None] = []
    with psycopg.connect(dsn(target.home)) as holder:
        holder.execute("UPDATE penstock.positions SET generation = 7, position = 2000, epoch = 2")
        receipts = rival.write(rival.epoch(2), SECOND)

        def commit() -> None:
            try:
                rival.destination.commit(rival.epoch(2), receipts)
                outcome.append(None)
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        deadline = threading.Event()
        for _ in range(3000):
            if asked(target.home, waiting):
                break
            deadline.wait(0.02)
    thread.join(60)
    assert isinstance(outcome[0], LedgerFenced)
    assert asked(target.home, "SELECT v FROM public.orders") == [(1,)]


def test_a_worker_that_was_stopped_in_mid_epoch_holds_nobody_up(target: Harness, rival: Harness) -> None:
    target.deliver(1, FIRST)
    stopped = target.destination._session._connected()  # type: ignore[attr-defined]
    # In the middle of a COPY no timeout of the server's would end it.
    stopped.execute("SET idle_in_transaction_session_timeout = 0")
    stopped.execute("BEGIN")
    stopped.execute("UPDATE penstock.positions SET position = 1500")
    assert rival.destination.committed() == Held(1000, 1)
    rival.deliver(2, SECOND, generation=2)
    assert asked(target.home, "SELECT v FROM public.orders") == [(2,)]
    receipts = target.write(target.epoch(2), SECOND)
    with pytest.raises(DestinationUnreachable):
        target.destination.commit(target.epoch(2), receipts)
    with pytest.raises(LedgerFenced):
        target.destination.commit(target.epoch(2), receipts)


def test_commits_that_the_target_lost_are_noticed(target: Harness) -> None:
    target.deliver(1, FIRST)
    target.deliver(2, SECOND)
    target.deliver(3, [])
    target.close()
    asked(target.home, "UPDATE penstock.positions SET position = 1000, epoch = 1")
    with pytest.raises(DestinationBehind, match="epoch 1") as behind:
        target.deliver(4, [])
    assert behind.value.retry == "manual"
    assert asked(target.home, POSITION)[0][3] == 1000


def test_a_lost_row_is_made_again_and_the_epoch_runs_at_the_next_try(target: Harness) -> None:
    target.deliver(1, FIRST)
    asked(target.home, "DELETE FROM penstock.positions")
    with pytest.raises(DestinationFailed, match="gone"):
        target.deliver(2, SECOND)
    assert asked(target.home, "SELECT v FROM public.orders") == [(1,)]
    target.deliver(2, SECOND)
    assert asked(target.home, "SELECT v FROM public.orders") == [(2,)]
    assert target.destination.committed() == Held(2000, 2)


@pytest.mark.parametrize("setting", ["on", "off", "local", "remote_write", "remote_apply"])
def test_synchronous_commit_is_what_the_server_uses(tmp_path: Path, setting: str) -> None:
    target = Harness("postgres", tmp_path, synchronous_commit=setting)
    target.destination.prepare([ONE])
    asked(
        target.home,
        "ALTER TABLE public.orders ADD seen text;"
        "CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ begin new.seen := current_setting('synchronous_commit'); return new; end $$;"
        "CREATE TRIGGER see BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.see()",
    )
    target.deliver(1, FIRST)
    assert asked(target.home, "SELECT seen FROM public.orders") == [(setting,)]
    target.close()


def test_yaml_s_on_and_off_are_words() -> None:
    assert PostgresOptions.model_validate({"dsn": "host=a", "synchronous_commit": False}).synchronous_commit == "off"
    assert PostgresOptions.model_validate({"dsn": "host=a", "synchronous_commit": True}).synchronous_commit == "on"


def test_a_session_that_the_server_ended_is_made_again(target: Harness) -> None:
    target.deliver(1, FIRST)
    asked(target.home, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'penstock %'")
    with contextlib.suppress(DestinationUnreachable):
        target.deliver(2, SECOND)
    target.deliver(2, SECOND)
    assert asked(target.home, "SELECT v FROM public.orders") == [(2,)]


@EITHER
def test_readers_see_all_of_an_epoch_or_nothing_of_it(target: Harness, way: str) -> None:
    other = table({"id": pa.int64(), "v": pa.int32()}, name="other")
    target.deliver(1, [*FIRST, *work(other, [insert({"id": 1, "v": 1})])])
    asked(
        target.home,
        "CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS $$ begin"
        " if new.v = 3 then raise exception 'no'; end if; return new; end $$;"
        "CREATE TRIGGER look BEFORE UPDATE ON public.other FOR EACH ROW EXECUTE FUNCTION public.look()",
    )
    with pytest.raises(Exception, match="trigger refused"):
        target.deliver(2, [*SECOND, *work(other, [update({"id": 1, "v": 3}, position=1001)])])
    assert asked(target.home, "SELECT o.v, p.v FROM public.orders o, public.other p") == [(1, 1)]
    assert asked(target.home, POSITION)[0][3] == 1000
