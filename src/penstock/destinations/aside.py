"""What a lane sets aside of one bucket: changes that the destination refuses for good, and the later changes of their keys.

Keys are compared as the text of their JSON object, which is the same for equal keys of any type and any table version. A
change that moves a row from one key to another touches both: when one of them waits, the change waits, and from there on so
does the other. Nothing here depends on anything but the batches, so a replay sets the same changes aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Odd, Op
from penstock.core.packing import pack
from penstock.core.schema import TableSchema
from penstock.errors import DeadLettersFull
from penstock.formats.layout import OP_NAMES

WAITING = "waiting"
WHOLE = ""
"""Among keys: every key of the table, because a TRUNCATE is set aside."""
_WAITS = "an earlier change of its key is set aside"

Name = tuple[str, str]
"""Schema and table."""
Letter = dict[str, Any]
"""A change that is set aside, as plain data: schema, table, key, keys (all that it touches), position, ordinal, op, code,
reason (without values), content (the packed batch)."""
Refusal = dict[str, Any]
"""What a destination says of a refused change: schema, table, position, ordinal, code, reason (without values)."""


@dataclass(frozen=True)
class Fault:
    """Why rows of a batch are refused: which (a boolean per row), a code, and a sentence without values."""

    rows: Any
    code: str
    reason: str


@dataclass
class _Keys:
    """The keys of a batch as numbers: of every row, and for rows that came from another key, of that key (else -1)."""

    texts: pa.Array
    own: Any
    old: Any

    def numbers(self, wanted: pa.Array) -> Any:
        """Which of the keys are wanted."""
        return _numpy(pc.is_in(self.texts, value_set=wanted.cast(self.texts.type)))

    def touched(self, rows: Any) -> list[str]:
        """The keys that the rows have or had."""
        numbers = {int(n): None for row in rows for n in (self.old[row], self.own[row]) if n >= 0}
        return [self.texts[n].as_py() for n in numbers]


@dataclass
class Aside:
    """One bucket of one epoch: `passed` goes before the writer, `refuse` is for the writer, `letters` for the receipt.

    `parked` are the keys whose changes wait, by table; a table without keys there is watched for its TRUNCATE only.
    `waits` is whether later changes of a refused key wait too. `room` is how many letters there may be; DeadLettersFull when
    there are more. `truncates` is whether a TRUNCATE takes effect, so that nothing waits behind it.
    """

    parked: dict[Name, pa.Array] = field(default_factory=dict)
    waits: bool = True
    room: int = 10_000
    truncates: bool = True
    letters: list[Letter] = field(default_factory=list)
    truncated: dict[Name, tuple[int, int]] = field(default_factory=dict)
    """Where the last TRUNCATE of a table stands that has letters."""
    _condemned: dict[Name, dict[str, tuple[str, str]]] = field(default_factory=dict)

    def passed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches without what has to wait."""
        for batch in batches:
            name = (batch.table.schema, batch.table.name)
            if name in self.parked or name in self._condemned:
                held = self._hold(batch, (), self.parked.pop(name, None))
                batch = batch.filter(pa.array(~held)) if held.any() else batch
            if len(batch):
                yield batch

    def refuse(self, batch: Batch, faults: Sequence[Fault]) -> Any:
        """Sets the faulty rows aside and, where later changes wait, those of their keys; returns which rows are left."""
        # `passed` has seen this batch: what was parked before it holds nothing more of it.
        return ~self._hold(batch, faults, None)

    def condemn(self, refusals: Sequence[Refusal], batches: Iterable[Batch]) -> None:
        """Makes `passed` set aside every change of the keys whose changes were refused; `batches` are the whole bucket's."""
        for batch, faults in _found(refusals, batches):
            if not batch.table.key:
                continue
            condemned = self._condemned.setdefault((batch.table.schema, batch.table.name), {})
            texts = _texts(batch.table, batch.rows, batch.odd)
            # The new key stands for both halves of a key change: what happened to the old one before stays as it is.
            leaving = np.zeros(len(batch), np.bool_)
            leaving[_pairs(batch) - 1] = True
            for fault in faults:
                for text in texts.filter(pa.array(fault.rows & ~leaving)).to_pylist():
                    condemned.setdefault(text, (fault.code, fault.reason))

    def fetch(self, refusals: Sequence[Refusal], batches: Iterable[Batch]) -> None:
        """Makes letters of refused changes that the writer has named and left out itself."""
        for batch, faults in _found(refusals, batches):
            why = _reasons(batch, faults)
            self._note(batch, why >= 0, why, faults, _keys(batch))
            if (_numpy(batch.op)[why >= 0] == Op.TRUNCATE).any():
                # It has not taken effect, so what stood before it is still open.
                self.truncated.pop((batch.table.schema, batch.table.name), None)

    def _hold(self, batch: Batch, faults: Sequence[Fault], parked: pa.Array | None) -> Any:
        """Notes what the batch has to give up, and returns which rows that are; `parked` keys wait from its first row on."""
        name, count = (batch.table.schema, batch.table.name), len(batch)
        keys = _keys(batch)
        faults = [*faults, *self._condemned_in(batch, keys)]
        why = _reasons(batch, faults)
        held = why >= 0
        since = np.full(len(keys.texts), count, np.int64)
        if parked is not None:
            since[keys.numbers(parked)] = 0
            if pc.is_in(pa.scalar(WHOLE, parked.type), value_set=parked).as_py():
                self._park(name, parked)
                self._note(batch, np.ones(count, np.bool_), why, faults, keys)
                return np.ones(count, np.bool_)
        for begin, end in self._stretches(batch):
            if self.waits:
                here = np.nonzero(held[begin:end])[0] + begin
                np.minimum.at(since, keys.own[here], here)
                held[begin:end] |= _later(keys, since, begin, end)
            if end < count:
                since[:], parked = count, None
                self.truncated[name] = (batch.position[end].as_py(), batch.ordinal[end].as_py())
        self._park(name, parked, keys.texts.filter(pa.array(since < count)))
        self._note(batch, held, why, faults, keys)
        return held

    def _park(self, name: Name, *more: pa.Array | None) -> None:
        known = [keys.cast(pa.large_string()) for keys in (self.parked.get(name), *more) if keys is not None]
        self.parked[name] = pc.unique(pa.concat_arrays(known).drop_null())

    def _condemned_in(self, batch: Batch, keys: _Keys) -> list[Fault]:
        condemned = self._condemned.get((batch.table.schema, batch.table.name), {})
        found: dict[tuple[str, str], list[str]] = {}
        for text, about in condemned.items():
            found.setdefault(about, []).append(text)
        faults = []
        for (code, reason), texts in found.items():
            wanted = keys.numbers(pa.array(texts, pa.large_string()))
            rows = wanted[keys.own] | ((keys.old >= 0) & wanted[keys.old])
            faults.append(Fault(rows & (_numpy(batch.op) != Op.TRUNCATE), code, reason))
        return faults

    def _stretches(self, batch: Batch) -> Iterator[tuple[int, int]]:
        """The rows between TRUNCATEs that take effect."""
        begin = 0
        if self.truncates:
            for at in np.nonzero(_numpy(batch.op) == Op.TRUNCATE)[0]:
                yield begin, int(at)
                begin = int(at) + 1
        yield begin, len(batch)

    def _note(self, batch: Batch, held: Any, why: Any, faults: Sequence[Fault], keys: _Keys) -> None:
        """Letters of the rows that are held, the two halves of a key change in one."""
        if not held.any():
            return
        part = batch.filter(pa.array(held))
        places = np.nonzero(held)[0]
        pairs = set(_pairs(part).tolist())
        start = 0
        while start < len(part):
            after = start + (2 if start + 1 in pairs else 1)
            place = places[after - 1]
            fault = faults[why[place]] if why[place] >= 0 else None
            kind = Op(part.op[after - 1].as_py())
            self.letters.append(
                {
                    "schema": batch.table.schema,
                    "table": batch.table.name,
                    **_about(batch, kind, keys, places[start:after]),
                    "position": part.position[start].as_py(),
                    "ordinal": part.ordinal[start].as_py(),
                    "op": OP_NAMES.get(kind, kind.name.lower()),
                    "code": fault.code if fault is not None else WAITING,
                    "reason": fault.reason if fault is not None else _WAITS,
                    "content": pack(part.slice(start, after - start)),
                }
            )
            start = after
            if len(self.letters) > self.room:
                raise DeadLettersFull(
                    f"more changes would have to be set aside than max_open allows (the last one of {batch.table.qualified})",
                    table=batch.table.qualified,
                )


