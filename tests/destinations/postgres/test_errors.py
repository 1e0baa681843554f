"""What can go wrong at the target: each an error of ours with a code, a retry class and a remedy, and never a row's value."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.destinations.postgres.destination import PostgresDestination
from penstock.destinations.postgres.options import PostgresOptions
from penstock.errors import (
    DestinationError,
    DestinationFailed,
    DestinationRefused,
    DestinationUnreachable,
    DestinationUnwritable,
    SchemaRefused,
    ValueRefused,
)
from tests.batches import insert, table, update
from tests.conformance.harness import Harness, work
from tests.destinations.postgres.subject import asked, dsn

ONE = table({"id": pa.int64(), "v": pa.string()})
SECRET = "hunter2-4711"
FIRST = work(ONE, [insert({"id": 1, "v": "first"})])
SECOND = work(ONE, [insert({"id": 2, "v": SECRET}, position=1001), update({"id": 1, "v": SECRET}, position=1001, ordinal=2)])


def refused(target: Harness, kind: type[DestinationError]) -> DestinationError:
    """The error that the second epoch meets; nothing of it is there afterwards, and the destination works on."""
    with pytest.raises(kind) as raised:
        target.deliver(2, SECOND)
    error = raised.value
    assert type(error) is kind
    assert SECRET not in f"{error.message} {error.remedy} {error.facts}"
    assert error.remedy and pickle.loads(pickle.dumps(error)).to_data() == error.to_data()
    return error


def raising(target: Harness, body: str) -> None:
    """Lets a trigger of the server's own do something before a row is written."""
    target.deliver(1, FIRST)
    asked(
        target.home,
        f"CREATE FUNCTION public.act() RETURNS trigger LANGUAGE plpgsql AS $$ begin {body} return new; end $$;"
        "CREATE TRIGGER act BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.act()",
    )


