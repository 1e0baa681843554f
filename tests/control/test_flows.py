"""The service of flows: definitions are kept with their references, every change is checked, and every asking is recorded."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.control.answers import FlowAnswer
from penstock.control.caller import Caller
from penstock.control.requests import FlowCreation, FlowUpdate, LetterChoice, TokenCreation
from penstock.control.service import Service
from penstock.engine.lease import holding
from penstock.errors import (
    AccessDenied,
    FlowChanged,
    FlowExists,
    FlowInvalid,
    FlowRunning,
    FlowUnknown,
    KeyReused,
    LeaseLost,
    LedgerUnusable,
    LetterMissing,
    PenstockError,
    RequestRefused,
    RevisionStale,
    SourceError,
    TransitionRefused,
)
from penstock.ledger.definitions import Draft
from penstock.ledger.lifecycle import Wish
from tests.control.definitions import definition

ANN, BEN = Caller("ann", "admin"), Caller("ben", "admin")
BOB, EVE = Caller("bob", "operator"), Caller("eve", "viewer")


@pytest.fixture(params=["sqlite", "postgres"])
def service(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Over a ledger of each kind."""
    if request.param == "postgres":
        monkeypatch.setenv("PENSTOCK_DATABASE_URL", request.getfixturevalue("database").dsn)
    with Service(tmp_path / "state") as made:
        yield made


def create(service: Service, name: str = "shop", **labels: str) -> FlowAnswer:
    return service.flows.create(ANN, FlowCreation(definition=definition(name, labels=labels), why="a shop"))[0]


def test_a_flow_is_kept_as_it_was_sent_and_does_not_run_before_it_is_started(service: Service) -> None:
    made = create(service, team="shop")
    assert made.definition == definition(labels={"team": "shop"})
    assert (made.state, made.wished, made.health, made.created_by, made.revision) == ("created", "stopped", None, "ann", 1)
    assert [(e.event, e.who, e.why) for e in made.events] == [("created", "ann", "a shop")]
    with pytest.raises(FlowExists):
        create(service)
    started = service.commands.give(BOB, "start", "shop", why="go")
    assert (started.wished, started.by, started.changed, started.settled) == ("running", "bob", True, True)
    assert service.flows.find(EVE, "shop").wished == "running"


def test_an_update_needs_the_etag_that_was_read_and_every_revision_is_kept(service: Service) -> None:
    first = create(service)
    changed = definition(parallelism=2)
    second = service.flows.update(ANN, "shop", FlowUpdate(definition=changed, why="faster"), first.etag)
    assert second.definition == changed and second.etag != first.etag and second.applied == "counts from the next start"
    with pytest.raises(RevisionStale):
        service.flows.update(ANN, "shop", FlowUpdate(definition=definition(parallelism=3)), first.etag)
    assert service.flows.update(ANN, "shop", FlowUpdate(definition=changed), second.etag).revision == 2
    found = service.flows.revisions(EVE, "shop").revisions
    assert [(r.revision, r.who, r.why) for r in found] == [(2, "ann", "faster"), (1, "ann", "a shop")]
    with pytest.raises(FlowChanged):
        service.flows.update(ANN, "shop", FlowUpdate(definition=definition("other")), None)


def test_of_many_updates_with_one_etag_one_is_kept(service: Service) -> None:
    etag = create(service).etag

    def update(number: int) -> bool:
        try:
            service.flows.update(ANN, "shop", FlowUpdate(definition=definition(parallelism=number)), etag)
        except RevisionStale:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(update, range(2, 18))) == 1


def test_a_creation_that_is_repeated_with_its_key_is_one_creation(service: Service) -> None:
    creation = FlowCreation(definition=definition())
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: service.flows.create(ANN, creation, "k1"), range(8)))
    assert sum(new for _, new in made) == 1 and len({flow.etag for flow, _ in made}) == 1
    with pytest.raises(KeyReused):
        service.flows.create(ANN, FlowCreation(definition=definition("other")), "k1")
    with pytest.raises(FlowExists):
        service.flows.create(Caller("carl", "admin"), creation, "k1")


