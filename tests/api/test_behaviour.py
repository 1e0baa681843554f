"""One behaviour over REST, over gRPC and without a server: the same answers, the same errors, the same limits and roles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client, ControlPlane
from penstock.client.routes import ROUTES
from penstock.control.answers import EventAnswer, FlowAnswer
from penstock.control.caller import Caller
from penstock.control.requests import FlowCreation, LetterChoice, TokenCreation
from penstock.core.epoch import Epoch
from penstock.errors import (
    AccessDenied,
    ConnectorUnknown,
    FlowChanged,
    FlowExists,
    FlowInvalid,
    FlowUnknown,
    KeyReused,
    LetterMissing,
    LoadMissing,
    RequestRefused,
    RevisionStale,
    RewindRefused,
    ServerUnreachable,
    TokenMissing,
    TransitionRefused,
)
from tests.api.conftest import TRANSPORTS, Site
from tests.control.definitions import definition


def test_a_flow_lives_through_a_server_and_without(plane: ControlPlane) -> None:
    made = plane.create_flow(definition(labels={"team": "a"}), why="a shop", key="k")
    assert plane.create_flow(definition(labels={"team": "a"}), why="a shop", key="k").etag == made.etag
    assert plane.flow("shop").definition == definition(labels={"team": "a"})
    plane.create_flow(definition("other"))
    assert [f.name for f in plane.flows(labels="team=a").flows] == ["shop"]
    first = plane.flows(limit=1)
    assert [f.name for f in plane.flows(after=first.next or "", limit=1).flows] == ["shop"]
    assert plane.command("start", "shop", why="go").wished == "running"
    assert [f.name for f in plane.flows(states=["created", "failed"]).flows] == ["other", "shop"]
    with pytest.raises(TransitionRefused) as refused:
        plane.delete_flow("shop")
    assert "penstock flow stop" in refused.value.remedy
    with pytest.raises(RevisionStale):
        plane.update_flow("shop", definition(), etag="0-1")
    assert plane.update_flow("shop", definition(), etag=made.etag, why="no label").revision == 2
    assert [r.why for r in plane.revisions("shop").revisions] == ["no label", "a shop"]
    with pytest.raises(FlowInvalid) as invalid:
        plane.create_flow({"name": "x"})
    assert {p.path for p in invalid.value.problems} == {"source", "destinations"}
    assert not plane.validate({"name": "x"}).valid
    assert [e.event for e in plane.events(flow="shop").events] == ["created", "start asked for", "updated"]
    assert plane.letters("shop").letters == []
    with pytest.raises(LetterMissing):
        plane.replay("shop", LetterChoice(ids=[7]))
    with pytest.raises(RequestRefused):
        plane.discard("shop", LetterChoice())
    plane.command("stop", "shop", wait=5)
    plane.delete_flow("shop", cleanup=False)
    with pytest.raises(FlowUnknown):
        plane.flow("shop")
    assert plane.server().flows == {"created": 1}
    assert plane.audit(flow="shop").records[0].action == "flow.delete"
    assert plane.checkpoints("other").checkpoints == []


def test_what_happens_is_watched_while_it_happens(plane: ControlPlane, request: pytest.FixtureRequest) -> None:
    plane.create_flow(definition())
    seen: list[EventAnswer | FlowAnswer] = []
    other = request.getfixturevalue("site").client("rest") if isinstance(plane, Client) else plane
    for item in plane.watch("shop", seconds=120):
        seen.append(item)
        if len(seen) == 1:
            other.command("start", "shop", why="now")
        if isinstance(item, FlowAnswer) and item.wished == "running":
            break
    if other is not plane:
        other.close()
    assert [(e.event, e.why) for e in seen if isinstance(e, EventAnswer)] == [("start asked for", "now")]
    assert isinstance(seen[0], FlowAnswer) and seen[0].wished == "stopped"


def test_who_watches_a_flow_that_is_deleted_is_told(site: Site, client: Client) -> None:
    client.create_flow(definition())
    stream = client.watch("shop", seconds=60)
    next(stream)
    site.service.flows.delete(Caller("ann", "admin"), "shop")
    with pytest.raises(FlowUnknown):
        list(stream)
    with pytest.raises(FlowUnknown):
        next(client.watch("shop"))


def test_every_problem_of_a_definition_comes_with_its_path(client: Client) -> None:
    sent = definition(config={"ack_policy": "quorom"}, nmae=1)
    with pytest.raises(FlowInvalid) as refused:
        client.create_flow(sent)
    assert {p.path for p in refused.value.problems} == {"config.ack_policy", "nmae"} and all(
        p.remedy for p in refused.value.problems
    )
    assert not client.validate(sent).valid and client.validate(definition()).valid


def test_a_server_may_enforce_one_format(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"name": "log", "type": "files", "options": {"path": "/tmp/penstock-never-written", "format": "parquet"}}
    sent = definition(wire_format="json", destinations=[other])
    assert client.validate(sent).valid
    monkeypatch.setenv("PENSTOCK_WIRE_ENFORCE", "true")
    with pytest.raises(FlowInvalid) as refused:
        client.create_flow(sent)
    assert [p.path for p in refused.value.problems] == ["destinations[0].options.format"]
    assert client.create_flow(definition(wire_format="json")).definition == definition(wire_format="json")


def test_what_nobody_may_ask_is_refused(client: Client) -> None:
    asked: list[Callable[[], object]] = [
        lambda: client.flows(labels="=x"),
        lambda: client.flows(limit=501),
        lambda: client.flows(states=["sleeping"]),
        lambda: client.flow("a b"),
        lambda: client.command("start", "shop", why="x" * 1001),
        lambda: client.command("start", "shop", wait=61),
        lambda: client.revoke_token("nonsense"),
        lambda: client.letter("shop", -1),
        lambda: client.create_flow(definition(), key="not a key"),
        lambda: client.create_flow(definition(labels={"padding": "x" * (1 << 20)})),
        lambda: client.start_backfill("shop", []),
        lambda: client.slot("shop", "No Slot"),
        lambda: client.checkpoints("shop", limit=1001),
        lambda: client.schemas("shop", table="x" * 256),
    ]
    for number, ask in enumerate(asked):
        with pytest.raises(RequestRefused):
            pytest.fail(f"request {number} was answered: {ask()}")


def test_an_etag_guards_an_update_and_a_deletion(client: Client) -> None:
    made = client.create_flow(definition())
    changed = client.update_flow("shop", definition(parallelism=2), etag=made.etag)
    assert changed.revision == 2 and changed.definition == definition(parallelism=2)
    assert isinstance((changed.definition or {})["parallelism"], int)
    with pytest.raises(RevisionStale):
        client.update_flow("shop", definition(parallelism=3), etag=made.etag)
    with pytest.raises(RevisionStale):
        client.delete_flow("shop", etag=made.etag)
    client.delete_flow("shop", etag=changed.etag, why="over")


def test_a_flow_that_nobody_runs_is_reconfigured_for_its_next_start_and_what_is_wrong_changes_nothing(client: Client) -> None:
    made = client.create_flow(definition())
    done = client.reconfigure_flow("shop", definition(labels={"team": "a"}), etag=made.etag, why="a team")
    assert (done.revision, done.applied, done.state) == (2, "counts from the next start", "created")
    assert client.reconfigure_flow("shop", definition(labels={"team": "a"})).applied == "nothing has changed"
    with pytest.raises(RevisionStale):
        client.reconfigure_flow("shop", definition(), etag=made.etag)
    with pytest.raises(FlowInvalid):
        client.reconfigure_flow("shop", definition(parallelism=0))
    with pytest.raises(FlowChanged):
        client.reconfigure_flow("shop", definition("other"))
    with pytest.raises(FlowUnknown):
        client.reconfigure_flow("nobody", definition("nobody"))
    client.command("start", "shop")
    with pytest.raises(TransitionRefused) as refused:
        client.clean_up_flow("shop")
    assert "penstock flow stop" in refused.value.remedy
    assert client.flow("shop").revision == 2


GUARDED: dict[str, tuple[str, dict[str, Any]]] = {
    "Flows.Create": ("admin", {"definition": {}}),
    "Flows.Update": ("admin", {"name": "shop", "definition": {}}),
    "Flows.Reconfigure": ("admin", {"name": "shop", "definition": {}}),
    "Flows.Cleanup": ("admin", {"name": "shop"}),
    "Flows.Delete": ("admin", {"name": "shop"}),
    **{f"Flows.{c}": ("operator", {"name": "shop"}) for c in ("Start", "Pause", "Resume", "Stop", "Run", "Reload")},
    "Flows.Rewind": ("operator", {"name": "shop", "destination": "warehouse", "to": "oldest"}),
    "Flows.Release": ("operator", {"name": "shop", "destination": "warehouse", "table": "public.t"}),
    "Flows.Release skipping": ("admin", {"name": "shop", "destination": "warehouse", "table": "public.t", "skip_missed": True}),
    "Flows.ResolveStaging": ("operator", {"name": "shop"}),
    "DeadLetters.Replay": ("operator", {"flow": "shop"}),
    "DeadLetters.Discard": ("operator", {"flow": "shop"}),
    "Backfills.Start": ("operator", {"flow": "shop", "tables": ["public.t"]}),
    **{f"Backfills.{c}": ("operator", {"flow": "shop", "number": 1}) for c in ("Pause", "Resume", "Cancel")},
    "Backfills.Start with a filter": ("admin", {"flow": "shop", "tables": ["public.t"], "where": "true"}),
    "DeadLetters.Get": ("operator", {"flow": "shop", "number": 1}),
    "Flows.Examine": ("operator", {"name": "shop"}),
    "Publications.Get": ("operator", {"name": "shop"}),
    "Publications.Discover": ("operator", {"flow": "shop"}),
    "Slots.List": ("operator", {"name": "shop"}),
    "Slots.Get": ("operator", {"flow": "shop"}),
    "Publications.Add": ("admin", {"flow": "shop", "tables": ["public.t"]}),
    "Publications.Remove": ("admin", {"flow": "shop", "tables": ["public.t"]}),
    "Publications.Sync": ("admin", {"flow": "shop"}),
    "Slots.Drop": ("admin", {"flow": "shop"}),
    "People.CreateToken": ("admin", {"name": "x", "role": "admin"}),
    "People.ListTokens": ("admin", {}),
    "People.RevokeToken": ("admin", {"number": "0" * 12}),
    "People.ListAudit": ("admin", {}),
}
READS = {
    *("Flows.Get", "Flows.List", "Flows.ListRevisions", "Flows.ListCheckpoints", "Flows.ListSchemas"),
    *("Events.List", "Events.Watch"),
    *("DeadLetters.List", "Backfills.List", "Backfills.Get", "Connectors.List", "Connectors.Get", "Connectors.Validate"),
    "Server.Get",
}
"""What a viewer may ask; a new operation stands here, or above with who may."""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_operation_is_refused_to_who_may_less(site: Site, transport: str) -> None:
    assert {name.split()[0] for name in GUARDED} | READS == set(ROUTES)
    site.service.flows.create(Caller("ann", "admin"), FlowCreation(definition=definition()))
    ann = Caller("ann", "admin")
    tokens = {
        "viewer": site.service.people.create(ann, TokenCreation(name="v", role="viewer")).token,
        "operator": site.service.people.create(ann, TokenCreation(name="o", role="operator")).token,
    }
    below = {"operator": ("viewer",), "admin": ("viewer", "operator")}
    for name, (needs, asked) in GUARDED.items():
        for role in below[needs]:
            with site.client(transport, tokens[role]) as who, pytest.raises(AccessDenied):
                who._transport.ask(name.split()[0], **asked)


def test_a_key_makes_repetitions_one_whatever_they_came_over(site: Site) -> None:
    sent = definition(parallelism=2, config={"retry": {"factor": 1.5}})
    with site.client("rest") as one, site.client("grpc") as other:
        made = one.create_flow(sent, key="abc")
        assert other.create_flow(sent, key="abc").etag == made.etag
        with pytest.raises(KeyReused):
            other.create_flow(definition("other"), key="abc")
        with pytest.raises(FlowExists):
            other.create_flow(sent)


def test_tokens_once_there_are_needed_by_everybody_and_roles_hold(site: Site, client: Client) -> None:
    transport = "grpc" if client._transport.url.startswith("grpc") else "rest"
    admin_token = client.create_token("ann", "admin").token
    with pytest.raises(TokenMissing):
        client.flows()
    with site.client(transport, admin_token + "x") as stranger, pytest.raises(TokenMissing):
        stranger.flows()
    with site.client(transport, admin_token) as admin:
        tokens = {role: admin.create_token(role, role).token for role in ("viewer", "operator")}
        with site.client(transport, tokens["viewer"]) as viewer, site.client(transport, tokens["operator"]) as operator:
            with pytest.raises(AccessDenied):
                operator.create_flow(definition())
            admin.create_flow(definition())
            assert viewer.flow("shop").created_by == "ann"
            with pytest.raises(AccessDenied):
                viewer.command("start", "shop")
            assert operator.command("start", "shop").by == "operator"
            for forbidden in (
                viewer.tokens,
                operator.audit,
                lambda: viewer.letter("shop", 1),
                lambda: viewer.publication("shop"),
                lambda: operator.add_tables("shop", ["orders"]),
                lambda: operator.drop_slot("shop"),
                lambda: viewer.start_backfill("shop", ["orders"]),
                lambda: viewer.reload("shop"),
                lambda: viewer.rewind("shop", "log", "oldest"),
                lambda: viewer.resolve_staging("shop"),
                lambda: operator.release("shop", "log", "public.orders", skip_missed=True),
                lambda: operator.start_backfill("shop", ["orders"], where="true"),
            ):
                with pytest.raises(AccessDenied):
                    forbidden()
            with pytest.raises(LoadMissing):
                operator.start_backfill("shop", ["orders"])
        assert [t.role for t in admin.tokens().tokens] == ["admin", "viewer", "operator"]
        number = admin.tokens().tokens[1].id
        admin.revoke_token(number)
        assert admin.tokens().tokens[1].revoked_at is not None
        refusals = [r for r in admin.audit().records if r.outcome == "access_denied"]
        assert {r.action for r in refusals} >= {"flow.create", "publication.add", "slot.drop", "backfill.start"}


def test_the_door_stays_shut_when_the_last_token_is_revoked(site: Site, client: Client) -> None:
    made = client.create_token("ann", "admin")
    transport = "grpc" if client._transport.url.startswith("grpc") else "rest"
    with site.client(transport, made.token) as ann:
        ann.revoke_token(made.id)
    for ask in (client.flows, lambda: client.create_token("eve", "admin")):
        with pytest.raises(TokenMissing):
            ask()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_viewer_lists_dead_letters_without_the_keys_of_rows(site: Site, transport: str) -> None:
    ann, ledger = Caller("ann", "admin"), site.service.premises.ledger
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "log", 0, generation)
    epoch = Epoch("shop", "log", "5ec0ffee", 1, 0, 10, 1, generation)
    ledger.plan(epoch, 1)
    key = '{"mail":"ann@example.org"}'
    about = {"schema": "public", "table": "people", "key": key, "keys": [key], "op": "insert", "content": b"arrow"}
    ledger.set_aside(epoch, generation, [{**about, "position": 5, "ordinal": 1, "code": "too_big", "reason": "why"}], {}, {})
    ledger.close_epoch(epoch, generation, letters=True)
    seen = {}
    for role in ("viewer", "operator"):
        token = site.service.people.create(ann, TokenCreation(name=role, role=role)).token
        with site.client(transport, token) as who:
            seen[role] = who.letters("shop").letters[0].key
    assert seen == {"viewer": None, "operator": {"mail": "ann@example.org"}}


def test_options_are_json_schema_and_secrets_are_write_only(client: Client) -> None:
    names = {(c.kind, c.name) for c in client.connectors().connectors}
    assert ("source", "postgres") in names and ("destination", "duckdb") in names
    options = client.connector("source", "postgres").options
    assert options["properties"]["dsn"]["writeOnly"] is True and "dsn" in options["required"]
    with pytest.raises(ConnectorUnknown):
        client.connector("source", "nothing")


def test_what_the_source_has_is_asked_for_by_flows_that_were_created(plane: ControlPlane) -> None:
    plane.create_flow(definition())
    assert plane.backfills("shop").backfills == []
    with pytest.raises(LoadMissing):
        plane.backfill("shop", 1)
    with pytest.raises(LoadMissing):
        plane.steer_backfill("pause", "shop", 1)
    for unknown in (lambda: plane.backfills("other"), lambda: plane.publication("other"), lambda: plane.slots("other")):
        with pytest.raises(FlowUnknown):
            unknown()
    # Its password is in a variable that is not there.
    for unresolved in (lambda: plane.publication("shop"), lambda: plane.slot("shop"), lambda: plane.doctor("shop")):
        with pytest.raises(FlowInvalid):
            unresolved()


def test_nobody_there_is_said_with_the_address(site: Site) -> None:
    urls = [site.url, site.grpc.url]
    site.serving.close()
    site.grpc.close()
    for url in urls:
        scheme, _, place = url.partition("://")
        with pytest.raises(ServerUnreachable) as refused, Client(f"{scheme}://u:hush@{place}") as client:
            client.flows()
        assert place in refused.value.message and "hush" not in refused.value.message
        with pytest.raises(TokenMissing) as missing:
            Client(url, "hush\n")
        assert "hush" not in missing.value.message
    with pytest.raises(ServerUnreachable):
        Client("ftp://x")


def test_upkeep_is_asked_for_through_a_server_and_without(plane: ControlPlane, tmp_path: Path) -> None:
    source = {"type": "postgres", "options": {"dsn": "postgresql://127.0.0.1:1/shop"}}
    warehouse = {"name": "warehouse", "type": "duckdb", "options": {"path": str(tmp_path / "shop.duckdb")}}
    plane.create_flow(definition(source=source, destinations=[warehouse]))
    # Nothing is staged, and nobody runs the flow: the answer comes at once.
    done = plane.resolve_staging("shop", "warehouse", ["public.*"])
    assert (done.flow, done.answered, done.tables) == ("shop", True, [])
    with pytest.raises(FlowUnknown) as unknown:
        plane.resolve_staging("shop", "nothing")
    assert "nothing" in unknown.value.message
    with pytest.raises(TransitionRefused) as refused:
        plane.reload("shop")
    assert "no worker runs" in refused.value.message
    with pytest.raises(RewindRefused):
        plane.rewind("shop", "warehouse", "yesterday")
    with pytest.raises(FlowUnknown) as unknown:
        plane.rewind("shop", "warehouse", "0/1")
    assert "no destination warehouse that has begun" in unknown.value.message
    with pytest.raises(FlowUnknown) as unknown:
        plane.release("shop", "warehouse", "public.orders")
    assert "no quarantined table" in unknown.value.message
    for ask in (
        lambda: plane.resolve_staging("other"),
        lambda: plane.reload("other"),
        lambda: plane.rewind("other", "warehouse", "oldest"),
        lambda: plane.release("other", "warehouse", "public.orders"),
    ):
        with pytest.raises(FlowUnknown):
            ask()
    actions = {r.action: r.outcome for r in reversed(plane.audit(flow="shop").records)}
    assert actions["flow.reload"] == "transition_refused" and actions["flow.release"] == "flow_unknown"
    assert {"flow.resolve_staging", "flow.rewind"} <= actions.keys()
