"""Values as JSON text, compiled: strings, bytes, decimals and positions, straight from and into a column's buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.formats.kernels import compiled

_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8).copy()
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8).copy()

NULL_TEXT = np.frombuffer(b"null", dtype=np.uint8).copy()


@compiled
def put_null(out: Any, at: Any) -> Any:
    """Writes null and returns where it ends."""
    for i in range(4):
        out[at + i] = NULL_TEXT[i]
    return at + 4


@compiled
def escaped_sizes(starts: Any, data: Any, valid: Any, ends: Any) -> None:
    """How many bytes each text takes as a JSON string, summed up from 0."""
    total = 0
    for row in range(len(valid)):
        if not valid[row]:
            total += 4
        else:
            total += 2 + starts[row + 1] - starts[row]
            for at in range(starts[row], starts[row + 1]):
                byte = data[at]
                if byte == 34 or byte == 92:
                    total += 1
                elif byte < 32:
                    total += 1 if byte == 10 or byte == 13 or byte == 9 or byte == 8 or byte == 12 else 5
        ends[row + 1] = total


@compiled
def escape(starts: Any, data: Any, valid: Any, out: Any) -> None:
    """Writes each text as a JSON string, null where there is none."""
    put = 0
    for row in range(len(valid)):
        if not valid[row]:
            put = put_null(out, put)
            continue
        out[put] = 34
        put += 1
        for at in range(starts[row], starts[row + 1]):
            byte = data[at]
            if byte >= 32 and byte != 34 and byte != 92:
                out[put] = byte
                put += 1
                continue
            out[put] = 92
            short = _short_escape(byte)
            out[put + 1] = short
            put += 2
            if short == 117:
                out[put] = 48
                out[put + 1] = 48
                out[put + 2] = _HEX[byte >> 4]
                out[put + 3] = _HEX[byte & 15]
                put += 4
        out[put] = 34
        put += 1


@compiled
def _short_escape(byte: Any) -> Any:
    if byte == 34 or byte == 92:
        return byte
    if byte == 10:
        return np.uint8(110)
    if byte == 13:
        return np.uint8(114)
    if byte == 9:
        return np.uint8(116)
    if byte == 8:
        return np.uint8(98)
    if byte == 12:
        return np.uint8(102)
    return np.uint8(117)


@compiled
def base64_sizes(starts: Any, data: Any, valid: Any, ends: Any) -> None:
    """How many bytes each value takes as base64 in quotes, summed up from 0."""
    total = 0
    for row in range(len(valid)):
        total += 2 + (starts[row + 1] - starts[row] + 2) // 3 * 4 if valid[row] else 4
        ends[row + 1] = total


@compiled
def base64(starts: Any, data: Any, valid: Any, out: Any) -> None:
    """Writes each value as base64 in quotes, null where there is none."""
    put = 0
    for row in range(len(valid)):
        if not valid[row]:
            put = put_null(out, put)
            continue
        out[put] = 34
        put += 1
        at, end = starts[row], starts[row + 1]
        while at < end:
            left = end - at
            second = data[at + 1] if left > 1 else np.uint8(0)
            third = data[at + 2] if left > 2 else np.uint8(0)
            out[put] = _BASE64[data[at] >> 2]
            out[put + 1] = _BASE64[((data[at] & 3) << 4) | (second >> 4)]
            out[put + 2] = _BASE64[((second & 15) << 2) | (third >> 6)] if left > 1 else 61
            out[put + 3] = _BASE64[third & 63] if left > 2 else 61
            put += 4
            at += 3
        out[put] = 34
        put += 1


@compiled
def decimals(limbs: Any, valid: Any, scale: Any, ends: Any, out: Any) -> None:
    """Writes decimals, each a row of 32-bit limbs in two's complement, least first, as plain digits in quotes."""
    width = limbs.shape[1]
    number = np.empty(width, np.uint64)
    digits = np.empty(width * 10 + 10, np.uint8)
    put = 0
    for row in range(len(valid)):
        if not valid[row]:
            put = put_null(out, put)
        else:
            negative = limbs[row, width - 1] >> np.uint32(31) == 1
            _magnitude(limbs[row], negative, number)
            count = _digits(number, digits)
            while count < scale + 1:
                digits[count] = 48
                count += 1
            out[put] = 34
            put += 1
            if negative:
                out[put] = 45
                put += 1
            for place in range(count - 1, -1, -1):
                out[put] = digits[place]
                put += 1
                if place == scale and scale > 0:
                    out[put] = 46
                    put += 1
            out[put] = 34
            put += 1
        ends[row + 1] = put


@compiled
def _magnitude(limbs: Any, negative: Any, number: Any) -> None:
    carry = np.uint64(1 if negative else 0)
    for i in range(len(limbs)):
        limb = np.uint64(limbs[i])
        if negative:
            limb = (limb ^ np.uint64(0xFFFFFFFF)) + carry
            carry = limb >> np.uint64(32)
            limb &= np.uint64(0xFFFFFFFF)
        number[i] = limb


@compiled
def _digits(number: Any, digits: Any) -> Any:
    """The decimal digits of a number in 32-bit limbs, least first; at least one; destroys the number."""
    count = 0
    while True:
        rest, some = np.uint64(0), False
        for i in range(len(number) - 1, -1, -1):
            here = (rest << np.uint64(32)) | number[i]
            number[i] = here // np.uint64(1_000_000_000)
            rest = here % np.uint64(1_000_000_000)
            some |= number[i] != 0
        for _ in range(9):
            digits[count] = np.uint8(48) + np.uint8(rest % np.uint64(10))
            rest //= np.uint64(10)
            count += 1
        if not some:
            break
    while count > 1 and digits[count - 1] == 48:
        count -= 1
    return count


@compiled
def positions(values: Any, ends: Any, out: Any) -> None:
    """Writes positions as two hexadecimal numbers with a slash between, in quotes."""
    put = 0
    for row in range(len(values)):
        out[put] = 34
        put = _put_hex(out, put + 1, np.uint64(values[row]) >> np.uint64(32))
        out[put] = 47
        put = _put_hex(out, put + 1, np.uint64(values[row]) & np.uint64(0xFFFFFFFF))
        out[put] = 34
        put += 1
        ends[row + 1] = put


@compiled
def _put_hex(out: Any, at: Any, value: Any) -> Any:
    size, left = 1, value >> np.uint64(4)
    while left > 0:
        left >>= np.uint64(4)
        size += 1
    for place in range(size - 1, -1, -1):
        digit = np.int64(value & np.uint64(15))
        out[at + place] = 48 + digit if digit < 10 else 55 + digit
        value >>= np.uint64(4)
    return at + size
