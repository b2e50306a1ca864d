"""From a dense matrix to a structured one: `torchldr.from_dense`."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..core.matrix import Projection, StructuredMatrix
from ..core.registry import near
from ..core.rules import rule
from ..core.stacks import reshaped, stack
from ..core.structures import get_structure
from ..progress import Report, silent
from .methods import solve
from .problem import Problem, Tensors
from .solving import balanced


@rule("from_dense")
def from_dense(
    W: Tensor,
    structure: str | type[StructuredMatrix],
    rank: int | None = None,
    *,
    activations: Tensor | None = None,
    seed: int = 0,
    effort: float = 1.0,
    progress: Report | None = None,
    **options: Any,
) -> Projection:
    """A member of a structured class as near as possible to a dense matrix.

    Minimises |W - M|_F, or |X (W - M)^T|_F for activations X, over the members M of the class. Dense,
    low-rank, circulant and block-circulant matrices are solved exactly. The others have local minima, and
    several starts are tried. If W is itself a member of a class with fixed operators, the result equals W up
    to rounding; for LDR-SD this holds if its subdiagonals lie within 1 +- .5. A higher rank is never worse,
    and no class is worse than those it contains at the same rank.

    Args:
        W: the matrix, shape (m, n), real floating point, on any device. Of a stack (..., m, n) each matrix is
            projected separately, and the result is a stack.
        structure: a class or its name.
        rank: from 1 (the default) to min(m, n); None for a class without a rank.
        activations: inputs of the layer, shape (..., n), to weight errors by their effect on its outputs.
        seed: random seed of the starts and of Fastfood's permutation.
        effort: multiplies the number of refinement steps; 0.2 is a quick look.
        progress: called with (stage, done, total); `print` will do.
        **options: the class's options, and its constants by name (a `permutation`, `nodes`, ..).

    Returns:
        Projection(matrix, residual, weighted_residual): the matrix in the dtype and on the device of W,
        without gradients. The residuals of a stack are those of all its entries together. The computation
        runs in float64 on the CPU, and the same seed gives the same result.

    >>> W = torch.outer(torch.arange(1.0, 5.0), torch.ones(3))
    >>> M, residual, _ = from_dense(W, "low_rank", rank=1)
    >>> M, round(residual, 5)
    (LowRank(4, 3, rank=1, dtype=torch.float32), 0.0)
    """
    cls = get_structure(structure)
    who = f"{cls.__name__}.from_dense"
    _check_matrix(who, W)
    m, n = W.shape[-2:]
    given = {name: value for name, value in options.items() if isinstance(value, Tensor)}
    chosen = cls.check_options({name: value for name, value in options.items() if name not in given})
    if rank is None and cls.ranked:
        rank = 1
    m, n, rank = cls.checked_sizes(m, n, rank, who)
    cls.parameter_shapes(m, n, rank or 1, **chosen)  # checks the options
    if not (isinstance(effort, int | float) and math.isfinite(effort) and effort > 0):
        raise ValueError(f"{who}: effort must be a positive number, got {effort!r}.")
    root = _root(who, activations, n)
    # New tensors are made on the CPU. A context is for other defaults alone: it slows every operation.
    on_the_cpu: Any = nullcontext() if torch.empty(0).device.type == "cpu" else torch.device("cpu")
    with torch.no_grad(), on_the_cpu:
        wide = W.detach().to("cpu", torch.float64)
        constants = _constants(cls, who, W, rank or 1, given, seed, chosen)
        # W is known only up to rounding, and its errors grow a little in a displacement.
        exact = min(max(1e-10, 8 * torch.finfo(W.dtype).eps), 1e-3)
        told = progress or silent

        def nearest(one: Tensor) -> StructuredMatrix:
            scale = _root_mean_square(one)
            problem = Problem(one / scale, root, cls, chosen, constants, seed, float(effort), exact, told)
            tensors = _scaled(cls, solve(problem, rank or 1), scale, torch.finfo(W.dtype).max)
            return cls.unchecked(m, n, {**constants, **tensors}, chosen).to(W.dtype)

        if W.ndim == 2:
            M = nearest(wide)
        else:
            M = reshaped(stack([nearest(one) for one in wide.flatten(0, -3)]), W.shape[:-2])
        rest = wide - M.to(torch.float64).to_dense()
        residual = _ratio(rest, wide)
        weighted = None if root is None else _ratio(rest @ root.mT, wide @ root.mT)
        return Projection(M.to(W.device), residual, weighted)


def _check_matrix(who: str, W: Tensor, what: str = "W") -> None:
    if not isinstance(W, Tensor):
        raise TypeError(f"{who}: {what} must be a tensor, got {type(W).__name__}.")
    if not W.is_floating_point():
        raise TypeError(f"{who}: {what} must be real floating point, got {W.dtype}.")
    if what == "W" and (W.ndim < 2 or not W.shape[:-2].numel()):
        wanted = "(..., out_features, in_features) with at least one matrix"
        raise ValueError(f"{who}: W must have shape {wanted}, got {tuple(W.shape)}.")
    if not W.isfinite().all():
        raise ValueError(f"{who}: {what} must be finite, got {int((~W.isfinite()).sum())} that are not.")


def _root(who: str, activations: Tensor | None, n: int) -> Tensor | None:
    """R (q, n) with R^T R = X^T X up to scale, q <= n."""
    if activations is None:
        return None
    _check_matrix(who, activations, "activations")
    if activations.ndim < 1 or activations.shape[-1] != n:
        raise ValueError(
            f"{who}: the last axis of activations must have in_features={n} entries, "
            f"got shape {tuple(activations.shape)}."
        )
    X = activations.detach().to("cpu", torch.float64).reshape(-1, n)
    if not X.any():
        raise ValueError(f"{who}: activations must not all be zero, got shape {tuple(activations.shape)}.")
    X = X / _root_mean_square(X)
    return torch.linalg.qr(X, mode="r")[1] / math.sqrt(len(X)) if len(X) > n else X / math.sqrt(len(X))


def _constants(
    cls: type[StructuredMatrix],
    who: str,
    W: Tensor,
    rank: int,
    given: dict[str, Tensor],
    seed: int,
    options: dict[str, Any],
) -> dict[str, Tensor]:
    """The class's constants, rounded to W's dtype, in float64; given ones replace them."""
    generator = torch.Generator().manual_seed(seed)
    m, n = W.shape[-2:]
    values = cls.constants(m, n, rank, dtype=W.dtype, generator=generator, **options)
    for name, value in given.items():
        if name not in values:
            raise TypeError(f"{who}: unknown tensor {name!r}{near(name, values)}.")
        if value.shape != values[name].shape:
            raise ValueError(
                f"{who}: {name} must have shape {tuple(values[name].shape)}, got {tuple(value.shape)}."
            )
        values[name] = value.detach().to("cpu")
    return {name: t.to(torch.float64) if t.is_floating_point() else t for name, t in values.items()}


def _scaled(cls: type[StructuredMatrix], tensors: Tensors, scale: float, most: float) -> Tensors:
    """The parameters of `scale` times the matrix, with equal norms of g_i and h_i; none above `most`."""
    scaled = {name: t.clone() for name, t in tensors.items()}
    for name in cls.scaled:
        scaled[name] *= scale ** (1 / len(cls.scaled))
    if cls.also_linear and (largest := scaled[cls.scaled[0]].abs().max().item()) > most / 2:
        factor = largest ** (1 / (1 + len(cls.also_linear)))
        scaled[cls.scaled[0]] *= factor / largest
        for name in cls.also_linear:
            scaled[name] *= factor
    if cls.scaled == ("G", "H"):
        scaled["G"], scaled["H"] = balanced(scaled["G"], scaled["H"])
    return scaled


def _root_mean_square(X: Tensor) -> float:
    """The scale of the entries, 1 for zero; divides by the largest entry first to avoid overflow."""
    largest = X.abs().max().item()
    return largest * (X / largest).square().mean().sqrt().item() if largest > 0 else 1.0


def _ratio(rest: Tensor, whole: Tensor) -> float:
    """|rest| / |whole|, or |rest| for a zero whole."""
    scale = _root_mean_square(whole)
    size = (whole / scale).norm().item()
    return (rest / scale).norm().item() / (size if size > 0 else 1.0)
