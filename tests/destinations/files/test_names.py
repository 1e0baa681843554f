"""Names on disk are safe for any source name, and can be turned back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.epoch import Epoch
from penstock.destinations.files.names import file_name, plain_name, safe_name, table_directory

EPOCH = Epoch("f", "d", "s", 7, 0, 0x16B6C50, 2, 1)


@given(st.text(min_size=1, max_size=80))
def test_any_name_is_one_visible_directory_and_comes_back(name: str) -> None:
    safe = safe_name(name)
    assert len(safe.encode()) <= 200
    assert not set(safe) & set('/\\\0*?[]{}=:"\n ')
    assert safe[0] not in "._" and safe not in (".", "..")
    plain = plain_name(safe)
    assert plain in (name, None)
    assert plain == name or len(name.encode()) > 60


@given(st.text(max_size=120), st.text(max_size=120))
def test_different_names_stay_different(left: str, right: str) -> None:
    assert (safe_name(left) == safe_name(right)) == (left == right)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("orders", "orders"),
        ("Order Lines", "Order%20Lines"),
        ("../etc", "%2E.%2Fetc"),
        ("_hidden", "%5Fhidden"),
        (".hidden", "%2Ehidden"),
        ("a=b", "a%3Db"),
        ("50%", "50%25"),
        ("таблица", "таблица"),
    ],
)
def test_plain_names_stay_readable(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_a_very_long_name_is_cut_and_told_apart_by_its_digest() -> None:
    first, second = "x" * 300, "x" * 299 + "y"
    assert safe_name(first) != safe_name(second)
    assert plain_name(safe_name(first)) is None


def test_names_of_files_sort_as_the_log_does() -> None:
    assert file_name(EPOCH, 1, 3, 2, "parquet") == "00000000016B6C50-000000000007-0001-000003-0002.parquet"
    names = [
        file_name(replace(EPOCH, number=n, upto=upto), 0, 1, 0, "json")
        for n, upto in ((9, 10), (10, 10), (11, 16), (12, 1 << 40))
    ]
    assert sorted(names) == names
    assert table_directory(Path("/data"), "public", "orders") == Path("/data/public/orders")
