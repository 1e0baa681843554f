"""Compiled conversions from the wire's text to Arrow's memory, one column of a batch at a time.

Every kernel gets the journal's bytes, and per row the kind (`t` has a value), byte and length of the text. It fills `out` and
sets `bad` where the text is no value of the target type; it returns how many were bad. A bad cell keeps its text elsewhere.
"""

from __future__ import annotations

import numba
import numpy as np

_TEXT = 116


@numba.njit(cache=True, nogil=True)
def gather(b, kind, offset, length, out, offsets):  # type: ignore[no-untyped-def]
    """Copies the texts one behind the other."""
    q = 0
    for i in range(offset.shape[0]):
        offsets[i] = q
        if kind[i] == _TEXT:
            o = offset[i]
            n = length[i]
            if n > 48:
                out[q : q + n] = b[o : o + n]
            else:
                for x in range(n):
                    out[q + x] = b[o + x]
            q += n
    offsets[offset.shape[0]] = q


@numba.njit(cache=True, nogil=True)
def total_text(kind, length):  # type: ignore[no-untyped-def]
    """Bytes of all texts."""
    total = np.int64(0)
    for i in range(kind.shape[0]):
        if kind[i] == _TEXT:
            total += length[i]
    return total


@numba.njit(cache=True, inline="always")
def _hex(c):  # type: ignore[no-untyped-def]
    if 48 <= c <= 57:
        return np.int64(c) - 48
    if 97 <= c <= 102:
        return np.int64(c) - 87
    if 65 <= c <= 70:
        return np.int64(c) - 55
    return np.int64(-1)


@numba.njit(cache=True, nogil=True)
def parse_bytea(b, kind, offset, length, out, offsets, bad):  # type: ignore[no-untyped-def]
    """`\\x` and hex digits to bytes."""
    q = 0
    wrong = 0
    for i in range(offset.shape[0]):
        offsets[i] = q
        bad[i] = False
        if kind[i] != _TEXT:
            continue
        o = offset[i]
        n = length[i]
        if n < 2 or n % 2 or b[o] != 92 or b[o + 1] != 120:
            bad[i] = True
            wrong += 1
            continue
        start = q
        for x in range(o + 2, o + n, 2):
            high = _hex(b[x])
            low = _hex(b[x + 1])
            if high < 0 or low < 0:
                bad[i] = True
                break
            out[q] = (high << 4) | low
            q += 1
        if bad[i]:
            wrong += 1
            q = start
    offsets[offset.shape[0]] = q
    return wrong


@numba.njit(cache=True, nogil=True)
def parse_bool(b, kind, offset, length, out, bad):  # type: ignore[no-untyped-def]
    """`t` or `f`."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = False
        if kind[i] == _TEXT:
            c = b[offset[i]]
            out[i] = c == 116
            if length[i] != 1 or (c != 116 and c != 102):
                bad[i] = True
                wrong += 1
    return wrong


@numba.njit(cache=True, nogil=True)
def parse_int(b, kind, offset, length, out, bad):  # type: ignore[no-untyped-def]
    """Decimal digits with an optional sign; at most 19 of them, as every integer type of the server has."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = 0
        if kind[i] != _TEXT:
            continue
        o = offset[i]
        e = o + length[i]
        negative = o < e and b[o] == 45
        if negative:
            o += 1
        v = np.int64(0)
        fine = 0 < e - o <= 19
        for x in range(o, e):
            d = np.int64(b[x]) - 48
            if d < 0 or d > 9:
                fine = False
                break
            v = v * 10 - d
        if fine:
            out[i] = v if negative else -v
        else:
            bad[i] = True
            wrong += 1
    return wrong


@numba.njit(cache=True, nogil=True)
def parse_decimal(b, kind, offset, length, precision, scale, out, bad):  # type: ignore[no-untyped-def]
    """Fixed-point text to 128-bit two's complement, as two words; NaN and infinities are bad."""
    wrong = 0
    low32 = np.uint64(0xFFFFFFFF)
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i, 0] = 0
        out[i, 1] = 0
        if kind[i] != _TEXT:
            continue
        o = offset[i]
        e = o + length[i]
        negative = o < e and b[o] == 45
        if negative:
            o += 1
        fraction = np.int64(-1)
        digits = np.int64(0)
        low = np.uint64(0)
        high = np.uint64(0)
        fine = o < e
        for x in range(o, e):
            c = b[x]
            if c == 46:
                fine = fine and fraction < 0
                fraction = np.int64(0)
                continue
            d = np.int64(c) - 48
            if d < 0 or d > 9:
                fine = False
                break
            if fraction >= 0:
                fraction += 1
            if digits or d:
                digits += 1
            if digits <= 18:
                low = low * np.uint64(10) + np.uint64(d)
            else:
                bottom = (low & low32) * np.uint64(10) + np.uint64(d)
                top = (low >> np.uint64(32)) * np.uint64(10) + (bottom >> np.uint64(32))
                low = (top << np.uint64(32)) | (bottom & low32)
                high = high * np.uint64(10) + (top >> np.uint64(32))
        fraction = max(fraction, np.int64(0))
        while fine and fraction < scale:
            digits += 1
            bottom = (low & low32) * np.uint64(10)
            top = (low >> np.uint64(32)) * np.uint64(10) + (bottom >> np.uint64(32))
            low = (top << np.uint64(32)) | (bottom & low32)
            high = high * np.uint64(10) + (top >> np.uint64(32))
            fraction += 1
        if not fine or fraction > scale or (digits > precision and (low or high)):
            bad[i] = True
            wrong += 1
            continue
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        out[i, 0] = np.int64(low)
        out[i, 1] = np.int64(high)
    return wrong


