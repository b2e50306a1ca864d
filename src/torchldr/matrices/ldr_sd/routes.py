"""How LDR-SD multiplies: its routes, with what they cost and why they may not serve."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core import costs
from ...core.dense_route import dense_route
from ...core.products import Product
from ...core.routes import Call, RefusedError, Route, untraced
from ...functional import stein_scan, tridiagonal
from ...functional.fft import fast_length, is_fast_length
from ...functional.kept import KeptProduct
from ...functional.subdiagonal import (
    circulant_pair,
    compiled_convolution,
    compiled_pair,
    convolution,
    cuda_pair,
)
from ...functional.subdiagonal.guard import RANGE, Scales, Side, guard, unseen_scales
from ...kernels.cpu import compiled, library
from ...kernels.cuda import krylov, pair

PRODUCTS = ("auto", "convolution", "exact")


def sides(M: Any, transposed: bool = False) -> tuple[Side, Side]:
    """Subdiagonal, corner () and start vectors of A and of C; for M^T they change places."""
    (a, corner_A, G), (c, corner_C, H) = _stored(M, transposed)
    return (a, corner_A.squeeze(-1), G), (c, corner_C.squeeze(-1), H)


def _stored(M: Any, transposed: bool = False) -> tuple[Side, Side]:
    """`sides` with corners (1,) as they are, which autograd need not follow."""
    t = M.tensors
    A = t["subdiagonal_A"], t["corner_A"], t["G"]
    C = t["subdiagonal_C"], t["corner_C"], t["H"]
    return (C, A) if transposed else (A, C)


def unseen(M: Any, call: Call) -> Any:
    """A stack whose convolutions need no look at their operators any more, or why that may not be."""
    reason = _refused(M, call)
    return reason or M.unchecked(*M.shape[-2:], M.tensors, {**M.options, "product": "convolution"})


# Convolutions.


def _scales(M: Any, transposed: bool = False) -> Scales:
    found = _guard(M)
    assert isinstance(found, Scales)
    return found.swapped() if transposed else found


def _guard(M: Any) -> Scales | str:
    """The scales of both operators or the reason against them, looked up once for a product."""
    if "scales" not in M.facts:
        unseen = M.options["product"] == "convolution"
        M.facts["scales"] = unseen_scales(*_stored(M)) if unseen else guard(*_stored(M))
    found: Scales | str = M.facts["scales"]
    return found


def _refused(M: Any, call: Call) -> str | None:
    """Why no convolution serves."""
    if M.options["product"] == "convolution":
        return None
    if M.options["product"] == "exact":
        return "product='exact' was asked for"
    if call.traced:
        return "tracing, vmap and capture show no values to look at"
    found = _guard(M)
    return found if isinstance(found, str) else None


def _lengths(M: Any) -> tuple[int, int]:
    m, n = M.shape
    k = min(m, n)
    return fast_length(m + k - 1), fast_length(n + k - 1)


def _convolution_cost(M: Any, call: Call) -> float:
    r, b = M.rank, call.batch
    seconds = 0.0
    for length in _lengths(M):
        seconds += costs.ffts(call, b, length) + costs.ffts(call, b * r, length)
        seconds += costs.copies(call, b * r * length, 3, 20)
        if not call.kept:
            seconds += costs.ffts(call, r, length) + costs.passes(call, r * length, 6)
    looking = 0.0 if call.kept else costs.started(call._replace(needs_grad=False), 30)
    return looking + costs.backward(call, seconds)


def _convolution(M: Any, x: Tensor, transposed: bool) -> Tensor:
    return convolution.product(*sides(M, transposed), x, _scales(M, transposed))


def _prepare_convolution(M: Any) -> Product:
    return partial(convolution.prepared_product, convolution.prepare(*sides(M), _scales(M)))


def _compiled_why_not(M: Any, call: Call) -> str | None:
    if reason := untraced(call):
        return reason
    if not library.serves(*M.tensors.values()):
        return library.why_not() or "for CPUs"
    return _refused(M, call)


def _compiled_cost(M: Any, call: Call) -> float:
    (m, n), r = M.shape, M.rank
    length = 1 << ((max(m, n) + min(m, n) - 2) // 2).bit_length()
    transforms = call.batch * (2 * r + 2) + (0 if call.kept else 2 * r)
    return costs.backward(call, costs.compiled_ffts(call, transforms, length, 4 if call.kept else 12))


def _compiled(M: Any, x: Tensor, transposed: bool) -> Tensor:
    return compiled_convolution.product(*_stored(M, transposed), x, _scales(M, transposed))


def _prepare_compiled(M: Any) -> Product:
    K = compiled_convolution.constants(*sides(M), _scales(M))
    return KeptProduct(lambda transposed: partial(compiled_convolution.apply, K, transposed=transposed))


# A circulant pair: square matrices that are kept.


def _pair_why_not(M: Any, call: Call) -> str | None:
    m, n = M.shape
    if m != n or not is_fast_length(n):
        return "for square matrices whose size is a product of 2, 3, 5 and 7"
    return _refused(M, call)


def _pair_cost(M: Any, call: Call) -> float:
    r, b, n = M.rank, call.batch, M.shape[0]
    seconds = 2 * costs.ffts(call, b, n) + 2 * costs.ffts(call, b * (r + 1), n)
    return costs.backward(call, seconds + costs.passes(call, b * r * n, 6) + costs.passes(call, b * n, 8))


def _prepare_pair(M: Any) -> Product:
    return partial(circulant_pair.matmul, circulant_pair.prepare(*sides(M), _scales(M).dtype))


def _compiled_pair_why_not(M: Any, call: Call) -> str | None:
    return untraced(call) or compiled_pair.why_not(*sides(M)) or _refused(M, call)


def compiled_pair_cost(M: Any, call: Call) -> float:
    transforms = call.batch * (2 * M.rank + 4)
    return costs.backward(call, costs.compiled_ffts(call, transforms, M.shape[0] // 2, 4))


def _prepare_compiled_pair(M: Any) -> Product:
    return compiled_pair.kept(*sides(M), _scales(M).dtype)


def _cuda_pair_why_not(M: Any, call: Call) -> str | None:
    reason = untraced(call) or cuda_pair.why_not(M.shape, M.device, M.dtype)
    reason = reason or (_undetermined() if call.needs_grad else None) or _refused(M, call)
    if reason is None and _scales(M).dtype != torch.float32:
        return "the subdiagonals' products range over more than float32 may lose"
    return reason


def cuda_pair_cost(M: Any, call: Call) -> float:
    if call.device != "cuda" or not cuda_pair.takes(*M.shape):
        return math.inf
    sizes = M.shape[0] // 2, M.rank + 1, call.batch
    if call.kept:
        return costs.backward(call, costs.started(call, 2) + pair.seconds(*sizes))
    kernels = pair.seconds(*sizes, trained=call.needs_grad)
    return max(costs.started(call, 165), costs.started(call, 60) + kernels)  # the longer of host and device


def pair_tried(M: Any, call: Call) -> str | None:
    """Why a GPU's kernels for circulant pairs do not serve, by sizes."""
    if (asked := M.options.get("product", "auto")) != "auto":
        return f"product={asked!r} was asked for"
    return untraced(call) or cuda_pair.why_not(M.shape, torch.device(call.device), call.dtype)


