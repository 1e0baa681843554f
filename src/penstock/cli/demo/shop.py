"""The demo's shop: four tables in a private PostgreSQL, and the flow that follows them."""

from __future__ import annotations

from typing import Any

TABLES = {
    "customers": ("id",),
    "orders": ("id",),
    "order_lines": ("order_id", "line"),
    "products": ("sku",),
}
"""Tables and their keys."""

SCHEMA = """
CREATE TABLE customers (
    id bigint PRIMARY KEY, name text NOT NULL, email text, country char(2) NOT NULL, vip boolean NOT NULL DEFAULT false,
    balance numeric(12,2) NOT NULL DEFAULT 0, born date, joined_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE products (
    sku text PRIMARY KEY, title text NOT NULL, price numeric(10,2) NOT NULL, stock integer NOT NULL, weight double precision,
    description text NOT NULL);
-- Out of line and uncompressed: an update that does not touch it does not log it either.
ALTER TABLE products ALTER COLUMN description SET STORAGE EXTERNAL;
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id bigint NOT NULL, status text NOT NULL, total numeric(12,2) NOT NULL DEFAULT 0,
    note text, placed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE order_lines (
    order_id bigint NOT NULL, line integer NOT NULL, sku text NOT NULL, quantity integer NOT NULL, price numeric(10,2) NOT NULL,
    PRIMARY KEY (order_id, line));
"""


def flow(dsn: str, warehouse: str, changes: str) -> dict[str, Any]:
    """The demo's flow: the shop to a DuckDB file and to Parquet files."""
    return {
        "name": "shop",
        "source": {
            "type": "postgres",
            # Often, so that the end of the demo is soon known to be the end.
            "options": {"dsn": dsn, "publication_tables": [f"public.{table}" for table in TABLES], "heartbeat_interval": "1s"},
        },
        "destinations": [
            {"name": "warehouse", "type": "duckdb", "options": {"path": warehouse}},
            {"name": "changes", "type": "files", "options": {"path": changes, "format": "parquet"}},
        ],
    }
