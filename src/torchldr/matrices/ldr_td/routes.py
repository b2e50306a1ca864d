"""How LDR-TD multiplies: its routes, with what they cost and why they may not serve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...core import costs
from ...core.dense_route import dense_route
from ...core.products import Product, without_autocast
from ...core.routes import Call, Route
from ...functional import tridiagonal
from ...functional.port import acceptance
from ...functional.port.layer import port_seconds, stencil_seconds
from ...kernels.cpu import compiled
from ...kernels.cuda import krylov

PRODUCTS = "auto", "stencil", "port"
FROM = {"cpu": 8192, "cuda": 16384}  # min(m, n) from which "auto" judges ports, which takes a while
HELD = 1 << 25  # entries of Krylov matrices that a CPU holds, to make the dense matrix by one product
_LIKELY = 4  # the oversampling that most operators need


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
    device = call.device if call.device in FROM else "cpu"
    plain = call.traced or (device == "cpu" and compiled.why_not())
    seconds = stencil_seconds(M.shape, M.rank, call.batch, device) * (20 if plain else 1)
    start = costs.machine(call).start + costs.started(call, 30)
    return costs.backward(call, start + costs.wide(call) * call.matrices * seconds)


def _stencil(M: Any, x: Tensor, transposed: bool) -> Tensor:
    A, C = M.both_operators()
    return tridiagonal.product(C, A, x) if transposed else tridiagonal.product(A, C, x)


def _prepare_stencil(M: Any) -> Product:
    return lambda x: _stencil(M, x, False)


def _ports_cost(M: Any, call: Call) -> float:
    if M.options["product"] == "port":
        return 0.0  # asked for: whatever it costs
    device = call.device if call.device in FROM else "cpu"
    return port_seconds(M.shape, M.rank, call.batch, _LIKELY, device)


def _ports_why_not(M: Any, call: Call) -> str | None:
    option = M.options["product"]
    if option == "stencil":
        return "the option product is 'stencil'"
    if call.device not in FROM or call.dtype != torch.float32:
        return f"ports serve float32 on a CPU or a GPU, this is {call.dtype} on {call.device}"
    if call.needs_grad:
        return "a gradient is needed"
    if call.traced or forward_ad._current_level >= 0:
        return "the product is traced or differentiated"
    if call.batch == 0:
        return "there are no numbers to multiply"
    if option == "auto" and min(M.shape) < FROM[call.device]:
        return f"fewer than {FROM[call.device]} features"
    verdict = _judged(M)
    return None if verdict.ports is not None else verdict.reason


def _judged(M: Any) -> acceptance.Verdict:
    """What is found about the operators, once for a matrix whose numbers do not change."""
    if "ports" not in M.facts:
        with torch.inference_mode(False), torch.no_grad(), without_autocast(M.device.type):
            M.facts["ports"] = acceptance.judge(*M.both_operators())
    verdict: acceptance.Verdict = M.facts["ports"]
    return verdict


def _prepare_ports(M: Any) -> Product:
    ports = _judged(M).ports
    assert ports is not None
    return ports


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
ROUTES = (
    STENCIL,
    dense_route(_dense_seconds),
    Route("ports", _ports_why_not, _ports_cost, None, _prepare_ports),
)
