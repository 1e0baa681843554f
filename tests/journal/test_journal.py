"""The journal: what was published is there for ever, what was not is never seen."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.schema import Column, TableSchema
from penstock.errors import JournalCorrupt, JournalLocked, JournalTrimmed, JournalUnwritable
from penstock.journal.catalog import Catalog, Entry
from penstock.journal.reader import JournalTail, SliceReader
from penstock.journal.record import HEADER_BYTES, Slice, SliceFlag
from penstock.journal.retention import journal_size, oldest_position, trim
from penstock.journal.segment import catalog_path, index_path, segment_numbers, segment_path
from penstock.journal.writer import JournalWriter

BEGIN = 100


def a_slice(place: tuple[int, int, int, int], position: int, **fields: int) -> Slice:
    segment, start, end, checksum = place
    return Slice(segment, start, end, position, position, 0, 0, 0, 0, checksum, 1, 1, 0, 0)._replace(**fields)


def an_entry(seq: int, version: int = 1) -> Entry:
    table = TableSchema("public", f"t{seq}", (Column("id", pa.int64(), "bigint"),), ("id",), version, str(seq))
    return Entry(seq, 1000 + seq, 1, 10 * seq, table, {"relation": [seq]})


def fill(directory: Path, count: int, *, segment_bytes: int = 1 << 20, size: int = 100) -> list[bytes]:
    """A journal with `count` transactions at positions 101, 102, …; returns their bytes."""
    writer = JournalWriter(directory, segment_bytes=segment_bytes)
    writer.begin(BEGIN)
    payloads = [bytes([i % 251]) * (size + i) for i in range(count)]
    for i, payload in enumerate(payloads):
        writer.publish([a_slice(writer.append(memoryview(payload)), BEGIN + 1 + i)], [], 0)
    writer.close()
    return payloads


def read_all(directory: Path, after: int | None = None) -> list[Slice]:
    tail = JournalTail(directory, after)
    found: list[Slice] = []
    while part := tail.read():
        found += part
    tail.close()
    return found


def test_what_was_published_is_read_back_byte_for_byte_across_segments(tmp_path: Path) -> None:
    payloads = fill(tmp_path, 40, segment_bytes=1000)
    assert len(segment_numbers(tmp_path)) > 3
    slices = read_all(tmp_path)
    data, starts = SliceReader(tmp_path).read(slices)
    assert bytes(data) == b"".join(payloads)
    assert [bytes(data[s : s + x.size]) for s, x in zip(starts, slices, strict=True)] == payloads


def test_a_tail_begins_behind_its_position(tmp_path: Path) -> None:
    fill(tmp_path, 40, segment_bytes=1000)
    assert [s.last for s in read_all(tmp_path, 125)] == list(range(126, 141))


def test_a_tail_sees_what_is_published_while_it_reads(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=300)
    writer.begin(BEGIN)
    tail = JournalTail(tmp_path, None)
    for position in range(101, 131):
        place = writer.append(memoryview(b"x" * 50))
        assert tail.read() == []
        writer.publish([a_slice(place, position)], [], 0)
        assert [s.last for s in tail.read()] == [position]
        assert tail.mark == position
    writer.close()


def test_unpublished_bytes_are_cut_off_at_the_next_start(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    writer = JournalWriter(tmp_path)
    writer.append(memoryview(b"half a transaction"))
    writer.close()
    again = JournalWriter(tmp_path)
    assert (again.end, again.mark, again.cut) == (103, 103, HEADER_BYTES + len(b"half a transaction"))
    again.publish([a_slice(again.append(memoryview(b"next")), 104)], [], 0)
    again.close()
    assert [s.last for s in read_all(tmp_path)] == [101, 102, 103, 104]


def test_zeros_laid_out_ahead_are_no_data_after_a_kill(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.begin(BEGIN)
    for position in (101, 102):
        writer.publish([a_slice(writer.append(memoryview(b"x" * 100)), position)], [], 0)
    killed = tmp_path / "killed"
    killed.mkdir()
    for path in (segment_path(tmp_path, 1), index_path(tmp_path, 1)):
        (killed / path.name).write_bytes(path.read_bytes())
    writer.close()
    assert segment_path(killed, 1).stat().st_size > segment_path(tmp_path, 1).stat().st_size
    again = JournalWriter(killed)
    assert (again.end, again.cut) == (102, 0)
    again.publish([a_slice(again.append(memoryview(b"next")), 103)], [], 0)
    again.close()
    assert [s.last for s in read_all(killed)] == [101, 102, 103]
    SliceReader(killed).read(read_all(killed))


def test_pieces_that_fill_whole_segments_are_cut_off_when_their_transaction_never_committed(tmp_path: Path) -> None:
    fill(tmp_path, 3, segment_bytes=1000)
    writer = JournalWriter(tmp_path, segment_bytes=1000)
    before = segment_numbers(tmp_path)
    for _ in range(10):
        writer.append(memoryview(b"p" * 700))
    writer.close()
    assert len(segment_numbers(tmp_path)) > len(before) + 3
    again = JournalWriter(tmp_path, segment_bytes=1000)
    assert again.cut > 7000 and journal_size(tmp_path) < 3000
    again.publish([a_slice(again.append(memoryview(b"next")), 104)], [], 0)
    again.close()
    assert [s.last for s in read_all(tmp_path)] == [101, 102, 103, 104]


def test_a_reader_that_stood_in_segments_of_a_lost_transaction_misses_nothing(tmp_path: Path) -> None:
    """Capture dies in a transaction that has filled segments; its successor writes on while the same reader follows."""
    writer = JournalWriter(tmp_path, segment_bytes=500)
    writer.begin(BEGIN)
    tail = JournalTail(tmp_path, BEGIN)
    writer.publish([a_slice(writer.append(memoryview(b"x" * 100)), 101)], [], 0)
    for _ in range(5):
        writer.append(memoryview(b"p" * 400))
    assert [s.last for s in tail.read()] == [101]
    assert tail.read() == []
    writer.close()
    again = JournalWriter(tmp_path, segment_bytes=500)
    for position in range(102, 130):
        again.publish([a_slice(again.append(memoryview(b"y" * 100)), position)], [], 0)
    again.close()
    found: list[Slice] = []
    while part := tail.read():
        found += part
    assert [s.last for s in found] == list(range(102, 130))


def test_a_journal_that_begins_after_the_position_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    with pytest.raises(JournalTrimmed):
        JournalTail(tmp_path, BEGIN - 1).read()


def test_a_note_larger_than_one_read_is_read(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.begin(BEGIN)
    place = writer.append(memoryview(b"x"))
    writer.publish([a_slice(place, 101 + i) for i in range(100)], [], 0)
    writer.close()
    assert len(JournalTail(tmp_path, BEGIN).read(limit=64)) == 100


def test_a_streamed_slice_is_as_good_as_an_appended_one(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.begin(BEGIN)
    writer.open_slice()
    for part in (b"abc", b"", b"defg"):
        writer.extend(memoryview(part))
    writer.publish([a_slice(writer.close_slice(), 101)], [], 0)
    writer.close()
    assert bytes(SliceReader(tmp_path).read(read_all(tmp_path))[0]) == b"abcdefg"
    reopened = JournalWriter(tmp_path)
    assert (reopened.cut, reopened.end) == (0, 101)
    reopened.close()


@pytest.mark.slow
def test_cut_at_every_byte_of_the_last_group_the_journal_holds_the_rest(tmp_path: Path) -> None:
    """A torn tail: whatever the length the machine left the segment at, everything published before is whole."""
    origin = tmp_path / "origin"
    fill(origin, 3, size=20)
    segment, index = segment_path(origin, 1).read_bytes(), index_path(origin, 1).read_bytes()
    whole = read_all(origin)
    last_group = whole[-1].start - HEADER_BYTES
    for length in range(last_group, len(segment) + 1):
        copy = tmp_path / f"cut-{length}"
        copy.mkdir()
        segment_path(copy, 1).write_bytes(segment[:length])
        # After a crash of the machine the index may hold less than the segment, never more.
        index_path(copy, 1).write_bytes(index[: len(index) // 2])
        writer = JournalWriter(copy)
        expected = 103 if length == len(segment) else 102
        assert writer.end == expected, length
        writer.publish([a_slice(writer.append(memoryview(b"new")), 200)], [], 0)
        writer.close()
        slices = read_all(copy)
        assert [s.last for s in slices] == [*range(101, expected + 1), 200]
        SliceReader(copy).read(slices)


@pytest.mark.slow
def test_cut_at_every_byte_the_index_is_mended_from_the_segment(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    fill(origin, 3, size=20)
    segment, index = segment_path(origin, 1).read_bytes(), index_path(origin, 1).read_bytes()
    for length in range(len(index) + 1):
        copy = tmp_path / f"cut-{length}"
        copy.mkdir()
        segment_path(copy, 1).write_bytes(segment)
        index_path(copy, 1).write_bytes(index[:length])
        JournalWriter(copy).close()
        assert index_path(copy, 1).read_bytes() == index, length


def test_a_lost_index_is_rebuilt_to_the_byte(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    before = index_path(tmp_path, 1).read_bytes()
    index_path(tmp_path, 1).unlink()
    JournalWriter(tmp_path).close()
    assert index_path(tmp_path, 1).read_bytes() == before


def test_a_lost_or_torn_catalogue_is_rebuilt_from_the_segments(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=800)
    writer.begin(BEGIN)
    for seq in range(1, 8):
        place = writer.append(memoryview(b"x" * 200))
        writer.publish([a_slice(place, BEGIN + seq, flags=int(SliceFlag.SCHEMA))], [an_entry(seq)], 0)
    writer.close()
    whole = catalog_path(tmp_path).read_bytes()
    for damage in (None, whole[:-3], b"", b"\0" * len(whole)):
        if damage is None:
            catalog_path(tmp_path).unlink()
        else:
            catalog_path(tmp_path).write_bytes(damage)
        reopened = JournalWriter(tmp_path, segment_bytes=800)
        assert reopened.catalog == 7
        assert reopened.entries[1007] == an_entry(7)
        reopened.close()
        assert catalog_path(tmp_path).read_bytes() == whole


def test_a_table_version_is_in_force_by_its_number(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.begin(BEGIN)
    first, second = an_entry(1), an_entry(2)
    newer = Entry(3, first.relation, 1, 500, TableSchema("public", "t1", first.table.columns, ("id",), 2, "1"), {})
    writer.publish([], [first, second, newer], 101)
    writer.close()
    catalog = Catalog(catalog_path(tmp_path))
    assert catalog.in_force(2) == {first.relation: first, second.relation: second}
    assert catalog.in_force(3) == {first.relation: newer, second.relation: second}
    assert catalog.in_force(1) == {first.relation: first}
    assert catalog.inside(1, 400, 501, 2) == [newer]


@pytest.mark.parametrize("victim", ["first", "last"])
def test_a_wrong_checksum_is_an_error_and_never_data(tmp_path: Path, victim: str) -> None:
    fill(tmp_path, 3)
    slices = read_all(tmp_path)
    chosen = slices[0] if victim == "first" else slices[-1]
    with segment_path(tmp_path, 1).open("r+b") as file:
        file.seek(chosen.start + 5)
        file.write(b"\xff")
    with pytest.raises(JournalCorrupt, match="segment 1 is damaged"):
        SliceReader(tmp_path).read(slices)


def test_a_segment_shorter_than_its_index_is_reported(tmp_path: Path) -> None:
    """Durable bytes that are gone are not a torn tail: the journal must not pretend."""
    fill(tmp_path, 3)
    os.truncate(segment_path(tmp_path, 1), read_all(tmp_path)[1].end)
    with pytest.raises(JournalCorrupt, match="shorter than its index"):
        JournalWriter(tmp_path)


def test_a_missing_segment_in_the_middle_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, 40, segment_bytes=1000)
    segment_path(tmp_path, 2).unlink()
    with pytest.raises(JournalCorrupt, match="segment 2 is missing"):
        JournalWriter(tmp_path)


def test_a_full_disk_is_an_error_of_ours_and_what_was_published_stays(tmp_path: Path) -> None:
    """The file size limit stands for the disk: the kernel refuses in the middle of a write, as a full one does."""
    program = textwrap.dedent(
        """
        import resource, sys
        from pathlib import Path
        from penstock.errors import JournalUnwritable
        from penstock.journal.record import Slice
        from penstock.journal.writer import JournalWriter
        writer = JournalWriter(Path(sys.argv[1]))
        writer.begin(100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        for position in range(101, 200):
            try:
                segment, start, end, checksum = writer.append(memoryview(b"x" * 700))
                record = Slice(segment, start, end, position, position, 0, 0, 0, 0, checksum, 1, 1, 0, 0)
                writer.publish([record], [], 0)
            except JournalUnwritable as error:
                print(position - 1, error.code)
                break
        """
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    published, code = done.stdout.split()
    assert code == "journal_unwritable"
    assert [s.last for s in read_all(tmp_path)] == list(range(101, int(published) + 1))
    writer = JournalWriter(tmp_path)
    assert writer.end == int(published)
    writer.publish([a_slice(writer.append(memoryview(b"room again")), int(published) + 1)], [], 0)
    writer.close()
    SliceReader(tmp_path).read(read_all(tmp_path))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 5000


def test_a_directory_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnwritable):
        JournalWriter(tmp_path / "file" / "journal")


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    first = JournalWriter(tmp_path)
    with pytest.raises(JournalLocked):
        JournalWriter(tmp_path, patience=0)
    first.close()
    JournalWriter(tmp_path).close()


def test_retention_removes_what_everybody_has_passed_and_is_old(tmp_path: Path) -> None:
    fill(tmp_path, 40, segment_bytes=1000)
    all_segments = segment_numbers(tmp_path)
    assert trim(tmp_path, 140, retention=3600, max_bytes=1 << 30) == []
    assert trim(tmp_path, 0, retention=0, max_bytes=0) == []
    removed = trim(tmp_path, 120, retention=0, max_bytes=1 << 30, now=2e10)
    assert removed
    assert [s.last for s in read_all(tmp_path, 120)] == list(range(121, 141))
    trim(tmp_path, 140, retention=3600, max_bytes=0)
    assert segment_numbers(tmp_path) == all_segments[-1:]
    with pytest.raises(JournalTrimmed):
        JournalTail(tmp_path, 105).read()
    assert JournalWriter(tmp_path).end == 140
    assert journal_size(tmp_path) < 3000


@pytest.mark.parametrize("after", [None, 130, 105])
def test_a_segment_that_goes_while_a_tail_looks_for_its_beginning_is_trimmed_like_any_other(
    tmp_path: Path, after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 40, segment_bytes=1000)
    opened = os.open

    def trimmed(*given: Any, **named: Any) -> int:
        # Between its listing and its opening.
        monkeypatch.setattr(os, "open", opened)
        assert trim(tmp_path, 120, retention=0, max_bytes=0, now=2e10)
        return opened(*given, **named)

    monkeypatch.setattr(os, "open", trimmed)
    if after == 105:
        with pytest.raises(JournalTrimmed):
            read_all(tmp_path, after)
    else:
        found = [s.last for s in read_all(tmp_path, after)]
        assert found[-1] == 140 and found == list(range(found[0], 141)) and (found[0] == 131 if after else found[0] > 105)


def test_retention_looks_at_every_slice_of_a_note(tmp_path: Path) -> None:
    """Two transactions in an old segment become visible by one note in the next: passing the first frees nothing."""
    writer = JournalWriter(tmp_path, segment_bytes=500)
    writer.begin(BEGIN)
    places = [writer.append(memoryview(b"a" * 200)), writer.append(memoryview(b"b" * 300)), writer.append(memoryview(b"c" * 50))]
    writer.publish([a_slice(p, 101 + i) for i, p in enumerate(places)], [], 0)
    writer.close()
    assert [p[0] for p in places] == [1, 1, 2]
    assert trim(tmp_path, 101, retention=0, max_bytes=0, now=2e10) == []
    assert trim(tmp_path, 102, retention=0, max_bytes=0, now=2e10) == [1]


def test_retention_keeps_a_transaction_that_reaches_over_segments(tmp_path: Path) -> None:
    """Its pieces lie in segments that begin before its commit; they go only when the commit is passed."""
    writer = JournalWriter(tmp_path, segment_bytes=500)
    writer.begin(BEGIN)
    pieces = [writer.append(memoryview(b"p" * 400)) for _ in range(6)]
    writer.publish([a_slice(p, 101, flags=int(SliceFlag.PIECE), ordinal=i) for i, p in enumerate(pieces)], [], 0)
    for position in (102, 103):
        writer.publish([a_slice(writer.append(memoryview(b"n" * 600)), position)], [], 0)
    writer.close()
    assert trim(tmp_path, 100, retention=0, max_bytes=0, now=2e10) == []
    SliceReader(tmp_path).read(read_all(tmp_path))
    assert trim(tmp_path, 101, retention=0, max_bytes=0, now=2e10)
    assert [s.last for s in read_all(tmp_path, 101)] == [102, 103]


def test_a_tail_passes_many_segments_without_notes_in_small_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A big transaction's segments hold only headers until its commit: whoever comes later passes them all at once."""
    writer = JournalWriter(tmp_path, segment_bytes=300)
    writer.begin(BEGIN)
    writer.publish([a_slice(writer.append(memoryview(b"first")), 101)], [], 0)
    pieces = [writer.append(memoryview(b"p" * 400)) for _ in range(40)]
    writer.publish([a_slice(p, 102, flags=int(SliceFlag.PIECE), ordinal=i) for i, p in enumerate(pieces)], [], 0)
    writer.close()
    read, sizes = os.pread, []

    def counting(file: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return read(file, size, at)

    monkeypatch.setattr("penstock.journal.reader.os.pread", counting)
    assert len(read_all(tmp_path)) == 41
    assert len(sizes) > 40 and max(sizes) == min(sizes)


def test_a_newcomer_begins_after_what_reaches_back_over_removed_segments(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, segment_bytes=500)
    writer.begin(BEGIN)
    places = [writer.append(memoryview(b"a" * 600)), writer.append(memoryview(b"b" * 600))]
    writer.publish([a_slice(p, 101 + i) for i, p in enumerate(places)], [], 0)
    writer.publish([a_slice(writer.append(memoryview(b"c" * 600)), 103)], [], 0)
    writer.close()
    assert oldest_position(tmp_path) == BEGIN
    assert trim(tmp_path, 101, retention=0, max_bytes=0, now=2e10) == [1]
    slices = read_all(tmp_path, oldest_position(tmp_path))
    SliceReader(tmp_path).read(slices)
    assert [s.last for s in slices] == [102, 103]
