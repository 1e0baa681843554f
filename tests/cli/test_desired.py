"""`penstock plan|apply|export`: a directory says what there is to be, and applying it twice is applying it once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.app import run
from penstock.client.desired import apply, plan
from penstock.client.local import LocalPlane
from penstock.engine.lease import holding
from penstock.engine.places import ledger_address
from tests.control.definitions import definition


class Site:
    """A directory of flow files, and commands on a state directory."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.files, self._state, self._capsys = tmp_path / "flows", tmp_path / "state", capsys
        self.files.mkdir()

    def write(self, name: str, **more: Any) -> None:
        (self.files / f"{name}.yaml").write_text(yaml.safe_dump(definition(name, **more)))

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert run([*words, "--state", str(self._state)]) == code, self._capsys.readouterr().err
        shown = self._capsys.readouterr()
        return shown.out + shown.err

    def steps(self, *words: str) -> list[tuple[str, str]]:
        return [(s["step"], s["flow"]) for s in json.loads(self("plan", "-f", str(self.files), "--json", *words))]


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


@pytest.mark.slow
def test_what_files_say_is_brought_about_and_then_nothing_is_left_to_do(site: Site) -> None:
    site.write("a", labels={"team": "x"})
    site.write("b")
    assert site.steps() == [("create", "a"), ("create", "b")]
    shown = site("apply", "-f", str(site.files), "--yes", "--why", "first")
    assert "a: created" in shown and "b: created" in shown
    assert "nothing to do" in site("apply", "-f", str(site.files))
    site.write("a", labels={"team": "y"}, parallelism=2)
    shown = site("plan", "-f", str(site.files))
    assert "~ update a" in shown and "~ labels.team: x → y" in shown and "+ parallelism: 2" in shown and "1 as they are" in shown
    assert "a: updated: counts from the next start" in site("apply", "-f", str(site.files), "--yes")
    (site.files / "b.yaml").unlink()
    assert site.steps() == [("keep", "a")]
    assert site.steps("--prune", "--labels", "team") == [("keep", "a")]
    assert site.steps("--prune") == [("keep", "a"), ("delete", "b")]
    assert "b: deleted" in site("apply", "-f", str(site.files), "--prune", "--yes")
    assert site.steps("--prune") == [("keep", "a")]


def test_what_is_exported_is_what_is_there(site: Site) -> None:
    site.write("a", labels={"team": "x"})
    site("apply", "-f", str(site.files), "--yes")
    (site.files / "a.yaml").unlink()
    assert "1 flow written" in site("export", "-f", str(site.files))
    assert site.steps("--prune") == [("keep", "a")]
    assert "${env:SHOP_PASSWORD}" in (site.files / "a.yaml").read_text()


def test_problems_of_all_files_are_said_at_once_and_nothing_is_changed(site: Site) -> None:
    site.write("a", nmae=1)
    site.write("b", config={"quorum": 9})
    (site.files / "c.yml").write_text("name: a\nsource: {}")
    shown = site("apply", "-f", str(site.files), "--yes", code=2)
    assert "another file has a flow named a too" in shown
    (site.files / "c.yml").unlink()
    shown = site("apply", "-f", str(site.files), "--yes", code=2)
    assert "a: nmae" in shown and "b: config.quorum" in shown
    assert "flow_unknown" in site("flow", "show", "a", code=1)


def test_a_flow_that_is_to_run_is_stopped_before_it_is_deleted(site: Site) -> None:
    site.write("b")
    site("apply", "-f", str(site.files), "--yes", "--start")
    site("flow", "start", "b")
    (site.files / "b.yaml").unlink()
    site.write("c")
    assert "b: deleted" in site("apply", "-f", str(site.files), "--prune", "--yes")
    assert site.steps("--prune") == [("keep", "c")]


def test_one_refused_step_does_not_keep_the_others_back(tmp_path: Path) -> None:
    with LocalPlane(tmp_path) as plane:
        plane.create_flow(definition("a"))
        steps = plan(plane, {"a": definition("a", parallelism=2), "b": definition("b")})
        plane.update_flow("a", definition("a", parallelism=3), why="meanwhile")
        done = list(apply(plane, steps))
        assert [(one.step.flow, one.error.code if one.error else None) for one in done] == [("a", "revision_stale"), ("b", None)]
        assert (plane.flow("a").definition or {})["parallelism"] == 3


def test_a_flow_that_is_not_deleted_after_all_is_wanted_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hush")
    with LocalPlane(tmp_path) as plane:
        for name in ("changed", "held", "paused"):
            plane.create_flow(definition(name), start=True)
        plane.command("pause", "paused")
        steps = plan(plane, {}, prune=True)
        plane.update_flow("changed", definition("changed", parallelism=3), why="meanwhile")
        place = ledger_address(tmp_path)
        with holding(place, "held", "flow cleanup"), holding(place, "paused", "flow cleanup"):
            done = {one.step.flow: one.error.code if one.error else None for one in apply(plane, steps)}
        assert done == {"changed": "revision_stale", "held": "flow_running", "paused": "flow_running"}
        assert {name: plane.flow(name).wished for name in done} == {"changed": "running", "held": "running", "paused": "paused"}
        assert "stop asked for" not in [e.event for e in plane.events(flow="changed").events]


def test_a_flow_whose_deletion_was_cut_short_does_not_begin_anew_and_may_be_deleted_again(tmp_path: Path) -> None:
    with LocalPlane(tmp_path) as plane:
        plane.create_flow(definition("a"), start=True)
        stuck = tmp_path / "journal" / "a" / "0000000001.seg"
        (stuck / "in the way").mkdir(parents=True)
        steps = plan(plane, {}, prune=True)
        assert [one.error.code for one in apply(plane, steps) if one.error is not None] == ["ledger_unusable"]
        left = plane.flow("a")
        assert (left.state, left.wished) == ("deleting", "stopped")
        (stuck / "in the way").rmdir()
        stuck.rmdir()
        plane.delete_flow("a", etag=left.etag, cleanup=False)
        assert plane.flows().flows == []


def test_a_directory_without_a_flow_file_is_a_slip_and_prunes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flows").mkdir()
    with LocalPlane(tmp_path / "state") as plane:
        plane.create_flow(definition("a"))
        assert run(["apply", "-f", str(tmp_path / "flows"), "--prune", "-y", "--state", str(tmp_path / "state")]) == 2
        assert "holds no flow file" in capsys.readouterr().err
        assert [flow.name for flow in plane.flows().flows] == ["a"]


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["export", "-f", str(tmp_path / "file"), "--state", str(tmp_path / "state")]) == 1
    assert "request_refused: flows cannot be written to" in capsys.readouterr().err
