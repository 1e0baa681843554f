"""Publications, slots and backfills of a created flow, over REST and gRPC, against a real server."""

from __future__ import annotations

import pytest

from penstock.client import Client
from penstock.errors import FlowInvalid, LoadMissing, PublicationMissing, SlotMissing, TablesMissing
from tests.api.conftest import Site
from tests.conftest import Database


def test_what_a_flow_has_on_its_server_is_seen_and_changed(
    site: Site, client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DSN", database.dsn)
    database.execute("create table a (id int primary key); create table b (id int primary key); create table c (id int)")
    slot = f"penstock_{database.name}"
    options = {"dsn": "${env:SHOP_DSN}", "publication_tables": ["public.a"], "slot": slot}
    sent = {
        "name": "shop",
        "source": {"type": "postgres", "options": options},
        "destinations": [{"name": "log", "type": "files", "options": {"path": "/tmp/penstock-never-written"}}],
    }
    client.create_flow(sent)
    with pytest.raises(PublicationMissing):
        client.publication("shop")
    assert client.sync_publication("shop", dry_run=True).created and not database.rows("select 1 from pg_publication")
    made = client.sync_publication("shop")
    assert made.created and made.added == ["public.a"] and not made.dry_run
    found = client.publication("shop")
    assert found.made_by_flow and [(t.table, t.by, t.asked, t.columns) for t in found.tables] == [("a", "named", True, [])]
    tables = {t.table: t for t in client.candidates("shop").tables}
    assert tables["a"].published and not tables["b"].published and tables["c"].problem and tables["b"].key == ["id"]
    assert [t.table for t in client.candidates("shop", ["public.b"]).tables] == ["b"]
    with pytest.raises(TablesMissing):
        client.add_tables("shop", ["b", "nothing"])
    assert client.add_tables("shop", ["b"]).added == ["public.b"]
    assert client.remove_tables("shop", ["public.b"]).dropped == ["public.b"]
    assert client.sync_publication("shop", "sync").added == []

    assert slot not in {s.name for s in client.slots("shop").slots} and client.slots("shop").own == slot
    with pytest.raises(SlotMissing):
        client.drop_slot("shop")
    database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    seen = client.slot("shop")
    assert seen.own and seen.plugin == "pgoutput" and not seen.active and "/" in (seen.confirmed or "")
    assert client.slot("shop", slot).name == slot
    dropped = client.drop_slot("shop")
    assert dropped.slot.name == slot and "can no longer be had" in dropped.lost
    assert not database.rows("select 1 from pg_replication_slots where slot_name = %s", slot)

    ledger = site.service.premises.ledger
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "log", 0, generation)
    asked = client.start_backfill("shop", ["public.a"], where="id > 3", destinations=["log"])
    assert asked.state == "requested" and asked.asked_by == "local"
    assert asked.spec == {"tables": ["public.a"], "where": "id > 3", "destinations": ["log"]}
    with pytest.raises(LoadMissing):
        client.start_backfill("shop", ["public.a"], destinations=["elsewhere"])
    assert client.steer_backfill("pause", "shop", asked.id).state == "paused"
    assert client.steer_backfill("resume", "shop", asked.id).state == "requested"
    assert [b.id for b in client.backfills("shop").backfills] == [asked.id]
    client.steer_backfill("cancel", "shop", asked.id)
    with pytest.raises(LoadMissing, match="cancelled, for good"):
        client.steer_backfill("resume", "shop", asked.id)
    assert client.backfill("shop", asked.id).table_count == 0
    records = [r.action for r in client.audit(flow="shop").records]
    assert {"publication.sync", "publication.add", "publication.remove", "slot.drop", "backfill.start"} <= set(records)
    monkeypatch.delenv("SHOP_DSN")
    with pytest.raises(FlowInvalid):
        client.slots("shop")