def cuda_product(M: Any, A: Side, C: Side, x: Tensor, bias: Tensor | None, limit: float) -> Tensor:
    """The product by them, or `RefusedError`."""
    reason = cuda_pair.why_not(M.shape, M.device, M.dtype)
    y = None if reason else cuda_pair.product(A, C, x, bias, limit)
    if y is None:
        raise RefusedError(reason or "the subdiagonals' products range over more than float32 may lose")
    return y


def _undetermined() -> str | None:
    """Why torch would refuse to sum up gradients of subdiagonals on a GPU."""
    return "deterministic algorithms are asked for" if torch.are_deterministic_algorithms_enabled() else None


def _cuda_pair(M: Any, x: Tensor, transposed: bool, bias: Tensor | None = None) -> Tensor:
    if (reason := _undetermined()) is not None and M.call(x).needs_grad:
        raise RefusedError(reason)
    return cuda_product(M, *_stored(M, transposed), x, bias, RANGE)


def _prepare_cuda_pair(M: Any) -> Product:
    return cuda_pair.KeptPair(*sides(M))


# Right for every operator: the dense matrix by a scan, and the stencil.


def dense_matrix(M: Any, dtype: torch.dtype) -> Tensor:
    """The matrix itself, or those of a stack; differentiable, right for every operator, no value is read."""
    return stein_scan.stein_sum(*rings(M), M.G, M.H, dtype)


