"""Plain pointers and complex lanes for compiled loops; imports numba.

An array that is handed from function to function brings its shape and a count of references along, which in
short loops costs more than the arithmetic. These are the lanes of `fft` behind a bare pointer.
Nothing is checked, and whoever takes a pointer keeps the array.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from .fft import LANES, Lanes, _arithmetic, load_lanes, place, start, store_lanes

over = _arithmetic("fdiv")


@intrinsic
def pointer(typingctx: Any, array: Any) -> Any:
    """Where a contiguous array starts."""

    def generate(context, builder, signature, arguments):
        return start(context, builder, signature.args[0], arguments[0])

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def shifted(typingctx: Any, p: Any, index: Any) -> Any:
    """The pointer `index` numbers on."""

    def generate(context, builder, signature, arguments):
        return place(builder, *arguments, context.get_data_type(p.dtype))

    return p(p, types.intp), generate


@intrinsic
def get(typingctx: Any, p: Any, index: Any) -> Any:
    """p[index]."""

    def generate(context, builder, signature, arguments):
        scalar = context.get_data_type(p.dtype)
        return builder.load(place(builder, *arguments, scalar), typ=scalar)

    return p.dtype(p, types.intp), generate


@intrinsic
def put(typingctx: Any, p: Any, index: Any, value: Any) -> Any:
    """p[index] = value."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], place(builder, *arguments[:2], context.get_data_type(p.dtype)))
        return context.get_dummy_value()

    return types.void(p, types.intp, p.dtype), generate


@intrinsic
def get4(typingctx: Any, p: Any, index: Any) -> Any:
    """p[index : index + 4]."""

    def generate(context, builder, signature, arguments):
        return load_lanes(context, builder, *arguments, p.dtype)

    return Lanes(p.dtype)(p, types.intp), generate


@intrinsic
def put4(typingctx: Any, p: Any, index: Any, value: Any) -> Any:
    """p[index : index + 4] = value."""

    def generate(context, builder, signature, arguments):
        store_lanes(context, builder, *arguments[:2], p.dtype, arguments[2])
        return context.get_dummy_value()

    return types.void(p, types.intp, value), generate


@intrinsic
def number(typingctx: Any, p: Any, value: Any) -> Any:
    """A float64 in the precision that p points to."""

    def generate(context, builder, signature, arguments):
        return context.cast(builder, arguments[1], types.float64, signature.return_type)

    return p.dtype(p, types.float64), generate


# Complex lanes are pairs of lanes; in memory four real parts are followed by their imaginary parts.


@intrinsic
def get8(typingctx: Any, p: Any, index: Any) -> Any:
    """p[index : index + 4] + i p[index + 4 : index + 8]."""
    pair = types.UniTuple(Lanes(p.dtype), 2)

    def generate(context, builder, signature, arguments):
        begin, index = arguments
        after = builder.add(index, index.type(LANES))
        parts = [load_lanes(context, builder, begin, i, p.dtype) for i in (index, after)]
        return context.make_tuple(builder, signature.return_type, parts)

    return pair(p, types.intp), generate


@intrinsic
def put8(typingctx: Any, p: Any, index: Any, value: Any) -> Any:
    """The inverse of `get8`."""

    def generate(context, builder, signature, arguments):
        begin, index, lanes = arguments
        after = builder.add(index, index.type(LANES))
        for part, i in enumerate((index, after)):
            store_lanes(context, builder, begin, i, p.dtype, builder.extract_value(lanes, part))
        return context.get_dummy_value()

    return types.void(p, types.intp, value), generate


def _complex(formula: Any) -> Any:
    @intrinsic
    def operation(typingctx: Any, a: Any, b: Any) -> Any:
        def generate(context, builder, signature, arguments):
            parts = [builder.extract_value(x, part) for x in arguments for part in (0, 1)]
            flags = {"flags": ("contract",)}
            plus, minus, times = (
                lambda x, y, name=name: getattr(builder, name)(x, y, **flags)
                for name in ("fadd", "fsub", "fmul")
            )
            return context.make_tuple(builder, signature.return_type, formula(*parts, plus, minus, times))

        return a(a, b), generate

    return operation


mul = _complex(
    lambda a, b, c, d, plus, minus, times: (minus(times(a, c), times(b, d)), plus(times(a, d), times(b, c)))
)
mul_conj = _complex(
    lambda a, b, c, d, plus, minus, times: (plus(times(a, c), times(b, d)), minus(times(b, c), times(a, d)))
)
add = _complex(lambda a, b, c, d, plus, minus, times: (plus(a, c), plus(b, d)))
