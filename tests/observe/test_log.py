"""Logs: JSON lines in a file, short lines on stderr, no secret in either."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from penstock.observe import log

DSN = "postgresql://app:hush@db/shop"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(before):
        handler.close()
    root.handlers, root.level = before, level
    structlog.reset_defaults()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_kinds_of_loggers_end_in_one_file_as_json(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "worker.log"
    log.configure("info", path, console=False)
    structlog.get_logger("a").info("epoch done", rows=3)
    logging.getLogger("b").warning("slow %s", "disk")
    first, second = lines(path)
    assert (first["event"], first["rows"], first["level"]) == ("epoch done", 3, "info")
    assert (second["event"], second["logger"], second["level"]) == ("slow disk", "b", "warning")
    assert str(first["timestamp"]).endswith("Z")


def test_no_secret_reaches_file_or_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "worker.log"
    log.configure("info", path, console=True)
    logger = structlog.get_logger()
    logger.info("connect", dsn=DSN, password="hush", nested={"token": "hush", "list": [f"password=hush {DSN}"]})
    logging.getLogger("x").error("failed for %s", DSN)
    try:
        raise RuntimeError(f"cannot reach {DSN}")
    except RuntimeError:
        logger.exception("unexpected")
    shown = capsys.readouterr().err
    assert "hush" not in path.read_text() and "hush" not in shown
    assert "RuntimeError" in path.read_text() and "RuntimeError" in shown


def test_a_table_called_secret_is_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    log.configure("info", path, console=False)
    structlog.get_logger().warning("table public.secret: dropped, sales.token: kept", note="password: hush a.password=hush")
    (line,) = lines(path)
    assert line["event"] == "table public.secret: dropped, sales.token: kept"
    assert line["note"] == "password: **** a.password=****"


def test_names_with_control_characters_forge_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", tmp_path / "worker.log", console=True)
    name = "a\n12:00:00 error   forged\x1b[2J\u202e"
    structlog.get_logger().warning(f"table {name} was dropped", table=name)
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1 and "\x1b" not in shown and "\u202e" not in shown
    assert shown.count("a\\n12:00:00") == 2
    (line,) = lines(tmp_path / "worker.log")
    assert line["table"] == name


def test_the_level_holds_and_a_new_configuration_replaces_the_old(tmp_path: Path) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    log.configure("warning", first, console=False)
    structlog.get_logger().info("quiet")
    log.configure("info", second, console=False)
    structlog.get_logger().info("heard")
    assert first.read_text() == "" and [line["event"] for line in lines(second)] == ["heard"]


def test_lines_for_people_have_no_escape_codes(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", None, console=True)
    structlog.get_logger().info("flow started", flow="my shop", generation=2)
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and 'info    flow started flow="my shop" generation=2\n' in shown
