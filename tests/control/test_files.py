"""Flow files: what can be read is read whole, what cannot is refused in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.control.files import MAX_BYTES, load
from penstock.errors import FlowInvalid


def write(tmp_path: Path, text: str | bytes, name: str = "flow.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flow.yaml", "name: shop\nsource: {type: postgres}\n"),
        ("flow.yml", "\ufeffname: shop\nsource:\n  type: postgres\n"),
        ("flow.json", '{"name": "shop", "source": {"type": "postgres"}}'),
        ("flow", "base: &b {type: postgres}\nname: shop\nsource: *b\n"),
    ],
)
def test_yaml_and_json_are_read(tmp_path: Path, name: str, text: str) -> None:
    found = load(write(tmp_path, text, name))
    assert found.raw["name"] == "shop" and found.raw["source"] == {"type": "postgres"}
    assert found.problems == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  \n\n", "empty"),
        ("# only a comment\n", "nothing"),
        ("- a\n- b\n", "a list"),
        ("just words", "a single value"),
        ("a: [1, 2", "line 1"),
        ("a: 1\n b: 2\n", "line 2"),
        ("a: 1\n---\nb: 2\n", "document"),
        ("a: !!python/object/apply:os.system [x]", "constructor"),
        ("\x00\x01", "not a text file"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"\x7fELF\x02\x01\x80", "UTF-8"),
        ("a: \x07", "not YAML"),
        ("[" * 5000, "nested|line"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_mapping_is_refused_in_one_sentence(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(FlowInvalid, match=words) as refusal:
        load(write(tmp_path, text))
    assert "\n" not in refusal.value.message and refusal.value.remedy and len(refusal.value.problems) == 1


def test_bad_json_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(FlowInvalid, match="line 2"):
        load(write(tmp_path, '{"a": 1,\n}', "flow.json"))


def test_missing_directory_and_huge_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowInvalid, match="no such file"):
        load(tmp_path / "nope.yaml")
    with pytest.raises(FlowInvalid, match="directory"):
        load(tmp_path)
    with pytest.raises(FlowInvalid, match="larger"):
        load(write(tmp_path, b"#" * (MAX_BYTES + 1)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x")
    path.chmod(0)
    with pytest.raises(FlowInvalid, match="permission denied"):
        load(path)


def test_every_doubled_key_is_found_with_its_path(tmp_path: Path) -> None:
    text = "name: a\nname: b\nsource: {type: x, type: y}\ndestinations:\n  - {name: a}\n  - {options: {p: 1, p: 2}}\n"
    found = load(write(tmp_path, text))
    assert [p.path for p in found.problems] == ["name", "source.type", "destinations[1].options.p"]
    assert "line 2" in found.problems[0].message


def test_doubled_keys_of_json_are_found(tmp_path: Path) -> None:
    found = load(write(tmp_path, '{"name": "a", "name": "b"}', "flow.json"))
    assert [p.path for p in found.problems] == ["name"]


def test_keys_that_yaml_does_not_read_as_text_are_named_once(tmp_path: Path) -> None:
    found = load(write(tmp_path, "on: 1\n2: x\nname: a\n"))
    assert [p.path for p in found.problems] == ["on", "2"]
    assert found.raw == {"name": "a"}


def test_a_file_that_contains_itself_ends(tmp_path: Path) -> None:
    with pytest.raises(FlowInvalid):
        load(write(tmp_path, "a: &a [*a]\nname: x\n"))


def test_aliases_that_unfold_without_end_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]" for i in range(9)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(FlowInvalid) as caught:
        load(path)
    assert "aliases" in caught.value.problems[0].message
