"""The frame of every product: checks, leading axes, dtypes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..torch_private import is_exporting

Matrix = Any  # a StructuredMatrix: that module stands above those that take one
Product = Callable[[Tensor], Tensor]  # (b, in_features) to (b, out_features)


def check_input(M: Matrix, x: Tensor, features: int, what: str, who: str | None = None) -> None:
    """Raise for an input that cannot be multiplied."""
    who = who or type(M).__name__
    check_size(who, x, features, what)
    check_like(who, x, M)


def check_size(who: str, x: Tensor, features: int, what: str) -> None:
    """A tensor whose last axis can be multiplied."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{who}: expected a tensor, got {type(x).__name__}.")
    if x.ndim < 1 or x.shape[-1] != features:
        raise ValueError(
            f"{who}: the last axis must have {what}={features} entries, got shape {tuple(x.shape)}."
        )


def check_like(who: str, t: Tensor, like: Any, what: str = "input", than: str = "weights") -> None:
    """Real floating point, on the device and in the dtype of something else, or one that autocast casts."""
    if not t.is_floating_point():
        raise TypeError(f"{who}: the {what} must be real floating point, got {t.dtype}.")
    if t.device != like.device:
        raise ValueError(
            f"{who}: the {what} is on {t.device}, the {than} on {like.device}; move one of them."
        )
    if t.dtype != like.dtype and (t.dtype == torch.float64 or not autocasts(t.device.type)):
        raise TypeError(
            f"{who}: the {what} has dtype {t.dtype}, the {than} {like.dtype}; convert one of them."
        )


def autocasts(device: str) -> bool:
    """Whether autocast is on for this type of device; some, such as meta, have none."""
    if device in ("cpu", "cuda") or torch.compiler.is_compiling():  # compilers do not know the question below
        return device != "meta" and torch.is_autocast_enabled(device)
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def allows_tf32(device: str, dtype: torch.dtype) -> bool:
    """Whether matrix products of this dtype may round their factors (TF32 on a GPU)."""
    if device != "cuda" or dtype != torch.float32:
        return False
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # set by the newer of torch's two ways
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Autocast off for this type of device, where it is on."""
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()


def run_product(
    product: Product,
    x: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    *,
    flatten: bool = True,
    converts: bool = False,
) -> Tensor:
    """Flatten the leading axes, compute in float32 or wider outside of autocast, and undo both.

    A stack of matrices has its own leading axes, which stay: `flatten=False`. A product that `converts` rows
    itself may have kernels for those of a GPU as they are.
    """
    device = x.device.type
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    flatten = flatten and x.ndim != 2
    flat = x.reshape(-1, x.shape[-1]) if flatten else x
    if flat.dtype != compute and not (converts and flat.is_cuda and flat.dtype == dtype):
        flat = flat.to(compute)
    if not is_exporting() and flat.shape[-2] == 0:
        product = _of_no_vectors(product)
    if autocasts(device):
        with torch.autocast(device, enabled=False):
            y = product(flat)
        if dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
    else:
        y = product(flat)
    if bias is not None:
        y = y + bias
    if flatten:
        y = y.reshape(*x.shape[:-1], y.shape[-1])
    return y if y.dtype == dtype else y.to(dtype)


def _of_no_vectors(product: Product) -> Product:
    """Compute an empty batch with one extra row, because cuFFT and MKL refuse it."""
    return lambda flat: product(torch.nn.functional.pad(flat, (0, 0, 0, 1)))[..., :-1, :]


def sum_of_products(terms: list[tuple[Tensor, ...]]) -> Tensor:
    total = None
    for term in terms:
        product = term[0]
        for factor in term[1:]:
            product = product @ factor
        total = product if total is None else total + product
    assert total is not None
    return total
