"""Compiled conversions of dates, times of day and timestamps."""

from __future__ import annotations

import numba
import numpy as np

from penstock.sources.postgres.values import TEXT, samples

_FIRST_YEAR = -290307
_END_YEAR = 294247


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
        if kind[i] != TEXT:
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
        days = _days(year, month, day)
        if not -2147483648 <= days <= 2147483647:
            bad[i] = True
            wrong += 1
            continue
        out[i] = days
    return wrong


@numba.njit(cache=True, nogil=True)
def parse_time(b, kind, offset, length, out, bad):  # type: ignore[no-untyped-def]
    """Microseconds of the day; 24:00:00 is bad, as Arrow's time has no such moment."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = 0
        if kind[i] != TEXT:
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
    """Microseconds since 1970; infinities and years past 294246, whose end 64 bits do not reach, are bad.

    A zoned text ends in +00: the session is pinned so.
    """
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = 0
        if kind[i] != TEXT:
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
        if p != e or not _FIRST_YEAR < year < _END_YEAR:
            bad[i] = True
            wrong += 1
            continue
        out[i] = _days(year, month, day) * 86400000000 + micros
    return wrong


def warm() -> None:
    """Loads or compiles every kernel for the arrays that the decoder uses."""
    b, kind, offset, length, bad = samples()
    parse_date(b, kind, offset, length, np.zeros(0, np.int32), bad)
    parse_time(b, kind, offset, length, np.zeros(0, np.int64), bad)
    parse_timestamp(b, kind, offset, length, True, np.zeros(0, np.int64), bad)
