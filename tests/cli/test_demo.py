"""`penstock demo`: it shows, it proves, and it cleans up after itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import psutil
import psycopg
import pyarrow as pa
import pytest

from penstock.cli.app import run
from penstock.cli.demo import shop
from penstock.cli.demo.compare import compare
from penstock.cli.demo.generator import LoadGenerator
from penstock.cli.demo.load import Shop
from penstock.errors import SourceFailed
from tests.conftest import Database

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()", "demo"]
WAREHOUSE = """
CREATE SCHEMA public; SET TimeZone = 'UTC';
CREATE TABLE public.customers (id BIGINT, name VARCHAR, email VARCHAR, country VARCHAR, vip BOOLEAN, balance DECIMAL(12,2),
    born DATE, joined_at TIMESTAMPTZ);
CREATE TABLE public.products (sku VARCHAR, title VARCHAR, price DECIMAL(10,2), stock INTEGER, weight DOUBLE, description VARCHAR);
CREATE TABLE public.orders (id BIGINT, customer_id BIGINT, status VARCHAR, total DECIMAL(12,2), note VARCHAR,
    placed_at TIMESTAMPTZ);
CREATE TABLE public.order_lines (order_id BIGINT, line INTEGER, sku VARCHAR, quantity INTEGER, price DECIMAL(10,2));
"""


@pytest.fixture
def loaded(database: Database) -> Database:
    """The shop after some hundred transactions."""
    database.execute(shop.SCHEMA)
    with database.connect() as connection:
        work = Shop(connection, seed=7)
        work.open()
        for _ in range(300):
            work.step()
    assert work.counts["rollbacks"] > 0 and work.counts["delete"] > 0
    return database


@pytest.fixture
def warehouse(loaded: Database, tmp_path: Path) -> Path:
    """A faithful copy of the shop."""
    path = tmp_path / "w.duckdb"
    with duckdb.connect(str(path)) as target, psycopg.connect(loaded.dsn) as source:
        target.execute(WAREHOUSE)
        for table in shop.TABLES:
            rows = source.execute(f"SELECT * FROM {table}".encode()).fetchall()
            names = [column.name for column in source.execute(f"SELECT * FROM {table} LIMIT 0".encode()).description or ()]
            target.register("rows", pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]))
            target.execute(f"INSERT INTO public.{table} SELECT * FROM rows")
    return path


def test_the_load_is_the_same_for_the_same_seed_and_keeps_its_own_books(loaded: Database) -> None:
    orders = loaded.rows("SELECT count(*), count(DISTINCT customer_id) FROM orders")
    assert orders[0][0] > 50
    assert loaded.rows("SELECT 1 FROM order_lines l LEFT JOIN orders o ON o.id = l.order_id WHERE o.id IS NULL") == []
    assert loaded.rows("SELECT 1 FROM products WHERE length(description) < 5000") == []


def test_equal_sides_are_found_equal(loaded: Database, warehouse: Path) -> None:
    verdicts = compare(loaded.dsn, warehouse, list(shop.TABLES))
    assert all(v.equal for v in verdicts) and all(v.rows > 50 for v in verdicts)


@pytest.mark.parametrize(
    ("damage", "table"),
    [
        ("DELETE FROM public.customers WHERE id = (SELECT min(id) FROM public.customers)", "customers"),
        ("INSERT INTO public.orders SELECT * FROM public.orders LIMIT 1", "orders"),
        ("UPDATE public.orders SET note = '' WHERE id = (SELECT min(id) FROM public.orders WHERE note IS NULL)", "orders"),
        ("UPDATE public.order_lines SET price = price + 0.01 WHERE line = 2", "order_lines"),
        ("UPDATE public.products SET description = description || ' '", "products"),
        ("DROP TABLE public.products", "products"),
        ("ALTER TABLE public.products DROP COLUMN weight", "products"),
    ],
)
def test_any_difference_is_found(loaded: Database, warehouse: Path, damage: str, table: str) -> None:
    with duckdb.connect(str(warehouse)) as target:
        target.execute(damage)
    assert [v.table for v in compare(loaded.dsn, warehouse, list(shop.TABLES)) if not v.equal] == [table]


def test_the_generator_ends_when_asked_and_with_its_block(database: Database) -> None:
    database.execute(shop.SCHEMA)
    with LoadGenerator(database.dsn, 500) as load:
        deadline = time.monotonic() + 30
        while load.counts.get("commits", 0) < 20:
            assert time.monotonic() < deadline and not load.has_ended
            time.sleep(0.02)
        load.stop()
        assert load.has_ended
    committed = load.counts["commits"]
    assert database.rows("SELECT count(*) FROM customers")[0][0] >= 200 and committed >= 20
    with LoadGenerator(database.dsn, 1) as load:
        pass
    assert load.has_ended


def test_a_load_that_fails_says_why(database: Database) -> None:
    with LoadGenerator(database.dsn, 10) as load, pytest.raises(SourceFailed, match="products"):
        load.stop()


def test_a_used_directory_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert run(["demo", "--keep", str(tmp_path), "--seconds", "1"]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert run(["demo", "--keep", str(tmp_path / "mine" / "x"), "--seconds", "1"]) == 1
    assert "destination_unwritable" in capsys.readouterr().err


def _start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([*COMMAND, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
def test_the_demo_ends_with_equal_sides_and_no_process_left(tmp_path: Path) -> None:
    with _start("--seconds", "8", "--rate", "100", "--keep", str(tmp_path / "demo")) as process:
        assert process.stdout is not None
        lines: list[str] = []
        seen: set[psutil.Process] = set()
        for line in process.stdout:
            lines.append(line)
            seen.update(_family(process) if process.poll() is None else [])
        assert process.wait(30) == 0, "".join(lines)
    shown = "".join(lines)
    assert "\x1b" not in shown and "Traceback" not in shown and shown.count("✓") == 5 and "✗" not in shown
    assert "load ──▶ PostgreSQL" in shown and "Everything arrived." in shown
    assert (tmp_path / "demo" / "shop.duckdb").exists() and list((tmp_path / "demo" / "changes").glob("public/*/*.parquet"))
    assert seen and psutil.wait_procs(seen, timeout=20)[1] == []


@pytest.mark.slow
def test_two_interrupts_end_the_demo_at_once_and_leave_no_process(tmp_path: Path) -> None:
    with _start("--seconds", "60", "--keep", str(tmp_path / "demo")) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "commits" in line:
                break
        family = _family(process)
        assert family
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(30) == 130
    assert psutil.wait_procs(family, timeout=30)[1] == []
