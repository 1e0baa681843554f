"""Eight bytes copied or looked at in one go: single bytes took three to five times as long for texts of 20 to 200 bytes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def put_word(typing: Any, out: Any, at: Any, value: Any) -> Any:
    """Writes eight bytes from `at` on, the lowest bits first; nobody checks that they are there but the caller."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, given[0]).data
        place = builder.bitcast(cgutils.pointer_add(builder, target, given[1]), ir.IntType(64).as_pointer())
        store = builder.store(given[2] if sys.byteorder == "little" else builder.bswap(given[2]), place)
        store.align = 1
        return context.get_dummy_value()

    return types.void(out, types.int64, types.uint64), generate


def _big(bits: int, arrow: Any) -> Any:
    """An intrinsic that reads a big-endian number of so many bits."""

    def read(typing: Any, b: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            source = context.make_array(signature.args[0])(context, builder, given[0]).data
            at = builder.bitcast(cgutils.pointer_add(builder, source, given[1]), ir.IntType(bits).as_pointer())
            value = builder.load(at)
            value.align = 1
            return builder.bswap(value)

        return arrow(b, types.int64), generate

    read.__name__ = f"big{bits}"
    read.__doc__ = f"The big-endian number in the {bits // 8} bytes from `place` on, which nobody checks but the caller."
    return intrinsic(read)


big16 = _big(16, types.int16)
big32 = _big(32, types.int32)
big64 = _big(64, types.int64)


@intrinsic  # type: ignore[untyped-decorator]
def word(typing: Any, b: Any, place: Any) -> Any:
    """The eight bytes from `place` on, the first in the lowest bits; nobody checks that they are there but the caller."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, given[0]).data
        at = builder.bitcast(cgutils.pointer_add(builder, source, given[1]), ir.IntType(64).as_pointer())
        value = builder.load(at)
        value.align = 1
        return value if sys.byteorder == "little" else builder.bswap(value)

    return types.uint64(b, types.int64), generate


@njit(cache=True, inline="always")
def copy_word(out, at, b, place):  # type: ignore[no-untyped-def]
    """Copies b[place : place + 8] to out[at : at + 8]; nobody checks that they are there but the caller."""
    put_word(out, at, word(b, place))


@intrinsic  # type: ignore[untyped-decorator]
def marks(typing: Any, b: Any, place: Any, one: Any, other: Any) -> Any:
    """Which of the 64 bytes from `place` on are one or the other, the first in the lowest bit; all must be there."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        wide = ir.VectorType(ir.IntType(8), 64)
        source = context.make_array(signature.args[0])(context, builder, given[0]).data
        found = builder.load(builder.bitcast(cgutils.pointer_add(builder, source, given[1]), wide.as_pointer()))
        found.align = 1
        lanes = ir.VectorType(ir.IntType(32), 64)
        undefined, first = ir.Constant(wide, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        equal = []
        for sought in given[2:]:
            single = builder.insert_element(undefined, sought, first)
            all_alike = builder.shuffle_vector(single, undefined, ir.Constant(lanes, [0] * 64))
            equal.append(builder.icmp_unsigned("==", found, all_alike))
        bits = builder.bitcast(builder.or_(*equal), ir.IntType(64))
        return bits if sys.byteorder == "little" else builder.bitreverse(bits)

    return types.uint64(b, types.int64, types.uint8, types.uint8), generate


@intrinsic  # type: ignore[untyped-decorator]
def first_bit(typing: Any, bits: Any) -> Any:
    """Which bit, from the lowest on, is the first that is set; one is."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def first_byte(typing: Any, marks: Any) -> Any:
    """Which byte of a word, from the lowest on, is the first with a bit set; the word is not zero."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        zeros = builder.cttz(given[0], ir.Constant(ir.IntType(1), 1))
        return builder.lshr(zeros, ir.Constant(ir.IntType(64), 3))

    return types.int64(types.uint64), generate


@njit(cache=True, inline="always")
def own(value, count):  # type: ignore[no-untyped-def]
    """The first bytes of a word, and zeros for the others; all of it when they are eight or more."""
    return value if count >= 8 else value & ((np.uint64(1) << np.uint64(8 * count)) - np.uint64(1))