@pytest.mark.parametrize(
    ("source", "destination", "path"),
    [
        ({"dsn": "postgresql://u:hush@h/d"}, {}, "source.options.dsn"),
        ({"dsn": "host=h password=hush"}, {}, "source.options.dsn"),
        ({"dsn": "${env:DSN:-postgresql://u:hush@h/d}"}, {}, "source.options.dsn"),
        ({"dsn": "host=h password=${env:PW}hush"}, {}, "source.options.dsn"),
        ({}, {"hmac_secret": "hush"}, "destinations[1].options.hmac_secret"),
        ({}, {"headers": {"authorization": "Bearer hush"}}, "destinations[1].options.headers.authorization"),
        ({}, {"url": "https://u:hush@h/"}, "destinations[1].options.url"),
        ({"dsn": "${file:/etc/shadow}"}, {}, "source.options.dsn"),
        ({"dsn": "${file:/run/secrets/../../etc/shadow}"}, {}, "source.options.dsn"),
        ({"dsn": "${env:PENSTOCK_DATABASE_URL}"}, {}, "source.options.dsn"),
    ],
)
def test_what_is_a_secret_or_would_reveal_one_is_refused(
    service: Service, source: dict[str, object], destination: dict[str, object], path: str
) -> None:
    sent = definition()
    sent["source"]["options"].update(source)
    sent["destinations"].append({"name": "hook", "type": "http", "options": {"url": "https://h/", **destination}})
    with pytest.raises(FlowInvalid) as refused:
        service.flows.create(ANN, FlowCreation(definition=sent))
    assert [p.path for p in refused.value.problems] == [path]
    assert "hush" not in " ".join(f"{p.message} {p.remedy}" for p in refused.value.problems)
    assert service.catalog.validate(EVE, sent).problems[0].path == path


def test_references_are_kept_and_good_ones_are_no_problem(service: Service) -> None:
    sent = definition()
    sent["source"]["options"]["dsn"] = "host=${env:H:-localhost} user=u password='${file:/run/secrets/pw}' dbname=d"
    options = {"url": "https://h/", "headers": {"authorization": "Bearer ${env:HOOK}"}, "hmac_secret": "${env:HMAC}"}
    sent["destinations"].append({"name": "hook", "type": "http", "options": options})
    assert service.flows.create(ANN, FlowCreation(definition=sent))[0].revision == 1


def test_no_reference_is_followed_for_who_only_asks(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "hush")
    sent = definition(wire_format="${env:SOME_SECRET}", config={"ack_policy": "${env:SOME_SECRET}"})
    assert "hush" not in service.catalog.validate(EVE, sent).model_dump_json()
    with pytest.raises(FlowInvalid) as refused:
        service.flows.create(ANN, FlowCreation(definition=sent))
    assert [p.path for p in refused.value.problems] == ["config.ack_policy"]


def test_who_may_not_is_refused_and_recorded(service: Service) -> None:
    create(service)
    for refused in (
        lambda: service.flows.create(BOB, FlowCreation(definition=definition("other"))),
        lambda: service.commands.give(EVE, "start", "shop"),
        lambda: service.flows.delete(BOB, "shop"),
        lambda: service.people.create(BOB, TokenCreation(name="x", role="admin")),
        lambda: service.people.audit(BOB),
    ):
        with pytest.raises(AccessDenied):
            refused()
    assert service.commands.give(BOB, "start", "shop").changed
    records = service.people.audit(ANN).records
    assert [(r.who, r.action, r.flow, r.outcome) for r in reversed(records)] == [
        ("ann", "flow.create", "shop", "done"),
        ("bob", "flow.create", "other", "access_denied"),
        ("eve", "flow.start", "shop", "access_denied"),
        ("bob", "flow.delete", "shop", "access_denied"),
        ("bob", "token.create", None, "access_denied"),
        ("bob", "flow.start", "shop", "done"),
    ]


def test_flows_are_listed_page_by_page_with_selectors_and_states(service: Service) -> None:
    for number in range(25):
        create(service, f"f{number:02}", team="a" if number % 2 else "b", **({"old": "yes"} if number < 5 else {}))
    service.commands.give(BOB, "start", "f03")
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        page = service.flows.page(EVE, after=after, limit=7)
        names += [flow.name for flow in page.flows]
        after = page.next
    assert names == [f"f{n:02}" for n in range(25)]

    def listed(labels: str) -> list[str]:
        return [flow.name for flow in service.flows.page(EVE, labels=labels).flows]

    assert listed("team=a,old") == ["f01", "f03"]
    assert listed("team!=a,!old") == [f"f{n:02}" for n in range(6, 25, 2)]
    assert listed("team=nobody") == []
    assert [f.name for f in service.flows.page(EVE, states=["created"], limit=2, after="f22").flows] == ["f23", "f24"]
    assert service.flows.page(EVE, states=["failed"]).flows == []
    with pytest.raises(RequestRefused):
        listed("a=b=c,=x")


