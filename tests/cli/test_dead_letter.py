"""`penstock dead-letter`: what was set aside is found, shown with its reason, marked for replay, discarded after a yes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.cli.app import run
from penstock.core.batch import Odd
from penstock.core.epoch import Epoch
from penstock.destinations.aside import Aside, Fault
from penstock.ledger.ledger import Ledger
from tests.batches import batch, insert, move, table, update

ORDERS = table({"id": pa.int64(), "n": (pa.decimal128(5, 2), "numeric(5,2)"), "note": pa.string()})
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """`penstock dead-letter` on a flow that has three letters: one refused, two that wait behind it."""
    ledger = Ledger(tmp_path / "ledger.db")
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "warehouse", 0, generation)
    epoch = Epoch("shop", "warehouse", "5ec0ffee", 1, 0, 0x16B6C50, 1, generation)
    ledger.plan(epoch, 3)
    changes = [
        insert({"id": 7, "n": None, "note": "sécret"}, position=0x16B6C50),
        update({"id": 7, "n": 1}, position=0x16B6C50, ordinal=2),
        *move({"id": 7}, {"id": 8, "n": 2}, position=0x16B6C50, ordinal=3),
    ]
    odd = {"n": Odd(pa.array([0], pa.int64()), pa.array(["NaN"]))}
    aside = Aside()
    refused = np.array([True, False, False, False])
    aside.refuse(batch(ORDERS, changes, odd), [Fault(refused, "value_unrepresentable", "the value of column n does not fit")])
    ledger.set_aside(epoch, generation, aside.letters, {}, {})
    ledger.close_epoch(epoch, generation, letters=True)
    ledger.close()
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\n")

    def go(*words: str, flow: str = str(file)) -> tuple[int, str]:
        code = run(["dead-letter", words[0], "--flow", flow, "--state", str(tmp_path), *words[1:]])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return go


def answer(result: tuple[int, str]) -> Any:
    assert result[0] == 0, result[1]
    return json.loads(result[1])


def test_list_shows_what_was_set_aside_and_no_values(command: Command) -> None:
    code, shown = command("list")
    assert code == 0 and "warehouse" in shown and "public.orders" in shown and '{"id":7}' in shown
    assert "once" in shown and "waiting" in shown and "sécret" not in shown and "NaN" not in shown
    data = answer(command("list", "--json", "--table", "public.*", "--destination", "warehouse"))
    assert [(x["id"], x["state"], x["op"], x["key"]) for x in data] == [
        (1, "open", "insert", {"id": 7}),
        (2, "waiting", "update", {"id": 7}),
        (3, "waiting", "update", {"id": 8}),
    ]
    assert data[0]["position"] == "0/16B6C50" and data[0]["code"] == "value_unrepresentable"
    assert answer(command("list", "--json", "--table", "lines")) == []


def test_a_flow_is_named_by_its_file_or_its_name(command: Command) -> None:
    assert command("list", flow="shop")[0] == 0
    code, shown = command("list", flow="other")
    assert code == 1 and "flow_unknown" in shown and "--state" in shown
    assert command("list", flow="no/such/file.yaml")[0] == 2


def test_show_tells_the_change_the_reason_and_the_remedy(command: Command) -> None:
    code, shown = command("show", "--id", "1")
    assert code == 0 and "value_unrepresentable: the value of column n does not fit" in shown
    assert "on_unrepresentable: null" in shown and "n = NaN" in shown and "sécret" in shown
    data = answer(command("show", "--id", "3", "--json"))
    assert data["change"]["before"] == {"id": 7} and data["change"]["after"]["id"] == 8 and data["change"]["event_id"]
    assert "by itself" in data["remedy"]
    code, shown = command("show", "--id", "99")
    assert code == 1 and "letter_missing" in shown and "dead-letter list" in shown


def test_replay_marks_what_is_named_and_nothing_else(command: Command) -> None:
    assert command("replay")[0] == 2
    assert answer(command("replay", "--id", "1", "--id", "2", "--json")) == {"marked": [1, 2], "already": []}
    assert [x["state"] for x in answer(command("list", "--json"))] == ["asked for", "asked for", "waiting"]
    assert command("replay", "--id", "1", "--id", "99")[0] == 1
    code, shown = command("replay", "--all")
    assert code == 0 and "3 letters marked" in shown
    assert command("replay", "--table", "lines") == (0, "nothing to do\n")


def test_discard_asks_and_takes_no_for_an_answer(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("n\n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        code, shown = command("discard", "--all")
        assert code == 1 and "3 letters" in shown and "never reach" in shown
    assert len(answer(command("list", "--json"))) == 3
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert command("discard", "--id", "1")[0] == 0
    assert answer(command("discard", "--all", "--yes", "--json")) == {"discarded": [2, 3], "in_delivery": []}
    assert command("list") == (0, "no dead letters\n")
