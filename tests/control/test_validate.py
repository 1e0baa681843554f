"""Validation: every problem at once, each at its path, in plain words, with a remedy and without secrets."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest

from penstock.control.validate import validate
from penstock.core.connectors import cards
from penstock.errors import Problem

GOOD: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "postgres", "options": {"dsn": "postgresql://app@localhost/shop"}},
    "destinations": [
        {"name": "warehouse", "type": "duckdb", "options": {"path": "shop.duckdb"}},
        {"name": "log", "type": "files", "options": {"path": "changes"}},
    ],
}


def change(path: str, value: Any) -> dict[str, Any]:
    """The good flow with one value set; a path such as `destinations.0.name`."""
    raw = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place: Any = raw
    for part in parents:
        place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
    place[int(last) if last.isdigit() else last] = value
    return raw


def problems(raw: dict[str, Any], strict: bool = True) -> dict[str, Problem]:
    flow, found, _ = validate(raw, strict=strict)
    assert (flow is None) == bool(found)
    for problem in found:
        text = f"{problem.message} {problem.remedy}".lower()
        assert problem.remedy and "pydantic" not in text and "https://" not in text and "input should" not in text
    return {p.path: p for p in found}


def test_a_good_flow_has_no_problem() -> None:
    flow, found, notes = validate(GOOD, strict=True)
    assert flow is not None and flow.name == "shop" and not found and not notes


@pytest.mark.parametrize(
    ("path", "value", "where", "words"),
    [
        ("name", "bad name", "name", "characters"),
        ("name", "x" * 64, "name", "too long"),
        ("name", 5, "name", "text"),
        ("nmae", "x", "nmae", "not a known key"),
        ("source", "postgres", "source", "mapping"),
        ("source.type", "postgress", "source.type", "no source named"),
        ("source.options.dsn", "not a dsn", "source.options.dsn", "connection string"),
        ("source.options.slot", "Bad-Slot", "source.options.slot", "characters"),
        ("source.options.slot", "", "source.options.slot", "must not be empty"),
        ("source.options.publication_tables", "public.a", "source.options.publication_tables", "list"),
        ("source.options.publication_tables", [" "], "source.options.publication_tables", "empty"),
        ("source.options.status_interval", 10, "source.options.status_interval", "unit"),
        ("source.options.status_interval", "1ms", "source.options.status_interval", "1s"),
        ("source.options.toast_cache_size", 0, "source.options.toast_cache_size", "at least 1"),
        ("source.options.create_slot", "perhaps", "source.options.create_slot", "true or false"),
        ("source.options.tabels", [], "source.options.tabels", "not a known option"),
        ("destinations", [], "destinations", "at least 1"),
        ("destinations", {}, "destinations", "list"),
        ("destinations.0", "duckdb", "destinations[0]", "mapping"),
        ("destinations.0.type", "duckdbb", "destinations[0].type", "no destination named"),
        ("destinations.0.options.pth", "x", "destinations[0].options.pth", "not a known option of duckdb"),
        ("destinations.1.options.format", "docx", "destinations[1].options.format", "docx"),
        ("destinations.1.name", "warehouse", "destinations[1].name", "already"),
        ("destinations.1.required", "maybe", "destinations[1].required", "true or false"),
        ("destinations.1.batch.max_rows", 0, "destinations[1].batch.max_rows", "at least 1"),
        ("destinations.1.batch.max_bytes", "much", "destinations[1].batch.max_bytes", "size"),
        ("transforms", [{"type": "nix"}], "transforms[0].type", "no transform"),
        ("wire_format", "jsn", "wire_format", "no format"),
        ("parallelism", 0, "parallelism", "at least 1"),
        ("parallelism", 65, "parallelism", "at most 64"),
        ("parallelism", "two", "parallelism", "whole number"),
        ("labels", {"team": 1}, "labels.team", "text"),
        ("config.ack_policy", "everyone", "config.ack_policy", "not one of"),
        ("config", {"ack_policy": "quorum"}, "config.quorum", "missing"),
        ("config", {"ack_policy": "quorum", "quorum": 3}, "config.quorum", "the flow has 2"),
        ("config", {"ack_policy": "primary"}, "config.primary_destination", "missing"),
        (
            "config",
            {"ack_policy": "primary", "primary_destination": "warehose"},
            "config.primary_destination",
            "not a destination",
        ),
        ("config.retry.base", 5, "config.retry.base", "unit"),
        ("config.retry.factor", 0.5, "config.retry.factor", "at least 1"),
        ("config.unheard_of", 1, "config.unheard_of", "not a known key"),
    ],
)
def test_each_mistake_is_found_at_its_path(path: str, value: Any, where: str, words: str) -> None:
    found = problems(change(path, value))
    assert set(found) == {where}
    assert words in found[where].message
    assert (found[where].message + found[where].remedy).isprintable()


@pytest.mark.parametrize(
    ("path", "value", "meant"),
    [
        ("sorce", {}, "source"),
        ("source.type", "postgress", "postgres"),
        ("source.options.publication_tabels", [], "publication_tables"),
        ("config.ack_polcy", "all", "ack_policy"),
        ("config.ack_policy", "al", "all"),
        ("config.primary_destination", "warehuose", "warehouse"),
        ("destinations.1.options.formt", "parquet", "format"),
        ("wire_format", "parket", "parquet"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_right_one(path: str, value: Any, meant: str) -> None:
    (problem,) = problems(change(path, value)).values()
    assert "did you mean" in problem.remedy.lower() and meant in problem.remedy


def test_all_problems_come_in_one_answer() -> None:
    raw = {
        "name": "bad name",
        "source": {"type": "postgres", "options": {"slot": "X"}},
        "destinations": [{"name": "a", "type": "nix"}, {"name": "a", "type": "files", "options": {"pth": 1}}],
        "config": {"quorum": 9, "retry": {"base": 1}},
        "extra": 1,
    }
    assert set(problems(raw)) == {
        "name",
        "source.options.slot",
        "source.options.dsn",
        "destinations[0].type",
        "destinations[1].name",
        "destinations[1].options.pth",
        "destinations[1].options.path",
        "config.quorum",
        "config.retry.base",
        "extra",
    }


def test_a_missing_key_is_explained() -> None:
    found = problems({})
    assert set(found) == {"name", "source", "destinations"}
    assert "Where changes go" in found["destinations"].remedy


def test_nobody_required_would_never_confirm() -> None:
    raw = change("config.ack_policy", "required")
    for destination in raw["destinations"]:
        destination["required"] = False
    assert set(problems(raw)) == {"config.ack_policy"}


@pytest.mark.parametrize("other", ["shop.duckdb", "./shop.duckdb", "x/../shop.duckdb"])
def test_two_destinations_may_not_write_to_one_place(other: str) -> None:
    raw = change("destinations.1", {"name": "again", "type": "duckdb", "options": {"path": other}})
    found = problems(raw)
    assert set(found) == {"destinations[1].options.path"} and "destinations[0]" in found["destinations[1].options.path"].message


def test_an_unset_reference_is_a_problem_where_the_flow_runs_and_a_note_elsewhere() -> None:
    raw = change("source.options.dsn", "${env:PENSTOCK_TEST_UNSET}")
    assert set(problems(raw)) == {"source.options.dsn"}
    flow, found, notes = validate(raw, strict=False)
    assert flow is not None and not found
    assert [n.path for n in notes] == ["source.options.dsn"]
    assert flow.source.options["dsn"] == "${env:PENSTOCK_TEST_UNSET}"


def test_a_set_reference_is_resolved_only_where_the_flow_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_DSN", "postgresql://app:hush@localhost/shop")
    (tmp_path / "path").write_text("from-file.duckdb\n")
    raw = change("source.options.dsn", "${env:PENSTOCK_TEST_DSN}")
    raw["destinations"][0]["options"]["path"] = f"${{file:{tmp_path / 'path'}}}"
    raw["parallelism"] = "${env:PENSTOCK_TEST_UNSET:-2}"
    running, _, _ = validate(raw, strict=True)
    assert running is not None and running.source.options["dsn"].endswith("hush@localhost/shop") and running.parallelism == 2
    assert running.destinations[0].options["path"] == "from-file.duckdb"
    raw["parallelism"] = 2
    stored, _, _ = validate(raw, strict=False)
    assert stored is not None and "hush" not in stored.model_dump_json()


def test_a_resolved_value_is_judged_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_DSN", "host=h password=hush nonsense")
    (problem,) = problems(change("source.options.dsn", "${env:PENSTOCK_TEST_DSN}")).values()
    assert "hush" not in problem.message + problem.remedy


def test_passwords_in_wrong_places_are_masked() -> None:
    found = problems(change("config.ack_policy", "postgresql://u:hush@h/d"))
    assert "hush" not in str([p.to_data() for p in found.values()])


def test_wire_format_is_inherited_by_destinations_that_encode() -> None:
    formats = [name for name, card in cards("format").items() if card.capabilities.get("file")]
    for wire, own in itertools.product(formats, formats):
        flow, _, _ = validate({**GOOD, "wire_format": wire}, strict=True)
        assert flow is not None
        assert [d.options.get("format") for d in flow.destinations] == [None, wire]
        kept, _, _ = validate({**change("destinations.1.options.format", own), "wire_format": wire}, strict=True)
        assert kept is not None and kept.destinations[1].options["format"] == own


def test_settings_without_effect_are_noted() -> None:
    flow, _, notes = validate(change("config.quorum", 1), strict=True)
    assert flow is not None and [n.path for n in notes] == ["config.quorum"]