def test_a_deletion_that_cannot_reach_the_source_names_the_way_without_and_changes_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hush")
    create(service)
    with holding(service.premises.path, "shop", "a test"):
        pass
    with pytest.raises(SourceError) as error:
        service.flows.delete(ANN, "shop")
    assert "penstock flow delete --no-cleanup" in error.value.remedy
    assert service.flows.find(EVE, "shop").state == "created"
    service.flows.delete(ANN, "shop", cleanup=False)


def test_a_flow_is_deleted_only_when_it_is_stopped_and_nobody_acts_for_it(service: Service) -> None:
    first = create(service)
    service.commands.give(BOB, "start", "shop")
    with pytest.raises(TransitionRefused):
        service.flows.delete(ANN, "shop")
    service.commands.give(BOB, "stop", "shop")
    with holding(service.premises.path, "shop", "worker"), pytest.raises(FlowRunning):
        service.flows.delete(ANN, "shop", cleanup=False)
    with pytest.raises(RevisionStale):
        service.flows.delete(ANN, "shop", etag="0-1", cleanup=False)
    last = service.newest_event(EVE)
    assert service.flows.delete(ANN, "shop", etag=first.etag, why="over", cleanup=False) == []
    with pytest.raises(FlowUnknown):
        service.flows.find(EVE, "shop")
    assert [(e.event, e.why) for e in service.events(EVE, after=last).events] == [("deleted", "over")]
    again = create(service)
    assert again.etag != first.etag and again.revision == 1


def test_a_deletion_that_was_cut_short_lets_nobody_run_or_change_the_flow_and_is_finished_by_the_next(service: Service) -> None:
    first = create(service)
    stuck = service.premises.state / "journal" / "shop" / "0000000001.seg"
    (stuck / "in the way").mkdir(parents=True)
    with pytest.raises(LedgerUnusable):
        service.flows.delete(ANN, "shop", etag=first.etag, cleanup=False)
    found = service.flows.find(EVE, "shop")
    assert found.state == "deleting" and found.reason is not None and found.reason.startswith("ann deletes it")
    assert [flow.name for flow in service.flows.page(EVE, states=["deleting"]).flows] == ["shop"]
    changed = FlowUpdate(definition=definition(parallelism=2))
    for refused in (
        lambda: service.flows.update(ANN, "shop", changed, first.etag),
        lambda: service.flows.reconfigure(ANN, "shop", changed, None),
        lambda: service.commands.give(BOB, "start", "shop"),
        lambda: service.commands.give(BOB, "run", "shop"),
        lambda: service.premises.ledger.take_over("shop", "5ec0ffee", "{}"),
    ):
        with pytest.raises(TransitionRefused, match="being deleted by ann") as error:
            refused()
        assert "penstock flow delete" in error.value.remedy
    (stuck / "in the way").rmdir()
    stuck.rmdir()
    service.flows.delete(BEN, "shop", etag=first.etag, cleanup=False)
    with pytest.raises(FlowUnknown):
        service.flows.find(EVE, "shop")
    assert create(service).state == "created"


def test_a_deletion_of_another_revision_or_without_the_lease_begins_nothing(service: Service) -> None:
    first = create(service)
    definitions = service.premises.ledger.definitions
    with holding(service.premises.path, "shop", "flow cleanup") as lease:
        second = service.flows.update(ANN, "shop", FlowUpdate(definition=definition(parallelism=2)), first.etag)
        with pytest.raises(RevisionStale):
            definitions.begin_delete("shop", lease.generation, "ann", first.etag)
        with pytest.raises(LeaseLost):
            definitions.begin_delete("shop", lease.generation - 1, "ann", second.etag)
        with pytest.raises(FlowUnknown):
            definitions.delete("shop", "ann", None)
        service.commands.give(BOB, "start", "shop")
        with pytest.raises(TransitionRefused, match="not stopped"):
            definitions.begin_delete("shop", lease.generation, "ann", second.etag)
    assert service.flows.find(EVE, "shop").state != "deleting"


