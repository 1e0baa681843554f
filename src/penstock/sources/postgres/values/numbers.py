"""Compiled conversions of whole and fixed-point numbers."""

from __future__ import annotations

import numba
import numpy as np

from penstock.sources.postgres.values import TEXT, samples
from penstock.sources.postgres.values.words import word

_MOST_TENTH = np.int64(-922337203685477580)
_FEW = 19
"""Characters that make a number which is sure to fit 64 bits."""
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINE = np.uint64(0x7676767676767676)
_HIGHEST = np.uint64(0x8080808080808080)
_PAIRS = np.uint64(0x000000FF000000FF)
_POWERS = np.array([10**i for i in range(19)], np.int64)


@numba.njit(cache=True, inline="always")
def eight_digits(b, o, e):  # type: ignore[no-untyped-def]
    """The number of the one to eight digits in b[o:e], all at once, and whether they are digits; eight bytes end at `e`.

    One after the other they took twice as long.
    """
    foreign = (np.uint64(1) << np.uint64(8 * (8 - (e - o)))) - np.uint64(1) if e - o < 8 else np.uint64(0)
    d = (word(b, e - 8) ^ _ZEROS) & ~foreign
    fine = ((d + _ABOVE_NINE) | d) & _HIGHEST == 0
    d = d * np.uint64(10) + (d >> np.uint64(8))
    left = (d & _PAIRS) * np.uint64(0x000F424000000064)
    right = ((d >> np.uint64(16)) & _PAIRS) * np.uint64(0x0000271000000001)
    return np.int64((left + right) >> np.uint64(32)), fine


@numba.njit(cache=True, nogil=True)
def parse_int(b, kind, offset, length, least, most, out, bad):  # type: ignore[no-untyped-def]
    """Decimal digits with an optional sign, from `least` to `most`."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = 0
        if kind[i] != TEXT:
            continue
        o = offset[i]
        e = o + length[i]
        negative = o < e and b[o] == 45
        if negative:
            o += 1
        v = np.int64(0)
        fine = 0 < e - o <= 19
        if fine and e - o <= 8 and e >= 8:
            v, fine = eight_digits(b, o, e)
            fine = fine and (negative or v <= most)
            if negative:
                v = -v
        elif e - o <= 18:
            # So many digits fit whatever they are: nothing need be asked of each but whether it is one.
            others = np.uint8(0)
            for x in range(o, e):
                digit = np.uint8(b[x] - np.uint8(48))
                others |= np.uint8(digit > 9)
                v = v * 10 + np.int64(digit)
            fine = fine and others == 0 and (negative or v <= most)
            if negative:
                v = -v
        elif fine:
            # Counted downwards, because the least number has no positive counterpart.
            for x in range(o, e):
                d = np.int64(b[x]) - 48
                if d < 0 or d > 9 or v < _MOST_TENTH or (v == _MOST_TENTH and d > 8):
                    fine = False
                    break
                v = v * 10 - d
            if not negative:
                fine = fine and v >= -most
                v = -v
        if fine and v >= least:
            out[i] = v
        else:
            bad[i] = True
            wrong += 1
    return wrong


@numba.njit(cache=True, nogil=True)
def parse_natural(b, kind, offset, length, out, bad):  # type: ignore[no-untyped-def]
    """Decimal digits up to 64 bits without a sign."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = 0
        if kind[i] != TEXT:
            continue
        v = np.uint64(0)
        fine = 0 < length[i] <= 20
        for x in range(offset[i], offset[i] + length[i] if fine else offset[i]):
            d = np.int64(b[x]) - 48
            if d < 0 or d > 9 or v > np.uint64(1844674407370955161) or (v == np.uint64(1844674407370955161) and d > 5):
                fine = False
                break
            v = v * np.uint64(10) + np.uint64(d)
        if fine:
            out[i] = v
        else:
            bad[i] = True
            wrong += 1
    return wrong


@numba.njit(cache=True)
def _short_decimal(b, o, e, precision, scale):  # type: ignore[no-untyped-def]
    """The digits of b[o:e] as a whole number of that scale, without a sign; -1 when it needs a closer look."""
    v = np.int64(0)
    others = np.uint8(0)
    point = np.int64(-1)
    for x in range(o, e):
        d = np.uint8(b[x] - np.uint8(48))
        if d > 9:
            # Minus two is a point.
            others |= np.uint8(d != 254 or point >= 0)
            point = np.int64(x)
        else:
            v = v * 10 + np.int64(d)
    pointed = point >= 0
    fraction = e - point - 1 if pointed else np.int64(0)
    digits = e - o - (1 if pointed else 0)
    if others != 0 or digits < 1 or fraction > scale or digits + scale - fraction > 18:
        return np.int64(-1)
    v *= _POWERS[scale - fraction]
    return v if precision > 18 or v < _POWERS[precision] else np.int64(-1)


@numba.njit(cache=True, nogil=True)
def parse_decimal(b, kind, offset, length, precision, scale, money, out, bad):  # type: ignore[no-untyped-def]
    """Fixed-point text to 128-bit two's complement, as two words; NaN and infinities are bad.

    `money` passes over the dollar sign and the commas that a money has.
    """
    wrong = 0
    low32 = np.uint64(0xFFFFFFFF)
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i, 0] = 0
        out[i, 1] = 0
        if kind[i] != TEXT:
            continue
        o = offset[i]
        e = o + length[i]
        negative = o < e and b[o] == 45
        if negative:
            o += 1
        if not money and e - o <= _FEW:
            short = _short_decimal(b, o, e, precision, scale)
            if short >= 0:
                out[i, 0] = -short if negative else short
                out[i, 1] = -1 if negative and short > 0 else 0
                continue
        fraction = np.int64(-1)
        digits = np.int64(0)
        low = np.uint64(0)
        high = np.uint64(0)
        fine = False
        for x in range(o, e):
            c = b[x]
            if money and (c == 36 or c == 44):
                continue
            if c == 46:
                if fraction >= 0:
                    fine = False
                    break
                fraction = np.int64(0)
                continue
            d = np.int64(c) - 48
            if d < 0 or d > 9:
                fine = False
                break
            fine = True
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
            if digits:
                digits += 1
            bottom = (low & low32) * np.uint64(10)
            top = (low >> np.uint64(32)) * np.uint64(10) + (bottom >> np.uint64(32))
            low = (top << np.uint64(32)) | (bottom & low32)
            high = high * np.uint64(10) + (top >> np.uint64(32))
            fraction += 1
        if not fine or fraction > scale or digits > precision:
            bad[i] = True
            wrong += 1
            continue
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        out[i, 0] = np.int64(low)
        out[i, 1] = np.int64(high)
    return wrong


def warm() -> None:
    """Loads or compiles every kernel for the arrays that the decoder uses."""
    b, kind, offset, length, bad = samples()
    for width in (np.int16, np.int32, np.int64, np.uint32):
        parse_int(b, kind, offset, length, 0, 0, np.zeros(0, width), bad)
    parse_natural(b, kind, offset, length, np.zeros(0, np.uint64), bad)
    parse_decimal(b, kind, offset, length, 38, 0, False, np.zeros((0, 2), np.int64), bad)
