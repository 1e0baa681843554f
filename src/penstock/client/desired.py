"""Desired state: a directory of flow files, compared with the flows that are there, and brought about.

To apply twice is to apply once. A change is made to the revision that was compared, and refused if somebody changed it meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from penstock.client.plane import ControlPlane
from penstock.control.drafts import shown
from penstock.control.files import load
from penstock.control.lifecycle import Command
from penstock.errors import FlowInvalid, PenstockError, Problem, RequestRefused, RevisionStale, TransitionRefused

SUFFIXES = (".yaml", ".yml", ".json")
_PAGE = 500
_BACK: dict[str, tuple[Command, ...]] = {"running": ("start",), "paused": ("start", "pause"), "once": ("run",)}
"""How a stopped flow comes to be wanted as it was."""


@dataclass(frozen=True)
class Difference:
    """One place in which two definitions differ; None where there is nothing."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.path}: {shown(self.after)}"
        if self.after is None:
            return f"- {self.path}: {shown(self.before)}"
        return f"~ {self.path}: {shown(self.before)} → {shown(self.after)}"


@dataclass(frozen=True)
class Step:
    """What is to be done about one flow."""

    kind: Literal["create", "update", "delete", "keep"]
    flow: str
    definition: dict[str, Any] | None = None
    etag: str | None = None
    differences: tuple[Difference, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Plain data for an answer."""
        return {"step": self.kind, "flow": self.flow, "differences": [str(d) for d in self.differences]}


@dataclass(frozen=True)
class Done:
    """What became of a step."""

    step: Step
    words: str
    error: PenstockError | None = None


def read_definitions(place: Path) -> dict[str, dict[str, Any]]:
    """The definitions of a directory's flow files, or of one file, by name; FlowInvalid with every problem of every file."""
    files = sorted(p for p in place.rglob("*") if p.suffix.lower() in SUFFIXES) if place.is_dir() else [place]
    if not files:
        # A slip in the path, of which --prune would make the deletion of every flow.
        problem = Problem(str(place), "holds no flow file", "Check the directory; delete flows with `penstock flow delete`.")
        raise FlowInvalid.of(str(place), [problem])
    found: dict[str, dict[str, Any]] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            loaded = load(file)
        except FlowInvalid as error:
            problems += [Problem(f"{file}", p.message, p.remedy) for p in error.problems]
            continue
        problems += [Problem(f"{file}: {p.path}", p.message, p.remedy) for p in loaded.problems]
        name = loaded.raw.get("name")
        if not isinstance(name, str):
            problems.append(Problem(f"{file}: name", "is missing", "Give the flow a name."))
        elif name in found:
            problems.append(Problem(f"{file}: name", f"another file has a flow named {name} too", "Keep one of them."))
        else:
            found[name] = loaded.raw
    if problems:
        raise FlowInvalid.of(str(place), problems)
    return found


def plan(plane: ControlPlane, wanted: Mapping[str, dict[str, Any]], *, prune: bool = False, labels: str = "") -> list[Step]:
    """What has to be done, in name order; FlowInvalid with every problem of every definition.

    With `prune` created flows that fit `labels` and are not wanted go.
    """
    problems = [
        Problem(f"{name}: {p.path}", p.message, p.remedy)
        for name, definition in wanted.items()
        for p in plane.validate(definition).problems
    ]
    if problems:
        raise FlowInvalid.of("the definitions", problems)
    there = dict(_created(plane, ""))
    steps = [_step(plane, name, wanted[name], name in there) for name in sorted(wanted)]
    if prune:
        gone = [(name, etag) for name, etag in _created(plane, labels) if name not in wanted]
        steps += [Step("delete", name, etag=etag) for name, etag in gone]
    return steps


def apply(plane: ControlPlane, steps: Sequence[Step], *, start: bool = False, why: str | None = None) -> Iterator[Done]:
    """Does each step and says what became of it; one that fails does not keep the others back."""
    for step in steps:
        try:
            yield Done(step, _do(plane, step, start, why))
        except PenstockError as error:
            yield Done(step, f"{error.code}: {error.message}", error)


def export(plane: ControlPlane, directory: Path, labels: str = "") -> list[Path]:
    """Writes every created flow that fits to a file of its name, and returns the files."""
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, _ in _created(plane, labels):
            path = directory / f"{name}.yaml"
            path.write_text(yaml.safe_dump(plane.flow(name).definition, sort_keys=False, allow_unicode=True))
            written.append(path)
    except OSError as error:
        raise RequestRefused(
            f"flows cannot be written to {directory}: {error.strerror}",
            remedy="Name a directory that may be written; one that is not there is made.",
        ) from error
    return written


def compare(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Every place in which two definitions differ; list entries with names are told apart by them."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from compare(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif _is_named(before) and _is_named(after):
        old, new = {e["name"]: e for e in before}, {e["name"]: e for e in after}
        for name in dict.fromkeys([*old, *new]):
            yield from compare(old.get(name), new.get(name), f"{path}[{name}]")
    elif before != after:
        yield Difference(path, before, after)


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(e, dict) and isinstance(e.get("name"), str) for e in value)


def _step(plane: ControlPlane, name: str, definition: dict[str, Any], is_there: bool) -> Step:
    if not is_there:
        return Step("create", name, definition, differences=tuple(compare({}, definition)))
    flow = plane.flow(name)
    differences = tuple(compare(flow.definition, definition))
    kind: Literal["update", "keep"] = "update" if differences else "keep"
    return Step(kind, name, definition, flow.etag, differences)


def _do(plane: ControlPlane, step: Step, start: bool, why: str | None) -> str:
    if step.kind == "create":
        assert step.definition is not None
        made = plane.create_flow(step.definition, start=start, why=why)
        return "created; it is to run" if made.wished == "running" else "created"
    if step.kind == "update":
        assert step.definition is not None
        done = plane.update_flow(step.flow, step.definition, etag=step.etag, why=why)
        return f"updated: {done.applied}"
    if step.kind == "delete":
        _delete(plane, step, why)
        return "deleted"
    return "as it is"


def _delete(plane: ControlPlane, step: Step, why: str | None) -> None:
    """Stops and deletes the flow; one of which nothing has gone is wanted as it was, one whose deletion has begun stays so."""
    before = plane.flow(step.flow)
    if before.etag != step.etag:
        raise RevisionStale(f"flow {step.flow} was changed by {before.updated_by} meanwhile, and is not deleted", flow=step.flow)
    stopped = plane.command("stop", step.flow, why=why, wait=60)
    try:
        if not stopped.settled:
            raise TransitionRefused(
                f"the worker of flow {step.flow} has not ended in time, and the flow is not deleted",
                remedy="`penstock flow show` says what holds it; then apply again.",
                flow=step.flow,
            )
        plane.delete_flow(step.flow, etag=step.etag, why=why)
    except PenstockError:
        with contextlib.suppress(PenstockError):
            for command in _BACK.get(before.wished, ()):
                plane.command(command, step.flow, why="it was not deleted")
        raise


def _created(plane: ControlPlane, labels: str) -> Iterator[tuple[str, str]]:
    """Name and etag of each created flow; those that run from files are their files' business."""
    after: str | None = ""
    while after is not None:
        page = plane.flows(after=after, limit=_PAGE, labels=labels)
        yield from ((flow.name, flow.etag) for flow in page.flows if flow.etag is not None)
        after = page.next