def _about(batch: Batch, kind: Op, keys: _Keys, places: Any) -> dict[str, Any]:
    """The key of a change, and all keys that it touches."""
    if not batch.table.key or kind == Op.TRUNCATE:
        return {"key": "", "keys": [WHOLE] if kind == Op.TRUNCATE else []}
    return {"key": keys.texts[int(keys.own[places[-1]])].as_py(), "keys": keys.touched(places)}


def _texts(table: TableSchema, rows: pa.RecordBatch, odd: Mapping[str, Odd]) -> pa.Array:
    # Cards are read without compiled kernels, and some of them import this module.
    from penstock.formats.json.format import key_texts

    return key_texts(table, rows, odd)


def _keys(batch: Batch) -> _Keys:
    """The batch's keys; in a table without a key every row is one of its own."""
    count = len(batch)
    former = np.full(count, -1, np.int64)
    if not batch.table.key:
        return _Keys(pa.nulls(count, pa.large_string()), np.arange(count), former)
    texts = _texts(batch.table, batch.rows, batch.odd)
    entering = _numpy(batch.op) == Op.ENTER
    if batch.before is not None and entering.any():
        old = _texts(batch.table, batch.before, batch.before_odd)
        texts = pa.concat_arrays([texts, old.filter(pa.array(entering))])
    encoded = texts.dictionary_encode()
    codes = _numpy(encoded.indices).astype(np.int64)
    if len(codes) > count:
        former[entering] = codes[count:]
    return _Keys(encoded.dictionary, codes[:count], former)


