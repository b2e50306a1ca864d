"""Products of a structured class with a replica axis in front of every tensor.

    tensors   name -> (R, ...), or without the axis where all replicas share a constant
    x         (b, n), the same for all replicas, or (R, b, n)
    result    (R, b, m)

Four forms compute the same, and `form` says which one is taken and can be asked:

    native    written here with the replica axis: few and large operations
    scan      through the dense matrices, which a GPU makes at the speed of its memory
    vmap      torch.vmap over the class's own product
    loop      one replica after the other, the class's own product as a layer would call it

On a GPU every step is a replayed graph, so few operations count and nothing may read a value: native,
scan or vmap. On a CPU the native and mapped forms take 0.4 to 0.8 of the time of separate training (measured
at n = 784, batch 50, 12 replicas); only the compiled stencil of LDR-TD exists for one operator at a
time, and looping over it (0.9) beats mapping the plain form by far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchldr.functional.orthogonal import hadamard_reference
from torchldr.functional.tridiagonal import row_sum_scale
from torchldr.kernels.cuda import unavailable
from torchldr.matrices import StructuredMatrix

from . import scan as stacked_scan
from .subdiagonal import square_convolution_product
from .tridiagonal import square_krylov_product

Tensors = Mapping[str, Tensor]
StackedProduct = Callable[[Tensors, Tensor], Tensor]

_CPU_LOOP = ("ldr_sd", "ldr_td")  # where the native form does not apply


def dense_product(weight: Tensor, x: Tensor) -> Tensor:
    """x W^T for every replica: (R, m, n) and (b, n) or (R, b, n) to (R, b, m)."""
    return torch.matmul(x, weight.mT)


def form(
    structure: type[StructuredMatrix],
    device: torch.device,
    shape: tuple[int, int],
    options: Mapping[str, Any],
) -> str:
    """Which of "native", "scan", "vmap" and "loop" multiplies on this device."""
    name, cuda, square = structure.name, device.type == "cuda", shape[0] == shape[1]
    if cuda and name in stacked_scan.STRUCTURES and unavailable() is None:
        return "scan"
    if name in ("dense", "low_rank"):
        return "native"
    if square and options.get("product") == "convolution":
        return "native"
    if cuda and (name == "fastfood" or (name == "ldr_td" and square)):
        return "native"
    return "loop" if name in _CPU_LOOP and not cuda else "vmap"


def stacked_product(
    structure: type[StructuredMatrix],
    out_features: int,
    in_features: int,
    options: Mapping[str, Any],
    shared: frozenset[str] = frozenset(),
    *,
    how: str,
) -> StackedProduct:
    """The product of a class for stacked tensors.

    Args:
        structure: the class.
        out_features, in_features: its shape (m, n).
        options: all its options.
        shared: the tensors that have no replica axis.
        how: a form, as `form` gives it.

    Returns:
        A function of (tensors, x), differentiable in the tensors and in x.
    """
    if how == "native":
        return _native(structure, options)
    if how == "scan":
        return partial(stacked_scan.scan_product, structure.name)

    def product(tensors: Tensors, x: Tensor) -> Tensor:
        return structure.unchecked(out_features, in_features, tensors, options)._matmul(x)

    if how == "vmap":

        def vmapped(tensors: Tensors, x: Tensor) -> Tensor:
            dims = {name: None if name in shared else 0 for name in tensors}
            return torch.vmap(product, in_dims=(dims, 0 if x.ndim == 3 else None))(dict(tensors), x)

        return vmapped

    def looped(tensors: Tensors, x: Tensor) -> Tensor:
        # unbind, not indexing: its backward is one stack.
        parts = {name: t.unbind(0) for name, t in tensors.items() if name not in shared}
        common = {name: tensors[name] for name in shared}
        count = len(next(iter(parts.values())))
        inputs = x.unbind(0) if x.ndim == 3 else (x,) * count
        replicas = [common | {name: part[i] for name, part in parts.items()} for i in range(count)]
        return torch.stack([product(t, xi) for t, xi in zip(replicas, inputs, strict=True)])

    return looped


def _native(structure: type[StructuredMatrix], options: Mapping[str, Any]) -> StackedProduct:
    match structure.name:
        case "dense":
            return lambda tensors, x: dense_product(tensors["weight"], x)
        case "low_rank":
            return lambda tensors, x: torch.matmul(x, tensors["H"].mT) @ tensors["G"]
        case "fastfood":
            return Fastfood()
        case "ldr_sd":
            return _subdiagonal
        case "ldr_td":
            return lambda tensors, x: _tridiagonal(tensors, x, bool(options["normalize"]))
    raise ValueError(f"stacked_product: {structure.name!r} has no native form.")


class Fastfood:
    """M = S Had D Perm Had B with the Hadamard matrix dense, made once and kept on the device.

    At the sizes of these networks two matrix products are quicker than the fast transform, and the
    library's own makes its factors on the CPU at every call, which a CUDA graph does not allow.
    """

    def __init__(self) -> None:
        self._hadamard: Tensor | None = None

    def __call__(self, tensors: Tensors, x: Tensor) -> Tensor:
        S, D, B, permutation = (tensors[name] for name in ("S", "D", "B", "permutation"))
        m, size, n = S.shape[-1], D.shape[-1], B.shape[-1]
        if self._hadamard is None or self._hadamard.device != x.device:
            p = 1 << (size - 1).bit_length()
            self._hadamard = hadamard_reference(p, x.dtype)[:size, :size].contiguous().to(x.device)
        H = self._hadamard
        y = (x * B.unsqueeze(1)) @ H[:n]
        y = y.gather(-1, permutation.unsqueeze(1).expand_as(y)) * D.unsqueeze(1)
        return (y @ H[:, :m]) * S.unsqueeze(1)


def _subdiagonal(tensors: Tensors, x: Tensor) -> Tensor:
    """LDR-SD with m = n by one convolution for each operator."""
    s, corner = (
        torch.stack([tensors[f"{part}_{side}"] for side in "AC"]) for part in ("subdiagonal", "corner")
    )
    return square_convolution_product(s, corner.squeeze(-1), torch.stack((tensors["G"], tensors["H"])), x)


def _tridiagonal(tensors: Tensors, x: Tensor, normalize: bool) -> Tensor:
    """LDR-TD with m = n: both operators of all replicas as one stack of rings."""

    def both(part: str) -> Tensor:
        return torch.cat([tensors[f"{part}_{side}"] for side in "AC"])

    corners = both("corners")
    lower = torch.cat((corners[:, :1], both("subdiagonal")), 1)
    upper = torch.cat((both("superdiagonal"), corners[:, 1:]), 1)
    ring = lower, both("diagonal"), upper
    if normalize:
        scale = row_sum_scale(*ring).unsqueeze(1)
        ring = ring[0] / scale, ring[1] / scale, ring[2] / scale
    return square_krylov_product(*ring, torch.cat((tensors["G"], tensors["H"])), x)


def subdiagonal_range(tensors: Tensors) -> Tensor:
    """log10 of max|P| / min|P| over the scales P of an LDR-SD layer's operators, shape (R,).

    What the single convolution loses in digits; infinite where an entry is 0.
    """
    reach = []
    for side in "AC":
        logs = tensors[f"subdiagonal_{side}"].detach().double().abs().log10().cumsum(-1)
        logs = pad(logs, (1, 0))
        reach.append(logs.amax(-1) - logs.amin(-1))
    return torch.stack(reach).amax(0)
