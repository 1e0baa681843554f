"""Compiled conversions from the server's binary forms to Arrow's memory, one column of a batch at a time.

Every kernel gets the bytes, and per row the byte and length of the value, -1 where it is NULL; whoever found these has made sure
that they lie within the bytes. It returns how many values do not have the form, which the server never sends.
"""

from __future__ import annotations

import numba
import numpy as np

from penstock.sources.postgres.values.words import big16, big32, big64, copy_word, own, put_word, word

_HIGHEST = np.uint64(0x8080808080808080)


@numba.njit(cache=True, nogil=True)
def small_ints(b, offset, length, out):  # type: ignore[no-untyped-def]
    """Numbers of 16 bits."""
    wrong = 0
    for i in range(offset.shape[0]):
        if length[i] == 2:
            out[i] = big16(b, offset[i])
        else:
            out[i] = 0
            wrong += length[i] >= 0
    return wrong


@numba.njit(cache=True, nogil=True)
def ints(b, offset, length, out):  # type: ignore[no-untyped-def]
    """Numbers of 32 bits, whatever they mean."""
    wrong = 0
    for i in range(offset.shape[0]):
        if length[i] == 4:
            out[i] = big32(b, offset[i])
        else:
            out[i] = 0
            wrong += length[i] >= 0
    return wrong


@numba.njit(cache=True, nogil=True)
def big_ints(b, offset, length, out):  # type: ignore[no-untyped-def]
    """Numbers of 64 bits, whatever they mean."""
    wrong = 0
    for i in range(offset.shape[0]):
        if length[i] == 8:
            out[i] = big64(b, offset[i])
        else:
            out[i] = 0
            wrong += length[i] >= 0
    return wrong


@numba.njit(cache=True, nogil=True)
def truths(b, offset, length, out):  # type: ignore[no-untyped-def]
    """Truth values, as the bits of an array that is zero."""
    wrong = 0
    for i in range(offset.shape[0]):
        if length[i] == 1 and b[offset[i]] <= 1:
            out[i >> 3] |= b[offset[i]] << (i & 7)
        else:
            wrong += length[i] >= 0
    return wrong


@numba.njit(cache=True, nogil=True)
def total(length, skip):  # type: ignore[no-untyped-def]
    """Bytes of all values but the first `skip` of each; -1 when one has fewer."""
    found = np.int64(0)
    for i in range(length.shape[0]):
        if length[i] >= 0:
            if length[i] < skip:
                return np.int64(-1)
            found += length[i] - skip
    return found


@numba.njit(cache=True, nogil=True)
def gather(b, offset, length, skip, out, offsets):  # type: ignore[no-untyped-def]
    """Copies the values, but the first `skip` bytes of each, one behind the other; whether they may hold more than ASCII."""
    q = np.int64(0)
    seen = np.uint64(0)
    end = b.shape[0] - 8
    room = out.shape[0] - 8
    for i in range(offset.shape[0]):
        offsets[i] = q
        n = np.int64(length[i]) - skip
        if n > 0:
            o = offset[i] + skip
            if o + n <= end and q + n <= room:
                # The last word may take up to seven bytes too many, which the next value overwrites.
                for x in range(0, n, 8):
                    seen |= own(word(b, o + x), n - x)
                    copy_word(out, q + x, b, o + x)
            else:
                for x in range(n):
                    seen |= np.uint64(b[o + x])
                    out[q + x] = b[o + x]
            q += n
    offsets[offset.shape[0]] = q
    return seen & _HIGHEST != 0


