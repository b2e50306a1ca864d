"""How LDR-TD multiplies: its routes, with what they cost and why they may not serve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core import costs
from ...core.dense_route import dense_route
from ...core.products import Product
from ...core.routes import Call, Route
from ...functional import tridiagonal
from ...kernels.cpu import compiled
from ...kernels.cuda import krylov

HELD = 1 << 25  # entries of Krylov matrices that a CPU holds, to make the dense matrix by one product
_NANOSECONDS = {"cpu": (1.25, 0.06), "cuda": (0.2, 0.0005)}  # of the stencil: a column, an entry


def _by_kernels(M: Any, call: Call) -> bool:
    """Whether a GPU makes both Krylov matrices by kernels, to multiply by them."""
    if call.device != "cuda" or call.traced:
        return False
    return krylov.entries(M.rank, *M.shape) <= krylov.most()


def _krylov_seconds(M: Any, call: Call, operations: int, rows: int, products: int) -> float:
    """These matrices by so many operations of torch, and products of them with others of so many rows."""
    product = costs.gemm(call, rows, max(M.shape), min(M.shape) * M.rank)
    made = costs.wide(call) * call.matrices * krylov.seconds(M.rank, *M.shape)
    return costs.backward(call, costs.started(call, operations) + made + products * product)


def _in_float32(call: Call) -> Call:
    return call if call.dtype.itemsize >= 4 else call._replace(dtype=torch.float32)


def _stencil_cost(M: Any, call: Call) -> float:
    if _by_kernels(M, call):
        return _krylov_seconds(M, _in_float32(call), 45, call.batch, 2)
    device = call.device if call.device in _NANOSECONDS else "cpu"
    plain = call.traced or (device == "cpu" and compiled.why_not())
    column, entry = _NANOSECONDS[device]
    work = sum(M.shape) * min(M.shape) * M.rank
    seconds = 1e-9 * work * (column + entry * call.batch) * (20 if plain else 1)
    start = costs.machine(call).start + costs.started(call, 30)
    return costs.backward(call, start + costs.wide(call) * call.matrices * seconds)


def _stencil(M: Any, x: Tensor, transposed: bool) -> Tensor:
    A, C = M.both_operators()
    return tridiagonal.product(C, A, x) if transposed else tridiagonal.product(A, C, x)


def _prepare_stencil(M: Any) -> Product:
    return lambda x: _stencil(M, x, False)


def _dense_seconds(M: Any, call: Call) -> float:
    if _by_kernels(M, call):
        rough = M.shape[0] == M.shape[1] and (call.tf32 or call.dtype.itemsize < 4)
        halves = call._replace(dtype=torch.bfloat16)
        return _krylov_seconds(M, halves if rough else _in_float32(call), 25, M.shape[1], 3 if rough else 1)
    rows = M.shape[1]
    if krylov.entries(M.rank, *M.shape) <= HELD:  # by one product of the two that vectors take
        rows = -(-rows // 2)
    return STENCIL.seconds(M, call._replace(batch=rows, kept=False))


STENCIL = Route("stencil", lambda M, call: None, _stencil_cost, _stencil, _prepare_stencil)
ROUTES = (STENCIL, dense_route(_dense_seconds))
