"""Loads that meet trouble: cancelled with an epoch on its way, read anew, a ledger or a server that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.engine import loading
from penstock.engine.intake import Intake
from penstock.engine.moments import Moments
from penstock.errors import DestinationUnreachable, LedgerUnreachable, SourceUnreachable, TableChanged
from penstock.journal.chunks import remove_loads
from penstock.observe import failpoints
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.engine.delivery import deadly_failpoints
from tests.engine.loads import LoadedDelivery
from tests.engine.test_loading import assert_equal, delivering, filled, final_rows
from tests.flows import wait_until

__all__ = ["filled"]


def _killed_with_a_chunk_planned(delivery: LoadedDelivery, monkeypatch: pytest.MonkeyPatch) -> None:
    deadly_failpoints(monkeypatch)
    delivery.most = 1
    failpoints.arm("engine.after_plan")
    delivery.start()
    wait_until(lambda: delivery.was_killed, 60, "no epoch was planned")
    delivery.stop()
    delivery.was_killed, delivery.most = False, None


@pytest.mark.parametrize("kind", ["duckdb", "files"])
@pytest.mark.timeout(300)
def test_a_load_that_is_cancelled_with_an_epoch_planned_holds_its_destination_up_no_more(
    filled: Database, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, kind, first=True) as delivery:
        _killed_with_a_chunk_planned(delivery, monkeypatch)

        def cancel() -> None:
            # As a worker does whose destination is down.
            (first,) = delivery.ledger.loads.open("flow")
            assert [e.is_side for e in delivery.ledger.planned("flow", "target")] == [True]
            delivery.ledger.loads.forget_entries(first, delivery.lease.generation)
            delivery.ledger.loads.become(first, delivery.lease.generation, "cancelled")
            remove_loads(delivery.captured.directory, ())

        monkeypatch.setattr(delivery, "before_start", cancel)
        delivery.start()
        filled.execute("insert into steps values (1)")
        delivery.finish()
        assert not delivery.ledger.planned("flow", "target")
        delivery.stop()
        assert [row[0] for row in final_rows(delivery, "steps", "n")] == [1]


@pytest.mark.timeout(300)
def test_a_table_that_is_read_anew_begins_empty_also_where_its_old_rows_are_still_on_their_way(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, "duckdb", first=True) as delivery:
        delivery.source_options["snapshot_state_backend"] = "none"
        _killed_with_a_chunk_planned(delivery, monkeypatch)
        filled.execute("delete from accounts where id < 50; delete from lines where a < 20; delete from steps")
        filled.execute('delete from "We""ird; table" where "Id" < 50')
        delivery.start()
        delivery.finish()
        delivery.stop()
        assert_equal(delivery)


@pytest.mark.timeout(300)
def test_a_server_that_does_not_answer_when_a_backfill_is_planned_anew_is_asked_again(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, "files", first=False) as delivery:
        delivery.start()
        read, discover = delivery.readers.read, delivery.loading._source.discover
        refusals = [SourceUnreachable("the server is away")]

        def change(load: Any, chunks: Any, *_: Any) -> Any:
            monkeypatch.setattr(delivery.readers, "read", read)
            monkeypatch.setattr(delivery.loading._source, "discover", hesitate)
            return [], TableChanged("the table is another", load_chunk=chunks[0].id)

        def hesitate() -> Any:
            if refusals:
                raise refusals.pop()
            return discover()

        monkeypatch.setattr(delivery.readers, "read", change)
        delivery.backfill("public.accounts")
        delivery.finish()
        assert not refusals
        delivery.stop()
        assert_equal(delivery, (("accounts", "id"),))


def test_what_was_known_of_loads_stays_until_the_ledger_has_said_all_of_the_new(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, "files", first=False) as delivery:
        delivery.start()
        ledger, generation = delivery.ledger, delivery.lease.generation
        intake = Intake(ledger, "flow", generation, "target", delivery.captured.directory, 1 << 20)
        assert intake.filters(0) == {}
        ledger.loads.begin("flow", generation, "table", {"names": []}, "test", {"target": [("public", "joins")]}, 5)
        intake.notice()

        def away(number: int) -> Any:
            raise LedgerUnreachable("the ledger is away")

        with monkeypatch.context() as patch:
            patch.setattr(ledger.loads, "chunks", away)
            for _ in range(2):
                with pytest.raises(LedgerUnreachable):
                    intake.filters(0)
        assert intake.filters(0) == {"without": [["public", "joins"]]}
        assert intake.settled(9) == 5 == intake.needed(9)


@pytest.mark.timeout(300)
def test_a_staging_destination_that_is_down_keeps_no_load_from_being_read(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, "duckdb", first=False) as delivery:
        delivery.options |= {"batch_mode": "staging", "batch_resolution": "replace"}
        loop = delivery.start()
        down = [True]
        begin = delivery.destination.begin_load

        def refuse(name: str, tables: Any) -> None:
            if down:
                raise DestinationUnreachable("the destination is away")
            begin(name, tables)

        monkeypatch.setattr(delivery.destination, "begin_load", refuse)
        loop._give_up = False
        delivery.backfill("public.accounts")
        wait_until(lambda: delivery.readers.read_chunks != [], 60, "nothing is read while the destination is down")
        down.clear()
        delivery.finish()
        delivery.stop()
        assert_equal(delivery, (("accounts", "id"),))


@pytest.mark.timeout(300)
def test_a_condition_that_fails_on_a_row_ends_the_backfill_and_says_why(filled: Database, tmp_path: Path) -> None:
    with delivering(filled, tmp_path, "files", first=False) as delivery:
        delivery.start()
        number = delivery.backfill("public.accounts", where="1 / (id - 7) > -2")
        wait_until(lambda: not delivery.ledger.loads.open("flow"), 60, "it is tried for ever")
        (found,) = [one for one in delivery.ledger.loads.all("flow") if one.id == number]
        assert found.state == "failed" and "22012" in str(found.reason) and "Correct `--where`" in str(found.reason)


@pytest.mark.timeout(300)
def test_a_load_that_waits_says_for_what_until_it_goes_on(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, "files", first=False) as delivery:
        delivery.start()
        read, away = delivery.readers.read, [True]

        def refuse(*given: Any) -> Any:
            return ([], SourceUnreachable("the server is away")) if away else read(*given)

        monkeypatch.setattr(delivery.readers, "read", refuse)
        delivery.backfill("public.accounts")
        wait_until(lambda: "the server is away" in str(delivery.ledger.loads.open("flow")[0].reason), 60, "it does not say")
        away.clear()
        delivery.finish()
        assert delivery.ledger.loads.all("flow")[-1].reason is None


@pytest.mark.parametrize("first", [True, False], ids=["first", "backfill"])
@pytest.mark.timeout(300)
def test_a_surprise_within_a_load_is_that_load_s_alone_and_it_is_tried_again(
    filled: Database, tmp_path: Path, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, slips = PostgresSource.plan_chunks, [FileNotFoundError("pl4nted")]

    def slip(*given: Any) -> Any:
        if slips:
            raise slips.pop()
        return plan(*given)

    monkeypatch.setattr(PostgresSource, "plan_chunks", slip)
    with delivering(filled, tmp_path, "files", first=first) as delivery:
        delivery.start()
        if not first:
            delivery.backfill("public.accounts")
        wait_until(lambda: delivery.ledger.loads.all("flow")[-1].reason is not None, 60, "it does not say")
        why = str(delivery.ledger.loads.all("flow")[-1].reason)
        assert why.startswith("load_interrupted: ") and "FileNotFoundError" in why and "pl4nted" not in why
        delivery.finish()
        assert delivery.loading.error is None and delivery.ledger.loads.all("flow")[-1].reason is None
        delivery.stop()
        assert_equal(delivery, (("accounts", "id"),))


@pytest.mark.timeout(300)
def test_a_chunk_whose_file_cannot_be_removed_keeps_no_load_from_its_end(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def refuse(journal: Path, load: int, file: str) -> None:
        refused.append(file)
        raise PermissionError("read-only")

    monkeypatch.setattr(loading, "remove_chunk", refuse)
    with delivering(filled, tmp_path, "files", first=True) as delivery:
        delivery.start()
        delivery.finish()
        (first,) = delivery.ledger.loads.all("flow")
        assert first.state == "done" and refused and len(refused) == len(set(refused))
        delivery.stop()
        assert_equal(delivery)


@pytest.mark.parametrize("error", [OSError("slow"), SourceUnreachable("the journal has not come so far")], ids=["os", "timed"])
@pytest.mark.timeout(300)
def test_a_new_snapshot_whose_beginning_failed_is_not_read_in(
    filled: Database, tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the snapshot before did not show would be missing: the rows that changed in between are asked for first."""
    touched, slips, tables = Moments.touched, [error], (("accounts", "id"), ("halves", "id"))
    filled.execute("create table halves (id int primary key, v int, pad text)")
    filled.execute("insert into halves select i, 0, repeat(md5(i::text), 30) from generate_series(1, 3000) i")

    def slip(*given: Any) -> Any:
        if slips:
            raise slips.pop()
        return touched(*given)

    monkeypatch.setattr(Moments, "touched", slip)
    with delivering(filled, tmp_path, "duckdb", first=True) as delivery:
        delivery.source_options["snapshot_chunk"] = "1MiB"
        delivery.most = 3
        delivery.start()
        wait_until(lambda: sum(c.state == "read" for c in delivery.ledger.loads.chunks(1)) == 3, 60, "nothing is read")
        halves = [c.state for c in delivery.ledger.loads.chunks(1) if c.table == "halves"]
        assert {"read", "planned"} <= set(halves), halves
        delivery.stop()
        filled.execute("update halves set v = 1; delete from halves where id % 10 = 0")
        delivery.most = None
        delivery.start()
        delivery.finish()
        assert not slips
        delivery.stop()
        assert_equal(delivery, tables)