@pytest.mark.parametrize(
    ("statement", "constraint", "said"),
    [
        ("ADD CONSTRAINT short CHECK (length(v) < 8)", "short", "check"),
        ("ADD CONSTRAINT one UNIQUE (v)", "one", "unique"),
        ("ADD CONSTRAINT refers FOREIGN KEY (v) REFERENCES public.others (v) NOT VALID", "refers", "foreign key"),
        ("ADD CONSTRAINT later FOREIGN KEY (v) REFERENCES public.others INITIALLY DEFERRED NOT VALID", "later", "foreign"),
        ("ALTER v TYPE varchar(8)", "", "longer"),
        ("ALTER v TYPE public.word USING v::public.word", "", "none of its column's type"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["arrays", "pour"], indirect=True)
def test_a_row_that_the_table_refuses(target: Harness, statement: str, constraint: str, said: str, way: str) -> None:
    target.deliver(1, FIRST)
    asked(target.home, "CREATE TYPE public.word AS ENUM ('first'); CREATE TABLE public.others (v text PRIMARY KEY)")
    asked(target.home, f"ALTER TABLE public.orders {statement}")
    target.close()
    epoch = target.epoch(2)
    receipts = target.write(epoch, SECOND)
    with pytest.raises(ValueRefused) as raised:
        target.destination.commit(epoch, receipts)
    error = raised.value
    assert error.code == "value_refused" and error.retry == "manual"
    assert error.facts["table"] == "public.orders" and error.facts.get("constraint", "") == constraint
    assert "public.orders" in error.message and constraint in error.message and said in error.message
    assert SECRET not in f"{error.message} {error.remedy} {error.facts}"
    assert asked(target.home, "SELECT id, v::text FROM public.orders") == [(1, "first")]
    if constraint:
        assert f'DROP CONSTRAINT "{constraint}"' in error.remedy
        asked(target.home, f"ALTER TABLE public.orders DROP CONSTRAINT {constraint}")
        target.deliver(2, SECOND)
        assert len(asked(target.home, "SELECT id FROM public.orders")) == 2


@pytest.mark.parametrize(
    ("state", "kind", "remedy"),
    [
        ("53100", DestinationUnwritable, "Free space"),
        ("53200", DestinationFailed, "max_bytes"),
        ("40001", DestinationFailed, "run again"),
        ("40P01", DestinationFailed, "run again"),
        ("57P03", DestinationUnreachable, "Nothing to do"),
        ("53300", DestinationUnreachable, "max_connections"),
        ("42501", DestinationRefused, "GRANT"),
        ("XX000", DestinationFailed, "tried again"),
    ],
)
def test_what_the_server_reports_has_a_class_and_a_remedy(
    target: Harness, state: str, kind: type[DestinationError], remedy: str
) -> None:
    raising(target, f"raise exception 'said' using errcode = '{state}';")
    error = refused(target, kind)
    assert error.facts["sqlstate"] == state and remedy in error.remedy
    assert error.retry == ("manual" if kind is DestinationRefused else "timed")
    asked(target.home, "DROP FUNCTION public.act CASCADE")
    target.deliver(2, SECOND)
    assert len(asked(target.home, "SELECT id FROM public.orders")) == 2


def test_a_server_that_takes_no_writes(target: Harness) -> None:
    raising(target, "set transaction_read_only = on; insert into public.orders values (9, 'x');")
    error = refused(target, DestinationUnwritable)
    assert error.facts["sqlstate"] == "25006" and "target_session_attrs=read-write" in error.remedy


def test_a_trigger_that_raises_refuses_the_row(target: Harness) -> None:
    raising(target, "if new.id = 2 then raise exception 'no % here', new.v; end if;")
    assert "trigger" in refused(target, ValueRefused).message


def test_a_session_that_dies_in_the_middle(target: Harness) -> None:
    raising(target, "perform pg_terminate_backend(pg_backend_pid());")
    refused(target, DestinationUnreachable)


def test_a_statement_that_takes_too_long(tmp_path: Path) -> None:
    target = Harness("postgres", tmp_path, dsn=f"{dsn(tmp_path)}?options=-c%20statement_timeout%3D200ms")
    raising(target, "if new.id = 2 then perform pg_sleep(60); end if;")
    error = refused(target, DestinationFailed)
    assert error.facts["sqlstate"] == "57014" and "statement_timeout" in error.remedy
    target.close()


def test_a_lock_that_is_not_given(tmp_path: Path) -> None:
    target = Harness("postgres", tmp_path, dsn=f"{dsn(tmp_path)}?options=-c%20lock_timeout%3D200ms")
    target.deliver(1, FIRST)
    with psycopg.connect(dsn(tmp_path)) as holder:
        holder.execute("SELECT * FROM public.orders FOR UPDATE")
        error = refused(target, DestinationFailed)
    assert error.facts["sqlstate"] == "55P03" and "pg_blocking_pids" in error.remedy
    target.deliver(2, SECOND)
    target.close()


def test_a_column_that_somebody_dropped_comes_back(target: Harness) -> None:
    target.deliver(1, FIRST)
    epoch = target.epoch(2)
    receipts = target.write(epoch, SECOND)
    asked(target.home, "ALTER TABLE public.orders DROP COLUMN v")
    with pytest.raises(DestinationFailed, match="42703"):
        target.destination.commit(epoch, receipts)
    target.deliver(2, SECOND)
    assert asked(target.home, "SELECT id, v FROM public.orders ORDER BY id") == [(1, SECRET), (2, SECRET)]


def test_a_key_that_no_index_takes_is_refused_with_its_table(target: Harness) -> None:
    with pytest.raises(SchemaRefused, match=r"public\.orders"):
        target.destination.prepare([table({"j": (pa.string(), "json"), "v": pa.int32()}, key=("j",))])


@pytest.fixture
def low(target: Harness) -> Iterator[str]:
    """The dsn of a role that may log in and nothing else."""
    name = f"low_{target.home.name.replace('-', '_')}"[:40].lower()
    asked(target.home, f"CREATE ROLE {name} LOGIN PASSWORD 'right'")
    yield dsn(target.home).replace("://postgres:", f"://{name}:", 1)
    asked(target.home, f"DROP OWNED BY {name}; DROP ROLE {name}")


def with_password(url: str, password: str) -> str:
    head, _, rest = url.partition("@")
    return f"{head.rpartition(':')[0]}:{password}@{rest}"


def findings(options: dict[str, Any], home: Path) -> list[Any]:
    target = Harness("postgres", home, **options)
    found = [finding for finding in target.destination.check() if not finding.ok]
    target.close()
    return found


def test_an_address_where_nobody_answers(tmp_path: Path) -> None:
    (found,) = findings({"dsn": f"postgresql://u:{SECRET}@127.0.0.1:1/d"}, tmp_path)
    assert found.code == "destination_unreachable" and "127.0.0.1:1" in found.detail and "host, port" in found.remedy
    assert SECRET not in f"{found}"


def test_a_wrong_password(low: str, tmp_path: Path) -> None:
    (found,) = findings({"dsn": with_password(low, SECRET)}, tmp_path)
    assert found.code == "destination_refused" and "password" in found.remedy and SECRET not in f"{found}"


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    url = dsn(tmp_path).rpartition("/")[0] + "/nowhere"
    (found,) = findings({"dsn": url}, tmp_path)
    assert found.code == "destination_refused" and 'CREATE DATABASE "nowhere"' in found.remedy


def test_rights_that_are_missing_come_with_their_statements(target: Harness, low: str, tmp_path: Path) -> None:
    url = with_password(low, "right")
    asked(target.home, f"REVOKE TEMPORARY ON DATABASE {url.rpartition('/')[2]} FROM public; CREATE SCHEMA copy")
    found = findings({"dsn": url, "schema_template": "copy"}, tmp_path)
    assert {f.subject for f in found} == {"schema penstock", "schema copy", "temporary tables"}
    assert {f.code for f in found} == {"destination_refused"}
    destination = PostgresDestination(target.place, PostgresOptions(dsn=url))
    with pytest.raises(DestinationRefused, match="lacks a right"):
        destination.prepare([ONE])
    destination.close()
    for finding in found:
        asked(target.home, finding.remedy.partition("; or")[0])
    assert findings({"dsn": url, "schema_template": "copy"}, tmp_path) == []


def test_the_check_of_a_good_place_says_what_it_found(target: Harness) -> None:
    found = target.destination.check()
    assert [finding.ok for finding in found] == [True, True] and "PostgreSQL 18" in found[0].detail
    assert asked(target.home, "SELECT 1 FROM pg_namespace WHERE nspname = 'penstock'") == []
