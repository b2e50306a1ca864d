"""A compiled FFT of one vector, and the ring of polynomials that it serves; imports numba.

The ring: real polynomials v of degree below 2N modulo X^{2N} + 1 are complex ones of degree below N modulo
X^N - i, with coefficients v_j + i v_{N+j}. Weighing by w^j, w = exp(i pi / 2N), makes that cyclic, so one
complex FFT of length N takes v to its spectrum, and an array of 2N reals in natural order is already the
complex vector, real parts first. Products of spectra are products modulo X^{2N} + 1: linear convolutions
where degrees stay below 2N, skew-circulant matrices of size 2N elsewhere; conjugate spectra transpose them.

The FFT is Stockham's, radix 4, in natural order both ways, between two arrays. The compiler's own vectorizer
gives up on its many streams, so four numbers at a time are a type here, `Lanes`, with the few operations that
a butterfly takes. They become whatever vectors the processor has, in float32 or float64. At N = 1024 on one
ARM core that makes 16 GFLOP/s, four times the plain loops and twice torch's FFT of a large batch.

`load`, `store` and `get` take an index and look at neither bounds nor strides: last axes must be contiguous.
"""

# mypy: ignore-errors
from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from .jit import jit

LANES = 4
SMALLEST = 16  # N: the first stage moves four by four

# Every sum is of a few terms in a fixed order; contraction to fused multiply-adds is all that is wanted.
compiled: Any = jit(fastmath={"contract"}, error_model="numpy")


class Lanes(types.Type):
    """Four neighbouring numbers."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        scalar = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(scalar, LANES))


def place(builder: Any, pointer: Any, index: Any, scalar: Any) -> Any:
    """An opaque pointer to the number `index` of those of LLVM's type `scalar` that begin at `pointer`."""
    where = builder.gep(pointer, [index], source_etype=scalar)
    where.type = ir.PointerType()  # a typed one, as Numba still makes them, would refuse lanes
    return where


def load_lanes(context: Any, builder: Any, pointer: Any, index: Any, dtype: Any) -> Any:
    """Four numbers of Numba's type `dtype`."""
    scalar = context.get_data_type(dtype)
    where, size = place(builder, pointer, index, scalar), context.get_abi_sizeof(scalar)
    return builder.load(where, align=size, typ=ir.VectorType(scalar, LANES))


def store_lanes(context: Any, builder: Any, pointer: Any, index: Any, dtype: Any, value: Any) -> None:
    scalar = context.get_data_type(dtype)
    builder.store(value, place(builder, pointer, index, scalar), align=context.get_abi_sizeof(scalar))


