"""Hostile bytes for everything that reads what a server sent: an error of ours or a sound result, never anything else.

Run in a process of its own, `python -m tests.sources.postgres.fuzz JOURNAL TARGETS SEED SECONDS PROGRESS`, with
NUMBA_BOUNDSCHECK=1, which makes a kernel's read or write beyond an array an IndexError instead of somebody else's memory.
Round n of a target is always the same for one seed and journal. PROGRESS names the round that is running.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch
from penstock.core.schema import Column
from penstock.errors import PenstockError
from penstock.journal.reader import JournalTail, SliceReader
from penstock.journal.record import Slice, SliceFlag
from penstock.journal.writer import JournalWriter
from penstock.sources.postgres import assembly, columns, copytext, decoder, walk
from penstock.sources.postgres.assembly import Assembly
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.decoder import PostgresDecoder
from penstock.sources.postgres.relation import RelationBook, parse_relation
from penstock.sources.postgres.typebook import TypeBook

LENGTHS = (0, 1, 3, 4, 5, 35, 36, 255, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
FLAGS = (
    SliceFlag.PIECE,
    SliceFlag.PIECE | SliceFlag.STREAMED,
    SliceFlag.PIECE | SliceFlag.STREAMED | SliceFlag.LAST_PIECE | SliceFlag.PARTLY_GONE,
)
OPS = b"IUDBCRTYOMSEcAwkdKNOtbnu"
TYPES = (
    *(pa.int16(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.binary(), pa.string(), pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", "UTC")),
    *(pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal128(10, 2), pa.decimal128(1, 0), pa.decimal128(19, 2)),
)
ALPHABET = b"0123456789-+.:, $eENaInfinityBC\\xtfT\0\xff\xc3\xa9ab"


class Mutated(SliceReader):
    """The journal with other bytes in place of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.instead: Sequence[bytes] = ()

    def read(self, slices: Sequence[Slice]) -> tuple[Any, list[int]]:
        """The bytes that stand in for these slices, which `appended_at` numbers; without a byte to spare at the end."""
        found = [self.instead[s.appended_at] for s in slices]
        starts = np.cumsum([0, *map(len, found)])[:-1].tolist()
        return np.frombuffer(b"".join(found), np.uint8).copy(), starts


def frames(data: bytes) -> list[int]:
    """Where the frames of sound bytes begin."""
    found, at = [], 0
    while at + 5 <= len(data):
        found.append(at)
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")
    return found


def mutate(r: random.Random, data: bytes) -> bytes:
    """Sound bytes with a few things wrong."""
    if r.random() < 0.3:
        return shortened(r, data)
    made = bytearray(data)
    for _ in range(r.choice((1, 1, 1, 2, 5))):
        at = r.choice(frames(data)) if r.random() < 0.6 else r.randrange(len(data))
        at = min(at + r.choice((0, 0, 1, 5, 30, 31, 35, 36, 38, 39, r.randrange(80))), max(0, len(made) - 1))
        choice = r.randrange(7)
        if choice == 0:
            made[at : at + 1] = bytes([r.randrange(256)])
        elif choice == 1:
            made[at : at + 1] = bytes([r.choice(OPS)])
        elif choice == 2:
            made[at : at + 4] = struct.pack(">I", r.choice(LENGTHS))
        elif choice == 3:
            old = int.from_bytes(made[at : at + 4].ljust(4, b"\0"), "big")
            made[at : at + 4] = struct.pack(">I", (old + r.randint(-8, 8)) & 0xFFFFFFFF)
        elif choice == 4:
            made[at : at + 2] = struct.pack(">H", r.choice((0, 1, 2, 3, 255, 0x7FFF, 0xFFFF)))
        elif choice == 5:
            del made[at : at + r.choice((1, 2, 4, r.randrange(1, 60)))]
        else:
            made[at:at] = r.randbytes(r.choice((1, 4, 30)))
    if r.random() < 0.3:
        del made[r.randrange(len(made) + 1) :]
    return bytes(made)


def shortened(r: random.Random, data: bytes) -> bytes:
    """Sound bytes whose last frame ends early and says so."""
    at = r.choice(frames(data))
    length = min(len(data) - at - 1, r.choice((r.randrange(4, 60), r.randrange(4, 400))))
    return data[: at + 1] + struct.pack(">I", length) + data[at + 5 : at + 1 + length]


