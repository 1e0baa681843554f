"""Drafts: what may be kept of a definition that somebody sends.

Secrets stand in it as references only. A file reference must lie in a directory that the server was told of, and no reference
may name the server's own variables: whoever writes definitions would otherwise read what only the server may.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ValidationError

from penstock.control.sentences import path_of, secret_fields
from penstock.control.validate import Note, uses, validate
from penstock.core.connectors import cards
from penstock.core.flow import Flow
from penstock.core.secret import has_reference, mask, references, shows_password, without_references
from penstock.engine.reloading import kept
from penstock.errors import FlowInvalid, Problem
from penstock.ledger.definitions import Draft

OWN = "PENSTOCK_"
"""Variables with this prefix are the server's."""
_LONGEST_LABEL = 255


def examine_definition(definition: Mapping[str, Any], secret_files: Sequence[Path]) -> tuple[list[Problem], list[Note]]:
    """Every problem of a definition that was sent; no reference in it is followed."""
    _, problems, notes = validate(definition, strict=False, resolving=False)
    found = [*problems, *_texts(definition, ""), *_references(definition, "", secret_files), *_secrets(dict(definition))]
    return [*found, *_labels(definition)], notes


def draft(definition: Mapping[str, Any], secret_files: Sequence[Path]) -> Draft:
    """The definition as it may be kept; FlowInvalid with every problem at once."""
    flow, _, _ = validate(definition, strict=False, resolving=False)
    problems, _ = examine_definition(definition, secret_files)
    if flow is None and not problems:
        problems = list(_untold(definition))
    if flow is None or problems:
        name = definition.get("name")
        raise FlowInvalid.of(name if isinstance(name, str) and name.isprintable() else "the definition", problems)
    return Draft(flow.name, definition, kept(flow), flow.labels)


def shown(value: Any) -> Any:
    """Plain data as it may be shown: references as they stand, passwords masked wherever one has come from."""
    if isinstance(value, str):
        return mask(value) if shows_password(value) else value
    if isinstance(value, dict):
        return {key: shown(inner) for key, inner in value.items()}
    return [shown(inner) for inner in value] if isinstance(value, list) else value


def hidden(raw: Mapping[str, Any], problems: Sequence[Problem]) -> list[Problem]:
    """Problems of a resolved definition, without what is behind its references."""
    behind = set(_paths(raw, ""))
    kept_back = "what its reference stands for is no good value here"
    return [Problem(p.path, kept_back, p.remedy) if p.path in behind and _judges(p) else p for p in problems]


def _untold(definition: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        Flow.model_validate(dict(definition))
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            message = "is a reference where the definition must say the value itself"
            yield Problem(path_of(detail["loc"]), message, "Write the value; references may stand in connectors' options.")


def _judges(problem: Problem) -> bool:
    # That a variable is missing, or a file, tells nothing of what is in it.
    return not problem.message.startswith(("environment variable ", "file "))


def _paths(value: Any, path: str) -> Iterator[str]:
    for place, text in _strings(value, path):
        if has_reference(text):
            yield place


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _strings(inner, f"{path}[{index}]")


def _texts(value: Any, path: str) -> Iterator[Problem]:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        bad = "\\u0000" in json.dumps(value)
    except (UnicodeEncodeError, ValueError, TypeError):
        bad = True
    if bad:
        yield Problem(path, "has characters or numbers that JSON cannot carry", "Take them out.")


def _references(definition: Any, path: str, allowed: Sequence[Path]) -> Iterator[Problem]:
    for place, text in _strings(definition, path):
        for kind, name in references(text):
            if kind == "env" and name.upper().startswith(OWN):
                yield Problem(place, f"{name} is the server's own variable", "Give the secret a variable of its own.")
            elif kind == "file" and not _is_within(name, allowed):
                where = ", ".join(map(str, allowed)) or "none"
                message = "a file reference must lie in a directory of secrets that the server was told of"
                yield Problem(place, message, f"Put the file there (now: {where}), or start the server with --secret-files DIR.")


def _is_within(name: str, allowed: Sequence[Path]) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() and ".." not in path.parts and any(path.is_relative_to(one) for one in allowed)


def _secrets(definition: dict[str, Any]) -> Iterator[Problem]:
    remedy = "Put it into a variable of the server and write ${env:NAME}, or into a file and write ${file:/…}."
    flagged: set[str] = set()
    for path, kind, use in uses(definition):
        card = cards(kind).get(use["type"]) if isinstance(use.get("type"), str) else None
        options = use.get("options")
        if card is None or not isinstance(options, dict):
            continue
        for name in secret_fields(card.options) - _connections(card.options):
            for place, text in _strings(options.get(name), f"{path}.options.{name}"):
                if text and "\ue000" not in without_references(text):
                    flagged.add(place)
                    yield Problem(place, "is a secret in plain text, and definitions keep none", remedy)
    for place, text in _strings(definition, ""):
        key = place.rpartition(".")[2]
        if place not in flagged and (shows_password(text) or (shows_password(f"{key}={text}") and " " not in text)):
            yield Problem(place, "shows a password in plain text, and definitions keep none", remedy)


def _connections(model: type[BaseModel]) -> frozenset[str]:
    """Secret options of which only the password is one: the rest is host, user and database."""
    found = {name: field.json_schema_extra for name, field in model.model_fields.items()}
    return frozenset(name for name, extra in found.items() if isinstance(extra, Mapping) and extra.get("connection"))


def _labels(definition: Mapping[str, Any]) -> Iterator[Problem]:
    labels = definition.get("labels")
    if not isinstance(labels, dict):
        return
    for label in labels:
        if not label or len(label) > _LONGEST_LABEL or any(sign in label for sign in "=!,"):
            remedy = f"Use at most {_LONGEST_LABEL} characters, and none of = ! ,"
            yield Problem(f"labels.{label[:40]}", "is no label that can be searched for", remedy)