def start(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Where an array begins, or a pointer points to."""
    return (
        value if isinstance(kind, types.CPointer) else context.make_array(kind)(context, builder, value).data
    )


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index : index + 4], unchecked."""

    def generate(context, builder, signature, arguments):
        begin = start(context, builder, signature.args[0], arguments[0])
        return load_lanes(context, builder, begin, arguments[1], array.dtype)

    return Lanes(array.dtype)(array, types.intp), generate


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index : index + 4] = value, unchecked."""

    def generate(context, builder, signature, arguments):
        begin = start(context, builder, signature.args[0], arguments[0])
        store_lanes(context, builder, begin, arguments[1], array.dtype, arguments[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def get(typingctx: Any, array: Any, index: Any) -> Any:
    """array[index], unchecked."""

    def generate(context, builder, signature, arguments):
        begin, scalar = start(context, builder, array, arguments[0]), context.get_data_type(array.dtype)
        return builder.load(place(builder, begin, arguments[1], scalar), typ=scalar)

    return array.dtype(array, types.intp), generate


@intrinsic
def splat(typingctx: Any, scalar: Any) -> Any:
    """The same number four times."""

    def generate(context, builder, signature, arguments):
        vector, index = ir.VectorType(arguments[0].type, LANES), ir.IntType(32)
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, arguments[0], index(0))
        return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(index, LANES), [0] * LANES))

    return Lanes(scalar)(scalar), generate


def _arithmetic(name: str) -> Any:
    @intrinsic
    def operation(typingctx: Any, a: Any, b: Any) -> Any:
        def generate(context, builder, signature, arguments):
            return getattr(builder, name)(*arguments, flags=("contract",))

        return a(a, b), generate

    return operation


def _shuffle(order: list[int]) -> Any:
    @intrinsic
    def operation(typingctx: Any, a: Any, b: Any) -> Any:
        def generate(context, builder, signature, arguments):
            mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), order)
            return builder.shuffle_vector(*arguments, mask)

        return a(a, b), generate

    return operation


plus, minus, times = _arithmetic("fadd"), _arithmetic("fsub"), _arithmetic("fmul")
_low, _high = _shuffle([0, 4, 1, 5]), _shuffle([2, 6, 3, 7])


@compiled
def _transposed(a, b, c, d):
    e, f, g, h = _low(a, c), _high(a, c), _low(b, d), _high(b, d)
    return _low(e, g), _high(e, g), _low(f, h), _high(f, h)


@compiled
def _real(ar, ai, br, bi):
    return minus(times(ar, br), times(ai, bi))


@compiled
def _imag(ar, ai, br, bi):
    return plus(times(ar, bi), times(ai, br))


@compiled
def gather(x, at, step, part):
    """Four complex lanes: real parts at `at`, `at + step`, .., and imaginary parts `part` further on."""
    i = at + part
    return (
        (load(x, at), load(x, at + step), load(x, at + 2 * step), load(x, at + 3 * step)),
        (load(x, i), load(x, i + step), load(x, i + 2 * step), load(x, i + 3 * step)),
    )


@compiled
def butterfly(real, imag):
    """The FFT of four complex numbers, in four lanes."""
    (xr, yr, zr, wr), (xi, yi, zi, wi) = real, imag
    er, ei, fr, fi = plus(xr, zr), plus(xi, zi), minus(xr, zr), minus(xi, zi)
    gr, gi, hr, hi = plus(yr, wr), plus(yi, wi), minus(yr, wr), minus(yi, wi)
    return (
        (plus(er, gr), plus(fr, hi), minus(er, gr), minus(fr, hi)),
        (plus(ei, gi), minus(fi, hr), minus(ei, gi), plus(fi, hr)),
    )


@compiled
def _turned(values, ar, ai, br, bi, cr, ci):
    """The last three of four complex numbers times a, b and c."""
    (xr, yr, zr, wr), (xi, yi, zi, wi) = values
    return (
        (xr, _real(yr, yi, ar, ai), _real(zr, zi, br, bi), _real(wr, wi, cr, ci)),
        (xi, _imag(yr, yi, ar, ai), _imag(zr, zi, br, bi), _imag(wr, wi, cr, ci)),
    )


@compiled
def _store4(y, at, step, values):
    store(y, at, values[0])
    store(y, at + step, values[1])
    store(y, at + 2 * step, values[2])
    store(y, at + 3 * step, values[3])


@compiled
def store_first(values, y, p, n, turns, base):
    """The end of the stage of stride 1, for four butterflies beside each other; the turns begin at `base`."""
    q, t = n // 4, base + p
    ar, ai, br = load(turns, t), load(turns, t + q), load(turns, t + 2 * q)
    bi, cr, ci = load(turns, t + 3 * q), load(turns, t + 4 * q), load(turns, t + 5 * q)
    real, imag = _turned(values, ar, ai, br, bi, cr, ci)
    _store4(y, 8 * p, 8, _transposed(*real))
    _store4(y, 8 * p + 4, 8, _transposed(*imag))


@compiled
def stage(x, y, n, s, turns, base):
    """The stage of stride s from x to y: blocks of s real parts followed by s imaginary parts."""
    q, groups = n // 4, n // (4 * s)
    for p in range(groups):
        t = base + p * s
        ar, ai, br = splat(get(turns, t)), splat(get(turns, t + q)), splat(get(turns, t + 2 * q))
        bi, cr, ci = splat(get(turns, t + 3 * q)), splat(get(turns, t + 4 * q)), splat(get(turns, t + 5 * q))
        for j in range(0, s, LANES):
            values = butterfly(*gather(x, 2 * s * p + j, 2 * s * groups, s))
            real, imag = _turned(values, ar, ai, br, bi, cr, ci)
            _store4(y, 8 * s * p + j, s, real)
            _store4(y, 8 * s * p + 4 * s + j, s, imag)


@compiled
def _last(x, y):
    """A stage of radix 2, where n is not a power of 4."""
    s = x.shape[0] // 4
    for j in range(0, s, LANES):
        ar, ai, br, bi = load(x, j), load(x, s + j), load(x, 2 * s + j), load(x, 3 * s + j)
        store(y, j, plus(ar, br))
        store(y, s + j, minus(ar, br))
        store(y, 2 * s + j, plus(ai, bi))
        store(y, 3 * s + j, minus(ai, bi))


@compiled
def transform(x, y, turns):
    """The FFT of x, real parts first; x and y are overwritten, and returned with the result as the first.

    With real and imaginary parts swapped before and after it is N times the inverse.
    """
    n, s = x.shape[0] // 2, 4
    for p in range(0, n // 4, LANES):
        store_first(butterfly(*gather(x, p, n // 4, n)), y, p, n, turns, 0)
    x, y = y, x
    while 4 * s <= n:
        stage(x, y, n, s, turns, 0)
        x, y = y, x
        s *= 4
    if s < n:
        _last(x, y)
        return y, x
    return x, y


@compiled
def analyse(v, spare, twist, turns):
    """The spectrum of v (2N), and the other array: both are overwritten."""
    n = v.shape[0] // 2
    c, s = twist[0], twist[1]
    for j in range(0, n, LANES):
        ar, ai, br, bi = load(v, j), load(v, n + j), load(c, j), load(s, j)
        store(v, j, _real(ar, ai, br, bi))
        store(v, n + j, _imag(ar, ai, br, bi))
    return transform(v, spare, turns)


@compiled
def synthesise(v, spare, twist, turns):
    """N times what has the spectrum v, whose imaginary parts come first, and the other array."""
    v, spare = transform(v, spare, turns)
    n = v.shape[0] // 2
    c, s = twist[0], twist[1]
    for j in range(0, n, LANES):
        ai, ar, br, bi = load(v, j), load(v, n + j), load(c, j), load(s, j)
        store(v, j, plus(times(ar, br), times(ai, bi)))
        store(v, n + j, minus(times(ai, br), times(ar, bi)))
    return v, spare


@compiled
def copy(source, target):
    for j in range(source.shape[0]):  # as a loop: assigning to a slice takes seconds to compile
        target[j] = source[j]


@compiled
def clear(target, start):
    for j in range(start, target.shape[0]):
        target[j] = 0


@compiled
def multiply(a, b, out):
    """out = a conj(b), its imaginary parts first: what `synthesise` takes."""
    n = a.shape[0] // 2
    for j in range(0, n, LANES):
        ar, ai, br, bi = load(a, j), load(a, n + j), load(b, j), load(b, n + j)
        store(out, j, minus(times(ai, br), times(ar, bi)))
        store(out, n + j, plus(times(ar, br), times(ai, bi)))


@compiled
def add_product(a, b, out):
    """out += a b, its imaginary parts first."""
    n = a.shape[0] // 2
    for j in range(0, n, LANES):
        ar, ai, br, bi = load(a, j), load(a, n + j), load(b, j), load(b, n + j)
        store(out, j, plus(load(out, j), _imag(ar, ai, br, bi)))
        store(out, n + j, plus(load(out, n + j), _real(ar, ai, br, bi)))


@compiled
def add_correlation(a, b, out):
    """out += a conj(b), its imaginary parts first."""
    n = a.shape[0] // 2
    for j in range(0, n, LANES):
        ar, ai, br, bi = load(a, j), load(a, n + j), load(b, j), load(b, n + j)
        store(out, j, plus(load(out, j), minus(times(ai, br), times(ar, bi))))
        store(out, n + j, plus(load(out, n + j), plus(times(ar, br), times(ai, bi))))


@lru_cache(maxsize=64)
def tables(n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The twist w^j (2, n) and the turns of every stage (6, n / 4): cosines and sines by turns."""
    twist = np.exp(0.5j * np.pi / n * np.arange(n))
    turns = np.exp(-2j * np.pi / n * np.outer((1, 2, 3), np.arange(n // 4)))
    parted = np.stack((twist.real, twist.imag)), np.stack((turns.real, turns.imag), 1).reshape(6, -1)
    return parted[0].astype(dtype), parted[1].astype(dtype)


@np.errstate(all="ignore")  # numbers that are not finite go through, as in torch
def spectra(v: np.ndarray, n: int, dtype: str) -> np.ndarray:
    """Spectra of the rows of v (.., at most 2n), computed in float64."""
    padded = np.zeros((*v.shape[:-1], 2 * n))
    padded[..., : v.shape[-1]] = v
    twist = np.exp(0.5j * np.pi / n * np.arange(n))
    found = np.fft.fft((padded[..., :n] + 1j * padded[..., n:]) * twist)
    return np.concatenate((found.real, found.imag), -1).astype(dtype)