def noise(r: random.Random) -> bytes:
    """Bytes that are nothing, or nothing within a sound frame."""
    body = r.randbytes(r.randrange(200))
    if r.random() < 0.3:
        return body
    message = bytes([r.choice(OPS)]) + body
    return b"d" + struct.pack(">I", 4 + 25 + len(message)) + b"w" + bytes(24) + message


def part(r: random.Random, data: bytes) -> bytes:
    """Some frames in a row: short enough that a mutation matters."""
    at = frames(data)
    first = r.randrange(len(at))
    last = min(first + r.choice((1, 2, 5, 30)), len(at) - 1)
    return data[at[first] : at[last] if last > first else len(data)] or data


def sound(batch: Batch) -> None:
    """What a reader of a batch relies on."""
    n = len(batch)
    for rows, odd in ((batch.rows, batch.odd), (batch.before, batch.before_odd)):
        if rows is not None:
            rows.validate(full=True)
            assert rows.num_rows == n
        for o in odd.values():
            o.texts.validate(full=True)
            assert len(o.rows) == len(o.texts) and all(0 <= row < n for row in o.rows.to_pylist())
    for array in (batch.op, batch.position, batch.ordinal, batch.xid, batch.committed_at, batch.image):
        array.validate(full=True)
        assert len(array) == n


