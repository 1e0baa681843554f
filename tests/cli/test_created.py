"""`penstock flow create|update|…|delete`, `token` and `audit`: one behaviour with a server and on the state directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.api.grpc.serving import GrpcServing
from penstock.api.serving import Serving
from penstock.api.settings import Settings
from penstock.cli.app import run
from penstock.control.service import Service
from penstock.observe import log
from tests.conftest import Database
from tests.control.definitions import definition


class Terminal:
    """Commands with what they show."""

    def __init__(self, where: list[str], directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._where, self._directory, self._capsys = where, directory, capsys

    def file(self, **more: Any) -> str:
        path = self._directory / "shop.yaml"
        path.write_text(yaml.safe_dump(definition(**more)))
        return str(path)

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert run([*words, *self._where]) == code, self._capsys.readouterr().err
        shown = self._capsys.readouterr()
        return shown.out + shown.err

    def data(self, *words: str, code: int = 0) -> Any:
        self._capsys.readouterr()
        assert run([*words, *self._where, "--json"]) == code
        return json.loads(self._capsys.readouterr().out)


@pytest.fixture(params=["server", "grpc", "state"])
def terminal(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    if request.param == "state":
        yield Terminal(["--state", str(tmp_path / "state")], tmp_path, capsys)
        return
    with Service(tmp_path / "state") as service:
        kind = Serving if request.param == "server" else GrpcServing
        serving = kind(service, Settings(port=0))
        serving.start()
        try:
            yield Terminal(["--server", serving.url], tmp_path, capsys)
        finally:
            serving.close()


@pytest.mark.slow
def test_a_flow_is_created_changed_steered_and_deleted(terminal: Terminal) -> None:
    assert "created, revision 1; `penstock flow start shop`" in terminal(
        "flow", "create", "-f", terminal.file(), "--why", "a shop"
    )
    assert "flow_exists" in terminal("flow", "create", "-f", terminal.file(), code=1)
    etag = terminal.data("flow", "update", "-f", terminal.file(parallelism=2), "--why", "faster")["etag"]
    assert "revision_stale" in terminal("flow", "update", "-f", terminal.file(), "--etag", "0-1", code=1)
    assert terminal.data("flow", "show", "shop")["state"] == "created"
    assert "created" in terminal("flow", "show", "shop") and "shop" in terminal("flow", "list")
    assert "transition_refused" in terminal("flow", "pause", "shop", code=1)
    terminal("flow", "start", "shop", "--why", "go")
    assert "transition_refused" in terminal("flow", "delete", "shop", "--yes", code=1)
    terminal("flow", "stop", "shop")
    shown = terminal("flow", "events", "shop")
    assert "start asked for" in shown and "go" in shown
    assert "faster" in terminal("flow", "revisions", "shop")
    assert terminal("flow", "schemas", "shop", "--table", "public.*").strip() == "shop: no table yet"
    assert "request_refused" in terminal("flow", "schemas", "shop", "--at", "now", code=1)
    assert terminal("flow", "checkpoints", "shop", "--destination", "log", "--limit", "3").strip().endswith("has begun")
    assert terminal.data("flow", "checkpoints", "shop") == {"checkpoints": [], "history": []}
    assert f"{terminal.data('flow', 'run', 'shop')['wished']}" == "once" and etag
    terminal("flow", "stop", "shop")
    assert "deleted" in terminal("flow", "delete", "shop", "--yes")
    assert "flow_unknown" in terminal("flow", "watch", "shop", "--seconds", "0.2", code=1)


def test_an_update_may_name_its_flow_and_another_one_s_file_is_refused(terminal: Terminal) -> None:
    terminal("flow", "create", "-f", terminal.file())
    assert "revision 2" in terminal("flow", "update", "shop", "-f", terminal.file(parallelism=2))
    shown = terminal("flow", "update", "other", "-f", terminal.file(parallelism=3), code=1)
    assert "is of a flow named shop, not other" in shown
    assert terminal.data("flow", "revisions", "shop")[0]["revision"] == 2


def test_problems_of_a_file_are_all_shown_and_nothing_is_kept(terminal: Terminal) -> None:
    sent = definition()
    sent["source"]["options"]["dsn"] = "postgresql://u:hush@h/d"
    shown = terminal("flow", "create", "-f", terminal.file(source=sent["source"], wire_format="yson"), code=2)
    assert "source.options.dsn" in shown and "wire_format" in shown and "hush" not in shown and "${env:" in shown
    assert "flow_unknown" in terminal("flow", "show", "shop", code=1)


def test_what_happens_is_shown_line_by_line(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    terminal("flow", "create", "-f", terminal.file())
    shown = terminal("flow", "watch", "shop", "--seconds", "0.3")
    assert "shop: created; log new at nothing yet" in shown
    lines = [json.loads(line) for line in terminal("flow", "watch", "shop", "--seconds", "0.3", "--json").splitlines()]
    assert lines[0]["flow"]["name"] == "shop"


@pytest.mark.slow
def test_tokens_are_made_listed_and_revoked_and_everything_is_recorded(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = terminal("token", "create", "ann", "--role", "admin").strip()
    assert token.startswith("pst_")
    monkeypatch.setenv("PENSTOCK_TOKEN", token)
    made = terminal.data("token", "create", "eve", "--role", "viewer")
    assert "eve" in terminal("token", "list") and made["token"] not in terminal("token", "list")
    assert "revoked" in terminal("token", "revoke", made["id"])
    assert "token_unknown" in terminal("token", "revoke", "000000000000", code=1)
    assert [r["action"] for r in terminal.data("audit")["records"]][:2] == ["token.revoke", "token.revoke"]
    assert "token.create" in terminal("audit")


def test_nobody_at_the_address_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "list", "--server", "http://127.0.0.1:1"]) == 1
    assert "server_unreachable" in capsys.readouterr().err


def test_a_server_refuses_an_address_beyond_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert run(["server", "--listen", "0.0.0.0:0", "--state", str(tmp_path)]) == 1
    finally:
        # Its log would go on to a stream that this test takes away.
        log.configure(console=False)
    shown = capsys.readouterr().err
    assert "listen_refused" in shown and "penstock token create" in shown


def test_what_a_created_flow_has_on_its_server_is_asked_for_by_its_name(
    terminal: Terminal, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DSN", database.dsn)
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    options = {"dsn": "${env:SHOP_DSN}", "publication_tables": ["public.a"]}
    file = terminal.file(source={"type": "postgres", "options": options})
    terminal("flow", "create", "-f", file)
    assert "publication_missing" in terminal("publication", "list", "--flow", "shop", code=1)
    assert "public.a added" in terminal("publication", "sync", "--flow", "shop")
    assert terminal.data("publication", "add", "--flow", "shop", "b")["added"] == ["public.b"]
    assert [t["name"] for t in terminal.data("publication", "list", "--flow", "shop")["tables"]] == ["a", "b"]
    # The file's own flow is asked here, whatever server is named.
    assert "public.b" in terminal("publication", "list", "--flow", file)
    assert "does not exist" in terminal("slot", "list", "--flow", "shop")
    assert "slot_missing" in terminal("slot", "drop", "--flow", "shop", "--yes", code=1)
    for one in ("shop", file):
        assert "source postgres" in terminal("doctor", "--flow", one)
    assert terminal("dead-letter", "list", "--flow", "shop").strip() == "no dead letters"
    assert terminal("backfill", "list", "shop").strip() == "no loads"
    assert "load_missing" in terminal("backfill", "shop", "--tables", "public.a", code=1)
    assert "flow_unknown" in terminal("backfill", "pause", "other", "1", code=1)
    assert "names no table" in terminal("backfill", "other", "--tables", " ,", code=2)
