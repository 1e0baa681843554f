"""Dates and times as JSON text and back, compiled, for every value that 64 bits of microseconds can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.formats.kernels import compiled
from penstock.formats.kernels.json_text import put_null

MOMENT_WIDTH = 36
"""Room for the longest date and time with its quotes."""
DATE, TIME, TIMESTAMP, INSTANT = 0, 1, 2, 3
"""What a number means: days, microseconds of a day, microseconds of a wall clock, microseconds in UTC."""
_DAY = 86_400_000_000


@compiled
def put_number(out: Any, at: Any, value: Any, width: Any) -> Any:
    """Writes a number of at least `width` digits and returns where it ends."""
    size, left = 0, value
    while size < width or left > 0:
        left //= 10
        size += 1
    for place in range(size - 1, -1, -1):
        out[at + place] = 48 + value % 10
        value //= 10
    return at + size


@compiled
def moments(values: Any, valid: Any, kind: Any, ends: Any, out: Any) -> None:
    """Writes dates and times in ISO 8601 in quotes; years past 9999 with a plus, years before 0 with a minus."""
    put = 0
    for row in range(len(valid)):
        if not valid[row]:
            put = put_null(out, put)
        else:
            out[put] = 34
            put += 1
            days, rest = values[row], np.int64(0)
            if kind != DATE:
                days = values[row] // _DAY
                rest = values[row] - days * _DAY
            if kind != TIME:
                put = _put_date(out, put, days)
            elif days != 0:
                rest = values[row]
            if kind >= TIMESTAMP:
                out[put] = 84
                put += 1
            if kind != DATE:
                put = _put_time(out, put, rest)
            if kind == INSTANT:
                out[put] = 90
                put += 1
            out[put] = 34
            put += 1
        ends[row + 1] = put


@compiled
def _put_date(out: Any, at: Any, days: Any) -> Any:
    # Howard Hinnant's civil_from_days: the proleptic Gregorian calendar for any number of days.
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_part = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_part + 2) // 5 + 1
    month = month_part + 3 if month_part < 10 else month_part - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    if year < 0 or year > 9999:
        out[at] = 45 if year < 0 else 43
        at += 1
    at = put_number(out, at, abs(year), 4)
    out[at] = 45
    at = put_number(out, at + 1, month, 2)
    out[at] = 45
    return put_number(out, at + 1, day, 2)


@compiled
def _put_time(out: Any, at: Any, rest: Any) -> Any:
    at = put_number(out, at, rest // 3_600_000_000, 2)
    out[at] = 58
    at = put_number(out, at + 1, rest // 60_000_000 % 60, 2)
    out[at] = 58
    at = put_number(out, at + 1, rest // 1_000_000 % 60, 2)
    out[at] = 46
    return put_number(out, at + 1, rest % 1_000_000, 6)


@compiled
def parse_moments(starts: Any, data: Any, valid: Any, kind: Any, out: Any) -> Any:
    """Reads what `moments` wrote, without quotes; the first row that is something else, or -1."""
    for row in range(len(valid)):
        out[row] = 0
        if not valid[row]:
            continue
        at, end = starts[row], starts[row + 1]
        days = np.int64(0)
        if kind != TIME:
            days, at = _read_date(data, at, end)
        if kind == DATE:
            out[row] = days
        else:
            if kind >= TIMESTAMP and at >= 0:
                at = at + 1 if at < end and data[at] == 84 else -1
            micros, at = _read_time(data, at, end)
            if kind == INSTANT and at >= 0:
                at = at + 1 if at < end and data[at] == 90 else -1
            out[row] = days * _DAY + micros
        if at != end:
            return row
    return -1


@compiled
def _read_number(data: Any, at: Any, end: Any, width: Any) -> Any:
    """A number of `width` digits, of any number of digits when it is 0, and where it ends; -1 when there is none."""
    value, begin = np.int64(0), at
    while at >= 0 and at < end and 48 <= data[at] <= 57 and (width == 0 or at - begin < width):
        value = value * 10 + (data[at] - 48)
        at += 1
    if at < 0 or at == begin or (width > 0 and at - begin != width):
        return np.int64(0), -1
    return value, at


@compiled
def _read_date(data: Any, at: Any, end: Any) -> Any:
    sign = 1
    if at < end and (data[at] == 45 or data[at] == 43):
        sign = -1 if data[at] == 45 else 1
        at += 1
    year, at = _read_number(data, at, end, 0)
    month, at = _read_number(data, at + 1 if 0 <= at < end and data[at] == 45 else -1, end, 2)
    day, at = _read_number(data, at + 1 if 0 <= at < end and data[at] == 45 else -1, end, 2)
    year *= sign
    # The reverse of `_put_date`.
    year -= 1 if month <= 2 else 0
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468, at


@compiled
def _read_time(data: Any, at: Any, end: Any) -> Any:
    hour, at = _read_number(data, at, end, 2)
    minute, at = _read_number(data, at + 1 if 0 <= at < end and data[at] == 58 else -1, end, 2)
    second, at = _read_number(data, at + 1 if 0 <= at < end and data[at] == 58 else -1, end, 2)
    micro, at = _read_number(data, at + 1 if 0 <= at < end and data[at] == 46 else -1, end, 6)
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro, at