@numba.njit(cache=True, inline="always")
def _two(b, p):  # type: ignore[no-untyped-def]
    tens = np.int64(b[p]) - 48
    ones = np.int64(b[p + 1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return np.int64(-1)
    return tens * 10 + ones


@numba.njit(cache=True)
def _date(b, o, e):  # type: ignore[no-untyped-def]
    """Days since 1970 of the `YYYY-MM-DD` at o, and the byte after it; -1 as byte when it is none. BC is the caller's."""
    year = np.int64(0)
    p = o
    while p < e and 48 <= b[p] <= 57 and p - o < 7:
        year = year * 10 + np.int64(b[p]) - 48
        p += 1
    if p - o < 4 or p + 6 > e or b[p] != 45 or b[p + 3] != 45:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(-1)
    month = _two(b, p + 1)
    day = _two(b, p + 4)
    if month < 1 or month > 12 or day < 1 or day > 31:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(-1)
    return year, month, day, p + 6


@numba.njit(cache=True, inline="always")
def _days(year, month, day):  # type: ignore[no-untyped-def]
    y = year - (1 if month <= 2 else 0)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@numba.njit(cache=True)
def _clock(b, p, e):  # type: ignore[no-untyped-def]
    """Microseconds of the `hh:mm:ss[.ffffff]` at p, and the byte after it; -1 as byte when it is none."""
    if p + 8 > e or b[p + 2] != 58 or b[p + 5] != 58:
        return np.int64(0), np.int64(-1)
    hour = _two(b, p)
    minute = _two(b, p + 3)
    second = _two(b, p + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return np.int64(0), np.int64(-1)
    p += 8
    micros = np.int64(0)
    if p < e and b[p] == 46:
        p += 1
        digits = 0
        while p < e and 48 <= b[p] <= 57 and digits < 6:
            micros = micros * 10 + np.int64(b[p]) - 48
            digits += 1
            p += 1
        while digits < 6:
            micros *= 10
            digits += 1
    return (hour * 3600 + minute * 60 + second) * 1000000 + micros, p


@numba.njit(cache=True, inline="always")
def _is_bc(b, p, e):  # type: ignore[no-untyped-def]
    return e - p == 3 and b[p] == 32 and b[p + 1] == 66 and b[p + 2] == 67


@numba.njit(cache=True, nogil=True)
def parse_date(b, kind, offset, length, out, bad):  # type: ignore[no-untyped-def]
    """Days since 1970; infinities are bad."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = 0
        if kind[i] != _TEXT:
            continue
        e = offset[i] + length[i]
        year, month, day, p = _date(b, offset[i], e)
        if p >= 0 and _is_bc(b, p, e):
            year = 1 - year
            p = e
        if p != e:
            bad[i] = True
            wrong += 1
            continue
        out[i] = _days(year, month, day)
    return wrong


@numba.njit(cache=True, nogil=True)
def parse_time(b, kind, offset, length, out, bad):  # type: ignore[no-untyped-def]
    """Microseconds of the day; 24:00:00 is bad, as Arrow's time has no such moment."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = 0
        if kind[i] != _TEXT:
            continue
        e = offset[i] + length[i]
        micros, p = _clock(b, offset[i], e)
        if p != e:
            bad[i] = True
            wrong += 1
            continue
        out[i] = micros
    return wrong


@numba.njit(cache=True, nogil=True)
def parse_timestamp(b, kind, offset, length, zoned, out, bad):  # type: ignore[no-untyped-def]
    """Microseconds since 1970; infinities and years past 294246 are bad. A zoned text ends in +00: the session is pinned so."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = 0
        if kind[i] != _TEXT:
            continue
        e = offset[i] + length[i]
        year, month, day, p = _date(b, offset[i], e)
        micros = np.int64(0)
        if p >= 0 and p < e and b[p] == 32:
            micros, p = _clock(b, p + 1, e)
        else:
            p = np.int64(-1)
        if p >= 0 and zoned:
            p = p + 3 if p + 3 <= e and b[p] == 43 and b[p + 1] == 48 and b[p + 2] == 48 else np.int64(-1)
        if p >= 0 and _is_bc(b, p, e):
            year = 1 - year
            p = e
        if p != e or year > 294246:
            bad[i] = True
            wrong += 1
            continue
        out[i] = _days(year, month, day) * 86400000000 + micros
    return wrong


def warm() -> None:
    """Loads or compiles every kernel for the arrays that the decoder uses."""
    b = np.zeros(8, np.uint8)
    # Rows of a matrix, as the decoder passes them: numba knows such a row as contiguous.
    kind, offset, length = (np.zeros((1, 0), t)[0] for t in (np.uint8, np.int64, np.int64))
    bad = np.zeros(0, np.bool_)
    offsets = np.zeros(1, np.int32)
    total_text(kind, length)
    gather(b, kind, offset, length, np.zeros(0, np.uint8), offsets)
    parse_bytea(b, kind, offset, length, np.zeros(0, np.uint8), offsets, bad)
    parse_bool(b, kind, offset, length, np.zeros(0, np.bool_), bad)
    for width in (np.int16, np.int32, np.int64, np.uint32):
        parse_int(b, kind, offset, length, np.zeros(0, width), bad)
    parse_decimal(b, kind, offset, length, 38, 0, np.zeros((0, 2), np.int64), bad)
    parse_date(b, kind, offset, length, np.zeros(0, np.int32), bad)
    parse_time(b, kind, offset, length, np.zeros(0, np.int64), bad)
    parse_timestamp(b, kind, offset, length, True, np.zeros(0, np.int64), bad)