def _later(keys: _Keys, first: Any, begin: int, end: int) -> Any:
    """Which rows from `begin` to `end` wait when `first` says from which row on each key does; makes `first` complete."""
    index, own, old = np.arange(begin, end), keys.own[begin:end], keys.old[begin:end]
    moved = old >= 0
    while True:
        held = index >= first[own]
        held[moved] |= index[moved] >= first[old[moved]]
        both = moved & held
        known = int(first.sum())
        np.minimum.at(first, own[both], index[both])
        # The other half of a key change stands directly before it.
        np.minimum.at(first, old[both], index[both] - 1)
        if int(first.sum()) == known:
            return held


def _reasons(batch: Batch, faults: Sequence[Fault]) -> Any:
    """For every row the number of its fault, the same for both halves of a key change; -1 where it has none."""
    why = np.full(len(batch), -1, np.int64)
    for number, fault in enumerate(faults):
        why[fault.rows & (why < 0)] = number
    enters = _pairs(batch)
    joint = np.maximum(why[enters], why[enters - 1])
    why[enters], why[enters - 1] = joint, joint
    return why


def _pairs(batch: Batch) -> Any:
    """The ENTER rows that stand directly behind their LEAVE."""
    op, position, ordinal = (_numpy(array) for array in (batch.op, batch.position, batch.ordinal))
    same = (position[1:] == position[:-1]) & (ordinal[1:] == ordinal[:-1])
    return np.nonzero(same & (op[1:] == Op.ENTER) & (op[:-1] == Op.LEAVE))[0] + 1


def _found(refusals: Sequence[Refusal], batches: Iterable[Batch]) -> Iterator[tuple[Batch, list[Fault]]]:
    """The batches that hold refused changes, with the faults."""
    wanted: dict[Name, dict[tuple[str, str], list[tuple[int, int]]]] = {}
    for r in refusals:
        faults = wanted.setdefault((r["schema"], r["table"]), {})
        faults.setdefault((r["code"], r["reason"]), []).append((r["position"], r["ordinal"]))
    for batch in batches:
        mine = wanted.get((batch.table.schema, batch.table.name))
        if mine is None:
            continue
        at = _identities(_numpy(batch.position), _numpy(batch.ordinal))
        found = []
        for (code, reason), changes in mine.items():
            these = np.array(changes, np.int64)
            found.append(Fault(np.isin(at, _identities(these[:, 0], these[:, 1])), code, reason))
        if any(fault.rows.any() for fault in found):
            yield batch, found


def _identities(position: Any, ordinal: Any) -> Any:
    pairs = np.empty(len(position), np.dtype([("position", np.int64), ("ordinal", np.int64)]))
    pairs["position"], pairs["ordinal"] = position, ordinal
    return pairs


def _numpy(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)