@numba.njit(cache=True, inline="always")
def _hex(four):  # type: ignore[no-untyped-def]
    """The eight digits of four bytes, in order from the lowest bits on."""
    v = (four | (four << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    v = (v | (v << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    low = np.uint64(0x000F000F000F000F)
    digit = ((v >> np.uint64(4)) & low) | ((v & low) << np.uint64(8))
    letter = ((digit + np.uint64(0x0606060606060606)) >> np.uint64(4)) & np.uint64(0x0101010101010101)
    return digit + np.uint64(0x3030303030303030) + letter * np.uint64(39)


@numba.njit(cache=True, nogil=True)
def uuids(b, offset, length, out, offsets):  # type: ignore[no-untyped-def]
    """The texts of uuids, 36 bytes each."""
    q = np.int64(0)
    wrong = 0
    half, two, dash = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF), np.uint64(45)
    for i in range(offset.shape[0]):
        offsets[i] = q
        if length[i] != 16:
            wrong += length[i] >= 0
            continue
        low, high = word(b, offset[i]), word(b, offset[i] + 8)
        mid, last = _hex(low >> np.uint64(32)), _hex(high & half)
        put_word(out, q, _hex(low & half))
        ends = (mid >> np.uint64(32)) & two
        put_word(out, q + 8, dash | ((mid & half) << np.uint64(8)) | (dash << np.uint64(40)) | (ends << np.uint64(48)))
        put_word(
            out,
            q + 16,
            (mid >> np.uint64(48)) | (dash << np.uint64(16)) | ((last & half) << np.uint64(24)) | (dash << np.uint64(56)),
        )
        put_word(out, q + 24, last >> np.uint64(32))
        put_word(out, q + 28, _hex(high >> np.uint64(32)))
        q += 36
    offsets[offset.shape[0]] = q
    return wrong


@numba.njit(cache=True, inline="always")
def _times(low, high, factor):  # type: ignore[no-untyped-def]
    """The 128-bit number times a small one."""
    mask = np.uint64(0xFFFFFFFF)
    bottom = (low & mask) * factor
    top = (low >> np.uint64(32)) * factor + (bottom >> np.uint64(32))
    return (top << np.uint64(32)) | (bottom & mask), high * factor + (top >> np.uint64(32))


@numba.njit(cache=True, nogil=True)
def decimals(b, offset, length, scale, out, bad):  # type: ignore[no-untyped-def]
    """Fixed-point numbers of at most 38 digits, `scale` behind the point, as two words each; NaN and infinities are bad.

    The server has groups of four decimal digits, the first of which is worth 10000 to the power of `weight`.
    """
    wrong = 0
    tens = np.array([1, 10, 100, 1000], np.int64)
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i, 0] = 0
        out[i, 1] = 0
        if length[i] < 0:
            continue
        o = offset[i]
        groups = np.int64(big16(b, o)) if length[i] >= 8 else np.int64(-1)
        if groups < 0 or length[i] != 8 + 2 * groups:
            wrong += 1
            continue
        sign = np.int64(big16(b, o + 4)) & 0xFFFF
        if sign != 0 and sign != 0x4000:
            bad[i] = True
            continue
        # Digits that stand in the groups up to the last one, and what they lack, or have too much, of the scale.
        shift = (np.int64(big16(b, o + 2)) - groups + 1) * 4 + scale
        whole = groups - 1 if shift < 0 else groups
        if groups <= 4:
            value = np.int64(0)
            for x in range(whole):
                value = value * 10000 + big16(b, o + 8 + 2 * x)
            if shift < 0 and groups > 0:
                if shift < -3:
                    wrong += 1
                    continue
                value = value * tens[4 + shift] + big16(b, o + 8 + 2 * whole) // tens[-shift]
                shift = np.int64(0)
            if value < 100000000000000 and shift <= 4:
                for _ in range(shift):
                    value *= 10
                if sign:
                    value = -value
                out[i, 0] = value
                out[i, 1] = value >> 63
                continue
            low, high = np.uint64(value), np.uint64(0)
        else:
            low, high = np.uint64(0), np.uint64(0)
            for x in range(whole):
                low, high = _times(low, high, np.uint64(10000))
                group = np.uint64(big16(b, o + 8 + 2 * x))
                low += group
                high += np.uint64(1) if low < group else np.uint64(0)
            if shift < 0:
                if shift < -3:
                    wrong += 1
                    continue
                low, high = _times(low, high, np.uint64(tens[4 + shift]))
                group = np.uint64(big16(b, o + 8 + 2 * whole) // tens[-shift])
                low += group
                high += np.uint64(1) if low < group else np.uint64(0)
                shift = np.int64(0)
        for _ in range(shift if low or high else 0):
            low, high = _times(low, high, np.uint64(10))
        if sign:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        out[i, 0] = np.int64(low)
        out[i, 1] = np.int64(high)
    return wrong


def warm() -> None:
    """Loads or compiles every kernel for the arrays that the decoder uses."""
    b = np.zeros(8, np.uint8)
    # Rows of a matrix: numba knows such a row as contiguous.
    offset, length = np.zeros((1, 0), np.int64)[0], np.zeros((1, 0), np.int32)[0]
    small_ints(b, offset, length, np.zeros(0, np.int16))
    ints(b, offset, length, np.zeros(0, np.int32))
    big_ints(b, offset, length, np.zeros(0, np.int64))
    truths(b, offset, length, np.zeros(0, np.uint8))
    total(length, 0)
    gather(b, offset, length, 0, np.zeros(8, np.uint8), np.zeros(1, np.int32))
    uuids(b, offset, length, np.zeros(8, np.uint8), np.zeros(1, np.int32))
    decimals(b, offset, length, 0, np.zeros((0, 2), np.int64), np.zeros(0, np.bool_))
