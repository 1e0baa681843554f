"""`penstock config`: a flag counts before the environment, that before the file, and that before the default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.app import run
from penstock.cli.settings import SETTINGS


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of a home that nobody else has."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    return tmp_path / "config.yaml"


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[Any, str]]:
    capsys.readouterr()
    assert run(["config", "--json"]) == 0
    return {s["name"]: (s["value"], s["origin"]) for s in json.loads(capsys.readouterr().out)["settings"]}


def test_a_setting_is_shown_with_its_origin_and_secrets_are_not(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(capsys)["http_listen"] == (None, "default")
    file.write_text("settings: {http_listen: '127.0.0.1:1', grpc_reflection: true, database_url: 'postgresql://u:hush@h/d'}")
    found = shown(capsys)
    assert found["http_listen"] == ("127.0.0.1:1", "file") and found["grpc_reflection"] == ("true", "file")
    assert found["database_url"] == ("***", "file") and found["home"][1] == "environment"
    monkeypatch.setenv("PENSTOCK_HTTP_LISTEN", "127.0.0.1:2")
    assert shown(capsys)["http_listen"] == ("127.0.0.1:2", "environment")
    assert run(["config"]) == 0
    assert "hush" not in capsys.readouterr().out


def test_a_setting_of_the_file_acts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("settings: {http_listen: 'localhost:many'}")
    assert run(["up"]) == 1
    assert "'localhost:many' is no address to listen on" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["settings: {htp_listen: x}", "settings: {server: x}", "settings: [x]", "settings: {: :"])
def test_what_is_no_setting_of_a_file_is_refused(file: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file.write_text(text)
    assert run(["config"]) == 1
    assert "profile_refused" in capsys.readouterr().err
