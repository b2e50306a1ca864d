"""Dense weights of many structured matrices at once.

A stack is a dictionary of tensors that have one more axis in front, one entry a matrix. LDR-SD and the
Toeplitz-like classes go by `functional.scanned` on a GPU, else by `functional.doubling`. The tests hold the
weights to `to_dense`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...core.products import is_jit_tracing
from ...functional import stein_scan
from ...functional.doubling import operator_weights, shift_weights, shifted_sum
from ...functional.subdiagonal import convolution
from ...functional.subdiagonal.guard import RANGE, RANGE_FLOAT64, scales
from ...kernels.cpu import compiled
from ...matrices import StructuredMatrix
from ...matrices.toeplitz_like import corner_sign

Tensors = Mapping[str, Tensor]


def stacked_dense(
    structure: type[StructuredMatrix],
    out_features: int,
    in_features: int,
    tensors: Tensors,
    options: Mapping[str, Any],
    shared: frozenset[str] = frozenset(),
) -> Tensor:
    """The dense matrices of a stack, differentiable.

    Args:
        structure: their class.
        out_features, in_features: their shape (m, n).
        tensors: name to (s, ...), in float32 or float64.
        options: all options of the class.
        shared: the constants that have no axis in front, because all matrices have the same.

    Returns:
        Shape (s, m, n).

    One product for the whole stack, except for LDR-TD on a CPU (see `stacked_matmul`).
    """
    m, n = out_features, in_features
    if is_jit_tracing():
        matrices = unstacked(structure, m, n, tensors, options, shared)
        return torch.stack([M.multiply(_unit(structure, tensors, n)).mT for M in matrices])
    match structure.name:
        case "dense":
            return tensors["weight"]
        case "low_rank":
            return tensors["G"].mT @ tensors["H"]
        case "ldr_sd":
            a, c = (operator_weights(tensors, side) for side in "AC")
            return _summed(tensors["G"].mT @ tensors["H"], a, c)
        case "toeplitz_like" | "hankel_like":
            E, f = tensors["G"].mT @ tensors["H"], corner_sign(m, n)
            M = _summed(E, shift_weights(E, m, f), shift_weights(E, n, -f))
            return M.flip(-2) if structure.name == "hankel_like" else M
    unit = _unit(structure, tensors, n)
    return stacked_matmul(structure, m, n, tensors, options, shared, unit, (None,)).mT


def _unit(structure: type[StructuredMatrix], tensors: Tensors, n: int) -> Tensor:
    some = tensors[structure.scaled[0]]
    return torch.eye(n, dtype=some.dtype, device=some.device)


def _summed(E: Tensor, a: Tensor, c: Tensor) -> Tensor:
    """sum_{t < min(m, n)} A^t E (C^t)^T for the weights of a stack of shifts, or of one common to all."""
    if stein_scan.serves(E, a, c):
        return stein_scan.stein_matrix(a.expand(len(E), -1), c.expand(len(E), -1), E)
    return shifted_sum(E, a, c, min(E.shape[-2:]))


def unstacked(
    structure: type[StructuredMatrix],
    out_features: int,
    in_features: int,
    tensors: Tensors,
    options: Mapping[str, Any],
    shared: frozenset[str] = frozenset(),
) -> list[StructuredMatrix]:
    """The matrices of a stack one by one, sharing its tensors."""
    # unbind, not indexing: its backward is one stack.
    parts = {name: t.unbind(0) for name, t in tensors.items() if name not in shared}
    common = {name: tensors[name] for name in shared}
    count = len(next(iter(parts.values())))
    return [
        structure.unchecked(
            out_features, in_features, common | {name: part[i] for name, part in parts.items()}, options
        )
        for i in range(count)
    ]


def stacked_matmul(
    structure: type[StructuredMatrix],
    out_features: int,
    in_features: int,
    tensors: Tensors,
    options: Mapping[str, Any],
    shared: frozenset[str],
    x: Tensor,
    x_axes: tuple[int | None, ...],
) -> Tensor:
    """The fast product of every matrix of a stack with its vectors, in one call.

    Args:
        structure, out_features, in_features, options, shared: as for `stacked_dense`.
        tensors: name to (s_1, .., s_d, ...): a stack may have several axes.
        x: vectors, shape (b, n), with one more axis for each of the stack's axes that it follows.
        x_axes: for each of the stack's axes, which axis of `x` follows it (counted once the earlier
            ones are gone), or None where all its matrices multiply the same vectors.

    Returns:
        Shape (s_1, .., s_d, b, m).
    """
    if structure.name in ("ldr_sd", "ldr_td") and x_axes == (None,) and compiled.serves(x, *tensors.values()):
        # Their compiled products exist for one operator at a time, and for the few matrices of a
        # recurrent layer one after the other is faster than mapping the torch form (measured: 1.4 to 2.7).
        matrices = unstacked(structure, out_features, in_features, tensors, options, shared)
        return torch.stack([M._matmul(x) for M in matrices])
    if structure.name == "ldr_sd" and not _convolves(tensors):
        dense = stacked_dense(structure, out_features, in_features, _flat(tensors, x_axes), options, shared)
        return _multiply(dense.unflatten(0, tensors["G"].shape[: len(x_axes)]), x, x_axes)

    def product(one: dict[str, Tensor], x: Tensor) -> Tensor:
        if structure.name == "ldr_sd":  # its compiled product exists for one operator at a time
            return _subdiagonal_matmul(one, x, min(out_features, in_features))
        return structure.unchecked(out_features, in_features, one, options)._matmul(x)

    return _mapped(product, {name: None if name in shared else 0 for name in tensors}, x_axes)(
        dict(tensors), x
    )


def _mapped(product: Any, axes: Any, x_axes: tuple[int | None, ...]) -> Any:
    for axis in reversed(x_axes):
        product = torch.vmap(product, in_dims=(axes, axis))
    return product


def _flat(tensors: Tensors, x_axes: tuple[int | None, ...]) -> Tensors:
    return {name: t.flatten(0, len(x_axes) - 1) for name, t in tensors.items()}


def _multiply(dense: Tensor, x: Tensor, x_axes: tuple[int | None, ...]) -> Tensor:
    return _mapped(lambda W, x: x @ W.mT, 0, x_axes)(dense, x)


def _subdiagonal_matmul(one: Tensors, x: Tensor, k: int) -> Tensor:
    """LDR-SD by its two Krylov products in torch operations, which vmap maps over operators."""
    A, C = ((one[f"subdiagonal_{side}"], one[f"corner_{side}"].squeeze(-1)) for side in "AC")
    P_A, P_C = (scales(s.detach().double()) for s, _ in (A, C))
    return convolution.matmul(*A, one["G"], convolution.rmatmul(*C, one["H"], x, k, P_C), P_A)


def _convolves(tensors: Tensors) -> bool:
    """Whether convolutions in float64 are right for every matrix of a stack, while that can be read.

    Inside vmap an operator has no values to look at.
    """
    some = tensors["G"]
    if torch.compiler.is_compiling() or (some.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    reach = torch.zeros((), dtype=torch.float64, device=some.device)
    for side in "AC":
        logs = tensors[f"subdiagonal_{side}"].detach().double().abs().log().cumsum(-1)
        logs = torch.nn.functional.pad(logs, (1, 0))
        corner = tensors[f"corner_{side}"].detach().double().abs().log()
        ring = (corner.reshape(logs.shape[:-1]) + logs[..., -1]).clamp(min=0)
        reach = reach + (logs.amax(-1) - logs.amin(-1) + ring).amax()
    try:
        return bool((reach.exp() <= (RANGE_FLOAT64 if some.dtype == torch.float32 else RANGE)).item())
    except RuntimeError:  # fake tensors and outer transformations have no values
        return False
