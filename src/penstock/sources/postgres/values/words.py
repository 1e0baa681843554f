"""Eight bytes copied or looked at in one go: single bytes took three to five times as long for texts of 20 to 200 bytes."""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def copy_word(typing: Any, out: Any, at: Any, b: Any, place: Any) -> Any:
    """Copies b[place : place + 8] to out[at : at + 8]; nobody checks that they are there but the caller."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = ir.IntType(64).as_pointer()
        target = context.make_array(signature.args[0])(context, builder, given[0]).data
        source = context.make_array(signature.args[2])(context, builder, given[2]).data
        value = builder.load(builder.bitcast(cgutils.pointer_add(builder, source, given[3]), word))
        value.align = 1
        store = builder.store(value, builder.bitcast(cgutils.pointer_add(builder, target, given[1]), word))
        store.align = 1
        return context.get_dummy_value()

    return types.void(out, types.int64, b, types.int64), generate


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


@intrinsic  # type: ignore[untyped-decorator]
def first_byte(typing: Any, marks: Any) -> Any:
    """Which byte of a word, from the lowest on, is the first with a bit set; the word is not zero."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        zeros = builder.cttz(given[0], ir.Constant(ir.IntType(1), 1))
        return builder.lshr(zeros, ir.Constant(ir.IntType(64), 3))

    return types.int64(types.uint64), generate
