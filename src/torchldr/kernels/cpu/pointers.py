"""Plain pointers and complex lanes for compiled loops; imports numba.

An array that is handed from function to function brings its shape and a count of references along, which in
short loops costs more than the arithmetic. These are bare pointers, which `load`, `store` and `get` of `fft`
take as well. Nothing is checked, and whoever takes a pointer keeps the array.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from .fft import LANES, _arithmetic, compiled, load, place, start, store

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
def put(typingctx: Any, p: Any, index: Any, value: Any) -> Any:
    """p[index] = value."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], place(builder, *arguments[:2], context.get_data_type(p.dtype)))
        return context.get_dummy_value()

    return types.void(p, types.intp, p.dtype), generate


@intrinsic
def number(typingctx: Any, p: Any, value: Any) -> Any:
    """A float64 in the precision that p points to."""

    def generate(context, builder, signature, arguments):
        return context.cast(builder, arguments[1], types.float64, signature.return_type)

    return p.dtype(p, types.float64), generate


# Complex lanes are pairs of lanes; in memory four real parts are followed by their imaginary parts.


@compiled
def get8(p, index):
    """p[index : index + 4] + i p[index + 4 : index + 8]."""
    return load(p, index), load(p, index + LANES)


@compiled
def put8(p, index, value):
    """The inverse of `get8`."""
    store(p, index, value[0])
    store(p, index + LANES, value[1])


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