def rings(M: Any) -> tuple[stein_scan.Ring, stein_scan.Ring]:
    """Corner and subdiagonal of A and of C."""
    t = M.tensors
    return (t["corner_A"], t["subdiagonal_A"]), (t["corner_C"], t["subdiagonal_C"])


def _dense_seconds(M: Any, call: Call) -> float:
    call = call._replace(dtype=torch.promote_types(call.dtype, torch.float32))
    return scan_seconds(M, call, kernels=6, loops=10 if call.needs_grad else 5, doubling=4)


def scan_seconds(M: Any, call: Call, kernels: float, loops: float, doubling: float) -> float:
    """To make the dense matrix: passes over it by kernels or loops, or for each doubling without them."""
    m, n = M.shape
    seconds = costs.gemm(call, M.rank, m, n)
    if call.device == "cuda":
        seconds += costs.passes(call, m * n, kernels)
    elif call.traced or compiled.why_not():
        seconds += costs.passes(call, m * n, doubling * min(m, n).bit_length())
    else:
        entry = costs.wide(call) * costs.machine(call).large  # of small tensors too: loops compute more
        seconds += costs.started(call, 12) + loops * entry * call.matrices * m * n
    return costs.backward(call, seconds)


def _stencil_why_not(M: Any, call: Call) -> str | None:
    return "product='convolution' was asked for" if M.options["product"] == "convolution" else None


def _stencil_cost(M: Any, call: Call) -> float:
    on, (m, n), r = costs.machine(call), M.shape, M.rank
    count = krylov.entries(r, m, n)
    plain = call.traced or (count > krylov.most() if call.device == "cuda" else compiled.why_not())
    columns = krylov.seconds(r, m, n) if call.device == "cuda" else count * on.stencil
    seconds = (40 if plain else 1) * columns + count * on.multiply * call.batch
    seconds *= costs.wide(call) * call.matrices
    return costs.backward(call, on.start + costs.started(call, 30) + seconds)


def _stencil(M: Any, x: Tensor, transposed: bool) -> Tensor:
    A, C = (_tridiagonal(side) for side in sides(M, transposed))
    return tridiagonal.product(A, C, x, shifts=True)


def _tridiagonal(side: Side) -> tridiagonal.Operator:
    lower = compiled_convolution.lower(side)
    zero = torch.zeros_like(lower)
    return lower, zero, zero, side[2]


def _prepare_stencil(M: Any) -> Product:
    return partial(_stencil, M, transposed=False)


ROUTES = (
    dense_route(_dense_seconds),
    Route("convolution", _refused, _convolution_cost, _convolution, _prepare_convolution),
    Route("stencil", _stencil_why_not, _stencil_cost, _stencil, _prepare_stencil),
    Route("compiled_convolution", _compiled_why_not, _compiled_cost, _compiled, _prepare_compiled),
    Route("circulant_pair", _pair_why_not, _pair_cost, None, _prepare_pair),
    Route("compiled_pair", _compiled_pair_why_not, compiled_pair_cost, None, _prepare_compiled_pair),
    Route(
        "cuda_pair",
        _cuda_pair_why_not,
        cuda_pair_cost,
        _cuda_pair,
        _prepare_cuda_pair,
        any_dtype=True,
        tried=pair_tried,
    ),
)
