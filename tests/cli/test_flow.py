"""`penstock flow validate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.app import run

GOOD = """
name: shop
source: {type: postgres, options: {dsn: "${env:PENSTOCK_TEST_UNSET}"}}
destinations:
  - {name: log, type: files, options: {path: changes}}
"""
BAD = """
name: shop
source: {type: postgres, options: {dsn: "postgresql://u:hush@h/d", publication_tabels: [a]}}
destinations:
  - {name: log, type: files, options: {path: changes}}
  - {name: log, type: files, options: {path: other, path: twice}}
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "shop.yaml"
    path.write_text(text)
    return str(path)


def test_a_good_file_is_valid_with_a_note_for_what_is_not_set_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "validate", write(tmp_path, GOOD)]) == 0
    shown = capsys.readouterr().out
    assert "valid" in shown and "note: source.options.dsn: environment variable PENSTOCK_TEST_UNSET is not set" in shown


def test_every_problem_is_shown_with_path_and_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "validate", write(tmp_path, BAD)]) == 2
    shown = capsys.readouterr().out
    assert "3 problems" in shown and "hush" not in shown and "\x1b" not in shown
    assert "✗ source.options.publication_tabels" in shown and "Did you mean `publication_tables`?" in shown
    assert "✗ destinations[1].name" in shown and "✗ destinations[1].options.path: the key stands twice" in shown


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "validate", write(tmp_path, BAD), "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["valid"] is False and answer["flow"] == "shop" and len(answer["problems"]) == 3
    assert all(p["path"] and p["message"] and p["remedy"] for p in answer["problems"])


def test_a_file_that_is_none_is_a_problem_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "validate", str(tmp_path / "nope.yaml"), "--json"]) == 2
    assert "no such file" in json.loads(capsys.readouterr().out)["problems"][0]["message"]


def test_a_worker_refuses_a_bad_file_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", "--flow", write(tmp_path, BAD), "--state", str(tmp_path / "state")]) == 2
    assert "flow_invalid" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
