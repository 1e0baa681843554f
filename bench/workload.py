"""The work that every benchmark of the path does: one big insert transaction, then many small updates, ten mixed columns."""

from __future__ import annotations

from penstock.core.position import parse_lsn
from penstock.embedded.postgres import EmbeddedPostgres

TABLE = """
create table work (
  id int8 primary key, a int4, t text, num numeric(12,2), b int4, f float8, t2 text, ts timestamptz, ok bool, u uuid
)
"""
INSERT = """
insert into work
select g, g % 1000, 'customer name ' || g, (g % 100000) / 100.0, g * 7 % 100000, g * 1.5 + 0.25,
       'some longer description text for row ' || g || ' padpadpadpad', now(), g % 2 = 0, gen_random_uuid()
from generate_series(1, {rows}) g
"""
UPDATES = """
do $$
begin
  for i in 1..{count} loop
    update work set a = a + 1, num = num + 1 where id = (i * 7919::bigint) % {rows} + 1;
    commit;
  end loop;
end $$
"""
PUBLICATION = "bench"


def make_server() -> EmbeddedPostgres:
    """A server with room for the backlog."""
    return EmbeddedPostgres(settings={"synchronous_commit": "off", "max_wal_size": "8GB", "shared_buffers": "512MB"})


def make_table(server: EmbeddedPostgres) -> None:
    """The empty table and its publication."""
    server.run(TABLE)
    server.run(f"create publication {PUBLICATION} for table work")


def make_backlog(server: EmbeddedPostgres, rows: int, updates: int) -> int:
    """Does the work; returns the position where its last commit ends."""
    server.run(INSERT.format(rows=rows))
    server.run(UPDATES.format(rows=rows, count=updates))
    # The position of a commit of ours, because nobody promises to tell soon of what comes behind it.
    server.run("set synchronous_commit = on; update work set a = 0 where id = 1")
    end = parse_lsn(str(server.run("select pg_current_wal_flush_lsn()::text")[0][0]))
    server.run("checkpoint")
    return end - 256
