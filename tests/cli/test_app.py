"""The command line's frame: exit codes, help, and failures without tracebacks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock import __version__
from penstock.cli import app as frame
from penstock.cli.app import run
from penstock.core.connectors import ROOMS, cards
from penstock.errors import SourceUnreachable

Capture = pytest.CaptureFixture[str]


def test_version_and_help(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"penstock {__version__}"
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "Exit codes: 0 done, 1 failed, 2 bad input or usage" in shown
    for command in ("demo", "worker", "doctor", "connectors", "flow", "--install-completion"):
        assert command in shown


@pytest.mark.parametrize(
    "words",
    [
        ["bogus"],
        ["worker"],
        ["worker", "--flow"],
        ["worker", "--flow", "x", "--max-empty-reads", "0"],
        ["flow", "validate"],
        ["--bogus"],
    ],
)
def test_bad_usage_ends_with_2(words: list[str], capsys: Capture) -> None:
    assert run(words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_connectors_lists_every_card(capsys: Capture) -> None:
    assert run(["connectors"]) == 0
    shown = capsys.readouterr().out
    for kind in ROOMS:
        for card in cards(kind).values():
            assert card.name in shown and card.summary in shown


def test_a_connector_is_shown_with_options_defaults_and_capabilities(capsys: Capture) -> None:
    assert run(["connectors", "postgres"]) == 0
    shown = capsys.readouterr().out
    assert "dsn" in shown and "required" in shown and "status_interval" in shown and "10s" in shown and "first_load" in shown
    assert run(["connectors", "postgres", "--json"]) == 0
    cards = {card["kind"]: {o["name"] for o in card["options"]} for card in json.loads(capsys.readouterr().out)}
    assert cards["source"] >= {"dsn", "slot"} and cards["destination"] >= {"dsn", "synchronous_commit"}


def test_an_unknown_connector_is_answered_with_the_nearest(capsys: Capture) -> None:
    assert run(["connectors", "postgress"]) == 2
    shown = capsys.readouterr().err
    assert "connector_unknown" in shown and "postgres" in shown


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Makes the `connectors` command fail with an error of the test's choice."""

    def fail_with(error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(frame, "app", fail)

    return fail_with


def test_an_error_of_ours_is_code_sentence_and_remedy(failing: Callable[[Exception], None], capsys: Capture) -> None:
    failing(SourceUnreachable("db:5432 cannot be reached with postgresql://u:hush@db/d.", remedy="Start it."))
    assert run(["x"]) == 1
    shown = capsys.readouterr().err
    assert shown.splitlines()[0].startswith("source_unreachable: db:5432") and "→ Start it." in shown
    assert "Traceback" not in shown and "hush" not in shown


def test_an_unexpected_error_is_one_line_and_its_trace_is_kept(
    failing: Callable[[Exception], None], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    failing(ValueError("secret is password=hush"))
    assert run(["x"]) == 1
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1 and "Traceback" not in shown and "penstock.log" in shown and "hush" not in shown
    kept = (tmp_path / "logs" / "penstock.log").read_text()
    assert "Traceback" in kept and "hush" not in kept


def test_debug_shows_the_trace_wherever_it_stands(failing: Callable[[Exception], None], capsys: Capture) -> None:
    failing(ValueError("odd"))
    assert run(["x", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_command_runs_as_a_process_without_colour_when_nobody_looks(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "FORCE_COLOR": "",
        "PENSTOCK_HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", "from penstock.cli import main; main()", "connectors"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "postgres" in done.stdout and "\x1b" not in done.stdout and done.stderr == ""


@pytest.mark.slow
def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PENSTOCK_HOME": str(tmp_path)}
    command = f"{sys.executable} -c 'from penstock.cli import main; main()' connectors --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@contextlib.contextmanager
def listening() -> Iterator[tuple[str, list[str | None]]]:
    """A server that lets nobody in, and the tokens that it was shown."""
    shown: list[str | None] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["authorization"])
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", shown
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_profile_on_the_line_is_shown_its_own_token_and_no_other_servers(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_TOKEN", "of-test")
    monkeypatch.setenv("PENSTOCK_CA_FILE", "/nowhere/ca.pem")
    (tmp_path / "token").write_text("of-prod")
    with listening() as (test, at_test), listening() as (prod, at_prod):
        monkeypatch.setenv("PENSTOCK_SERVER", test)
        profiles = {
            "prod": {"server": prod, "token": f"${{file:{tmp_path}/token}}"},
            "bare": {"server": prod},
            "shared": {"server": prod, "token": "${env:PENSTOCK_TOKEN}"},
            "test": {"server": test},
        }
        (tmp_path / "config.yaml").write_text(json.dumps({"profile": "test", "profiles": profiles}))
        for words in (["flow", "list"], ["--profile", "prod", "flow", "list"], ["flow", "list", "--profile=bare"]):
            assert run(words) == 1
        assert run(["flow", "list", "--profile", "shared"]) == 1
    assert at_test == ["Bearer of-test"]
    assert at_prod == ["Bearer of-prod", None, "Bearer of-test"]
    assert os.environ["PENSTOCK_TOKEN"] == "of-test"


def test_a_profile_on_the_line_is_meant_instead_of_the_environments_server(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SERVER", "http://127.0.0.1:1")
    assert run(["--profile", "nope", "flow", "list"]) == 1
    assert "profile_refused: there is no profile nope" in capsys.readouterr().err
    assert os.environ["PENSTOCK_SERVER"] == "http://127.0.0.1:1"


def test_a_state_directory_on_the_line_is_meant_instead_of_the_environments_server_and_beside_none(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SERVER", "http://127.0.0.1:1")
    state = ["--state", str(tmp_path / "new")]
    assert run(["flow", "list", *state, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for server in ("http://127.0.0.1:2", "http://127.0.0.1:1"):
        for words in ([*state, "--server", server], ["--server", server, *state]):
            assert run(["flow", "list", *words]) == 2
            assert "a server keeps its own" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text(json.dumps({"profiles": {"prod": {"server": "http://127.0.0.1:1"}}}))
    assert run(["flow", "list", *state, "--profile", "prod"]) == 2
    assert "a profile is named too" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["flow", "show"], ["flow", "pause"], ["doctor", "--flow"], ["worker", "--flow"]])
def test_a_name_that_no_file_could_have_is_refused_like_any_other(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert run([*words, "x" * 300]) in (1, 2)
    assert capsys.readouterr().err.partition(":")[0] in ("flow_unknown", "flow_invalid")


def test_before_the_first_flow_the_list_is_empty(tmp_path: Path, capsys: Capture) -> None:
    assert run(["flow", "list", "--state", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [] and not (tmp_path / "new").exists()