def test_a_walk_that_is_not_allowed_is_refused_with_what_is(service: Service) -> None:
    create(service)
    for command in ("pause", "resume"):
        with pytest.raises(TransitionRefused) as refused:
            service.commands.give(BOB, command, "shop")
        assert "penstock flow start" in refused.value.remedy
    assert service.commands.give(BOB, "run", "shop").wished == "once"
    with pytest.raises(TransitionRefused):
        service.commands.give(BOB, "pause", "shop")
    assert service.commands.give(BOB, "stop", "shop").wished == "stopped"
    with pytest.raises(FlowUnknown):
        service.commands.give(BOB, "start", "nobody")


def test_letters_of_a_flow_that_never_ran_are_none(service: Service) -> None:
    create(service)
    assert service.letters.page(EVE, "shop").letters == []
    with pytest.raises(LetterMissing):
        service.letters.replay(BOB, "shop", LetterChoice(ids=[3]))
    with pytest.raises(FlowUnknown):
        service.letters.page(EVE, "nobody")


def test_tokens_are_matched_by_their_digest_until_they_are_revoked(service: Service) -> None:
    assert not service.people.need_tokens()
    made = service.people.create(ANN, TokenCreation(name="ci", role="operator"))
    assert service.people.need_tokens()
    assert service.people.caller(made.token) == Caller("ci", "operator")
    assert service.people.caller(made.token[:-1]) is None and service.people.caller("pst_x") is None
    secret = made.token.rpartition("_")[2].encode()
    assert all(secret not in path.read_bytes() for path in service.premises.state.rglob("*") if path.is_file())
    service.people.revoke(ANN, made.id)
    assert service.people.caller(made.token) is None and service.people.need_tokens()


def test_a_page_of_ten_thousand_flows_is_listed_quickly(service: Service) -> None:
    definitions = service.premises.ledger.definitions
    database = definitions._database
    names = [{"f": f"f{number:05}", "d": "{}", "l": "a" if number % 2 else "b"} for number in range(10_000)]
    with database.transaction() as c:
        for sql in (
            "insert into flows (name, identity, definition, generation, state, updated_at) values (:f, '', :d, 0, 'created', 0)",
            "insert into definitions values (:f, :d, 1, 0, 'ann', 0, 'ann')",
            "insert into flow_labels values (:f, 'team', :l)",
        ):
            c.execute(sa.text(sql), names)
    best = 10.0
    for after in ("", "f05000", "f09000"):
        began = time.process_time()
        page = service.flows.page(EVE, after=after, limit=100, labels="team=a")
        best = min(best, time.process_time() - began)
        assert len(page.flows) == 100
    assert best < 0.1


def test_what_is_kept_twice_at_once_is_kept_once(service: Service) -> None:
    draft = Draft("shop", definition(), "{}", {})

    def make(_: int) -> bool:
        try:
            return service.premises.ledger.definitions.create(draft, "ann", None, Wish("stopped"))[1]
        except PenstockError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(16))) == 1


@pytest.mark.slow
def test_commands_of_several_callers_at_once_are_one_legal_walk_and_each_answer_is_true(service: Service) -> None:
    create(service)
    allowed = {
        "start": ("running", ("running", "stopped")),
        "pause": ("paused", ("running", "paused")),
        "resume": ("running", ("running", "paused")),
        "stop": ("stopped", ("running", "paused", "stopped", "once")),
        "run": ("once", ("stopped", "once")),
    }

    def walk(seed: int) -> list[tuple[str, str]]:
        chance, caller, done = random.Random(seed), Caller(f"walker{seed}", "operator"), []
        for _ in range(40):
            command = chance.choice(sorted(allowed))
            try:
                answer = service.commands.give(caller, command, "shop")  # type: ignore[arg-type]
            except TransitionRefused:
                continue
            assert answer.wished == allowed[command][0]
            if answer.changed:
                assert answer.by == caller.name
                done.append((f"{command} asked for", caller.name))
        return done

    with ThreadPoolExecutor(4) as pool:
        said = [one for walked in pool.map(walk, range(4)) for one in walked]
    events = service.events(EVE, flow="shop", limit=500).events[1:]
    wished = "stopped"
    for event in events:
        target, sources = allowed[event.event.partition(" ")[0]]
        assert wished in sources and wished != target, (wished, event)
        wished = target
    assert service.flows.find(EVE, "shop").wished == wished
    assert sorted(said) == sorted((event.event, event.who) for event in events) and len(said) > 20
