"""Flow files: YAML or JSON text to plain data, with every doubled key found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import FlowInvalid, Problem

MAX_BYTES = 4 << 20
"""A flow file is written by people; anything bigger is some other file."""


@dataclass(frozen=True)
class FlowFile:
    """What a flow file says, before anything is checked but its syntax."""

    path: Path
    raw: dict[str, Any]
    problems: tuple[Problem, ...]
    """Doubled keys, and keys that are not text."""


_MOST_VALUES = 100_000


def load(path: Path) -> FlowFile:
    """The file as plain data; FlowInvalid when it cannot be read as a mapping at all."""
    text = _text(path)
    if not text.strip():
        raise _refused(path, "the file is empty", "Write a flow: name, source and destinations.")
    problems: list[Problem] = []
    try:
        raw = _text_keys(_from_json(text, problems) if path.suffix.lower() == ".json" else _from_yaml(text, problems))
    except json.JSONDecodeError as error:
        raise _refused(path, f"line {error.lineno}: {error.msg}", "Correct the JSON there.") from error
    except yaml.YAMLError as error:
        raise _refused(
            path, _yaml_message(error), "Correct the YAML there; indentation and colons are the usual reasons."
        ) from error
    except RecursionError as error:
        raise _refused(
            path, "it is nested too deeply, or contains itself", "Write a flow: name, source and destinations."
        ) from error
    if not isinstance(raw, dict):
        kind = "a list" if isinstance(raw, list) else "nothing" if raw is None else "a single value"
        raise _refused(
            path, f"the file holds {kind} where a mapping is wanted", "Begin with `name:`, `source:` and `destinations:`."
        )
    return FlowFile(path, raw, tuple(problems))


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise _refused(path, "it is a directory", "Name the flow file itself.")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise _refused(path, "there is no such file", "Check the path.") from error
    except OSError as error:
        raise _refused(
            path, f"it cannot be read: {(error.strerror or type(error).__name__).lower()}", "Mend the file's rights."
        ) from error
    if len(content) > MAX_BYTES:
        raise _refused(path, f"it is larger than {MAX_BYTES >> 20} MiB", "Name the flow file.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(path, "it is not text in UTF-8", "Name the flow file, and save it as UTF-8.") from error
    if "\0" in text:
        raise _refused(path, "it is not a text file", "Name the flow file.")
    return text


def _from_json(text: str, problems: list[Problem]) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in items:
            if key in seen:
                problems.append(Problem(key, "the key stands twice in one object", "Keep one of them."))
            seen[key] = value
        return seen

    return json.loads(text, object_pairs_hook=pairs)


def _from_yaml(text: str, problems: list[Problem]) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _unfolded(root, {}) > _MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=f"its aliases unfold to more than {_MOST_VALUES:,} values")
        problems.extend(_key_problems(root, "", set()))
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _unfolded(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node has when every alias is written out; one that contains itself has too many."""
    if id(node) not in known:
        known[id(node)] = _MOST_VALUES + 1
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = [value for _, value in node.value]
        known[id(node)] = 1 + sum(_unfolded(part, known) for part in parts)
    return known[id(node)]


def _key_problems(node: yaml.Node, path: str, above: set[int]) -> Iterator[Problem]:
    if id(node) in above:
        return
    above = above | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _key_problems(item, f"{path}[{index}]", above)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            place = f"{path}.{name}" if path else name
            line = f"line {key.start_mark.line + 1}"
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                # YAML reads on, off, yes, no and numbers as other than text.
                yield Problem(place, f"the key in {line} is not text to YAML", f'Put it in quotes: "{name}".')
            elif name in seen:
                yield Problem(place, f"the key stands twice (again in {line})", "Keep one of them.")
            seen.add(name)
            yield from _key_problems(value, place, above)


def _text_keys(value: Any) -> Any:
    """Without the keys that are not text: they are reported already, and nothing below could name them."""
    if isinstance(value, dict):
        return {key: _text_keys(inner) for key, inner in value.items() if isinstance(key, str)}
    return [_text_keys(inner) for inner in value] if isinstance(value, list) else value


def _yaml_message(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        return f"{where}{error.problem or error.context or 'it is not YAML'}"
    return "it is not YAML text"


def _refused(path: Path, message: str, remedy: str) -> FlowInvalid:
    error = FlowInvalid(f"{path}: {message}", remedy=remedy)
    error.problems = (Problem("", message, remedy),)
    return error