class Targets:
    """Each method is one round of one target."""

    def __init__(self, directory: Path) -> None:
        self.journal = Mutated(directory)
        real = SliceReader(directory)
        tail = JournalTail(directory, None)
        self.slices = tail.read()
        self.data = [bytes(real.read([s])[0]) for s in self.slices]
        self.decoder = PostgresDecoder()

    def decoder_round(self, r: random.Random) -> None:
        """Slices with wrong bytes, wrong counts, wrong order."""
        chosen = [r.randrange(len(self.slices)) for _ in range(r.choice((1, 1, 2)))]
        data = [noise(r) if r.random() < 0.1 else mutate(r, part(r, self.data[i])) for i in chosen]
        group = [self._slice(r, self.slices[i], len(d), n) for n, (i, d) in enumerate(zip(chosen, data, strict=True))]
        self.journal.instead = data
        buckets = r.choice((1, 1, 2, 5))
        for batch in self.decoder.decode(self.journal, group, r.randrange(buckets), buckets, lambda t: True):
            sound(batch)

    def _slice(self, r: random.Random, s: Slice, size: int, number: int) -> Slice:
        changes = r.choice((0, 1, s.changes, s.changes, s.changes, 10_000))
        flags = s.flags ^ (r.choice(FLAGS) if r.random() < 0.4 else 0)
        known = r.choice((s.catalog, s.catalog, len(self.journal.catalog.entries)))
        return s._replace(start=0, end=size, changes=changes, flags=flags, catalog=known, appended_at=number)

    def relation_round(self, r: random.Random) -> None:
        """RELATION messages."""
        found = [d[at + 30 :] for d in self.data for at in frames(d) if d[at + 30 : at + 31] == b"R"]
        data = noise(r) if r.random() < 0.2 else mutate(r, r.choice(found)[: r.randrange(20, 400)])
        parse_relation(data)

    def copy_round(self, r: random.Random) -> None:
        """COPY's text, in frames."""
        width = r.randrange(0, 5)
        rows = [b"\t".join(cell(r) for _ in range(width)) + b"\n" for _ in range(r.randrange(1, 6))]
        data = b"".join(b"d" + struct.pack(">I", len(row) + 4) + row for row in rows)
        b = np.frombuffer(mutate(r, data) if r.random() < 0.7 else data, np.uint8).copy()
        lines = (max(1, width), len(b) // (5 + max(1, width)) + 1)
        kind, offset, length = np.zeros(lines, np.uint8), np.zeros(lines, np.int64), np.zeros(lines, np.int64)
        count, at, reason = copytext.split(b, 0, len(b), 0, width, kind, offset, length)
        assert 0 <= at <= len(b) and reason in (copytext.MORE, copytext.OTHER, copytext.BROKEN)
        for j in range(width):
            column = Column("c", r.choice(TYPES), r.choice(("", "money")))
            array, _ = columns.build(b, kind[j, :count], offset[j, :count], length[j, :count], column)
            array.validate(full=True)

    def value_round(self, r: random.Random) -> None:
        """Texts of every kind for every type."""
        texts = [cell(r) for _ in range(r.randrange(1, 20))]
        b = np.frombuffer(b"".join(texts) or b"x", np.uint8).copy()
        size = np.array([len(t) for t in texts], np.int64)
        kind = np.array([r.choice((116, 116, 116, 110, 117)) for _ in texts], np.uint8)
        column = Column("c", r.choice(TYPES), r.choice(("", "money")))
        array, odd = columns.build(b, kind, np.cumsum(size) - size, size, column)
        array.validate(full=True)
        nulls = int((kind != 116).sum()) + (len(odd.rows) if odd is not None else 0)
        assert array.null_count == nulls

    def assembly_round(self, r: random.Random) -> None:
        """What arrives at a socket, in gulps."""
        data = noise(r) if r.random() < 0.1 else mutate(r, b"".join(self.data[: r.choice((1, 3, 20))]))
        nobody = Control("host=/nowhere", "fuzz")
        assembly.SLICE_BYTES, assembly.BUFFER_BYTES, assembly.HUGE_BYTES = r.choice((200, 4 << 20)), 1 << 20, 100_000
        with tempfile.TemporaryDirectory() as directory:
            writer = JournalWriter(Path(directory))
            try:
                writer.begin(100)
                made = Assembly(writer, RelationBook(nobody, TypeBook(nobody, False), {}, {}, 0))
                while data:
                    room = made.room()
                    size = min(len(data), len(room), r.choice((1 << 20, 1000, 50)) if len(data) < 20_000 else 1 << 20)
                    room[:size], data = data[:size], data[size:]
                    made.arrived(size)
                    made.take()
                    made.publish(bare=True)
            finally:
                writer.close()


WORDS = (
    *(b"-9223372036854775808", b"18446744073709551615", b"340282366920938463463374607431768211456", b"2024-02-29 12:00:00.5+00"),
    *(b"5874897-12-31", b"0044-03-15 BC", b"9999999-12-31 00:00:00+00 BC", b"-$92,233,720,368,547,758.08", b"1e+308", b"t"),
    *(b"-Infinity", b"NaN", b"24:00:00", b"\\x00ff", b"\\N", b"infinity", b"0.00000000000000000000000000000000000001", b"1e400"),
    *(b"-1e-400", b"294247-01-11 00:00:00", b"290309-01-01 00:00:00 BC", "ü💧".encode(), b"a\\tb\\\\"),
)


def cell(r: random.Random) -> bytes:
    """A text that nearly is a value."""
    if r.random() < 0.5:
        return bytes(r.choices(ALPHABET, k=r.randrange(0, 45)))
    made = bytearray(r.choice(WORDS))
    for _ in range(r.choice((0, 0, 1, 2))):
        at = r.randrange(len(made) + 1)
        made[at : at + r.randrange(2)] = bytes([r.choice(ALPHABET)])
    return bytes(made)


def rounds(targets: Targets, name: str, seed: int, seconds: float) -> Iterator[tuple[int, Callable[[], None]]]:
    """Rounds until the time is over."""
    call = getattr(targets, f"{name}_round")
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        r = random.Random(f"{seed}/{name}/{number}")
        yield number, lambda r=r: call(r)  # type: ignore[misc]
        number += 1


def main() -> int:
    directory, names, seed, seconds, progress = sys.argv[1:]
    targets = Targets(Path(directory))
    # Compiled before the clock starts.
    decoder.warm()
    copytext.warm()
    walk.warm()
    file = os.open(progress, os.O_CREAT | os.O_WRONLY)
    for name in names.split(","):
        number = 0
        for number, run in rounds(targets, name, int(seed), float(seconds)):
            os.pwrite(file, f"{name} {number}".ljust(40).encode(), 0)
            try:
                run()
            except PenstockError:
                continue
        sys.stdout.write(f"{number + 1} rounds of {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
