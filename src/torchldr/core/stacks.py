"""Stacks: matrices with leading axes, multiplied together, whatever their class.

The tensors of a stack have its axes in front, `G` is (..., r, m). Dense matrices multiply as one batched
product; the class's own product runs under torch.vmap if it does not accept leading axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..torch_private import are_recorded, has_transforms
from .linear_map import LinearMap
from .products import Matrix, run_product

Member = TypeVar("Member", bound=LinearMap)


def stack(matrices: Sequence[Member]) -> Member:
    """Matrices of one class, shape and rank as one matrix with a new axis in front, as `torch.stack`.

    >>> from torchldr import ToeplitzLike, stack
    >>> M = stack([ToeplitzLike.random(8, 6, rank=2) for _ in range(3)])
    >>> M.shape, M.matmul(torch.ones(5, 6)).shape, M[0].shape
    (torch.Size([3, 8, 6]), torch.Size([3, 5, 8]), torch.Size([8, 6]))
    """
    if not matrices:
        raise ValueError("stack: there must be at least one matrix.")
    first: Matrix = matrices[0]
    others: Sequence[Matrix] = matrices[1:]
    if not hasattr(first, "tensors"):
        raise TypeError(f"stack: {type(first).__name__} is not of a structured class; those have stacks.")
    own = own_names(first)
    for M in others:
        if type(M) is not type(first) or (M.shape, M.options) != (first.shape, first.options):
            raise ValueError(
                f"stack: all matrices must be of one class and shape, with one set of options, got {first!r} "
                f"and {M!r}."
            )
        for name, t in M.tensors.items():
            if t.shape != first.tensors[name].shape:
                shapes = f"{tuple(first.tensors[name].shape)} and {tuple(t.shape)}"
                raise ValueError(f"stack: {name} must have one shape in all matrices, got {shapes}.")
            if name not in own and _differ(t, first.tensors[name]):
                raise ValueError(f"stack: the constant {name} must be the same in all matrices.")
    tensors = {
        name: torch.stack([M.tensors[name] for M in (first, *others)]) if name in own else t
        for name, t in first.tensors.items()
    }
    return first.with_tensors(tensors)


def _differ(a: Tensor, b: Tensor) -> bool:
    """Whether tensors visibly differ in their values."""
    if (
        a is b
        or torch.compiler.is_compiling()
        or are_recorded()
        or has_transforms()
        or a.is_meta
        or b.is_meta
    ):
        return False
    return not torch.equal(a, b)


def own_names(M: Matrix) -> set[str]:
    """The tensors that differ between the matrices of a stack: all but computed constants."""
    learned = M.parameter_shapes(M.out_features, M.in_features, 1, **M.options)
    return {name for name in M.tensors if name in learned or name in M.drawn}


def indexed(M: Any, index: Any) -> Any:
    """The part of a stack at an index of its leading axes."""
    if not M.leading:
        raise TypeError(f"{type(M).__name__}: a single matrix has no leading axes to index.")
    if not torch.empty(M.leading, device="meta")[index].numel():  # raises an error that explains the index
        raise IndexError(f"{type(M).__name__}: the index {index!r} selects no matrix of the stack.")
    own, axes = own_names(M), len(M.leading)
    of_leading = index if isinstance(index, tuple) else (index,)

    def part(t: Tensor) -> Tensor:  # whole in the axes of a matrix, which an Ellipsis must not count
        return t[*of_leading, *[slice(None)] * (t.ndim - axes)]

    return M.with_tensors({name: part(t) if name in own else t for name, t in M.tensors.items()})


def unbound(M: Matrix) -> list[Matrix]:
    """All matrices of a stack, one by one. Unlike indexing, this stacks the gradients only once."""
    own, axes = own_names(M), len(M.leading)
    parts = {name: t.flatten(0, axes - 1).unbind(0) for name, t in M.tensors.items() if name in own}
    common = {name: t for name, t in M.tensors.items() if name not in own}
    count = len(next(iter(parts.values())))
    return [M.with_tensors(common | {name: part[i] for name, part in parts.items()}) for i in range(count)]


def reshaped(M: Matrix, leading: Sequence[int]) -> Matrix:
    """The matrices of a stack in the same order, with other leading axes."""
    own, axes = own_names(M), len(M.leading)
    return M.with_tensors(
        {name: t.reshape(*leading, *t.shape[axes:]) if name in own else t for name, t in M.tensors.items()}
    )


def each(M: Matrix, function: Callable[[Matrix], Tensor]) -> Tensor:
    """The results of a function on every matrix, with the leading axes in front."""
    return torch.stack([function(one) for one in unbound(M)]).unflatten(0, M.leading)


def mapped(M: Matrix, function: Callable[..., Tensor], *x: Tensor) -> Tensor:
    """A function of a matrix, and of vectors (..., b, n), under torch.vmap along every leading axis.

    Along an axis of size 1 the vectors are shared by all matrices.
    """

    def of_tensors(tensors: dict[str, Tensor], *x: Tensor) -> Tensor:
        return function(M.with_tensors(tensors), *x)

    own = own_names(M)
    dims = {name: 0 if name in own else None for name in M.tensors}
    vectors, run = list(x), of_tensors
    for axis in reversed(range(len(M.leading))):
        along: list[int | None] = [0 if v.shape[axis] > 1 else None for v in vectors]
        vectors = [v if d == 0 else v.squeeze(axis) for v, d in zip(vectors, along, strict=True)]
        run = torch.vmap(run, in_dims=(dims, *along))
    return run(dict(M.tensors), *vectors)


def materialize(M: Matrix) -> Tensor:
    """The dense matrices of a stack (..., m, n); differentiable."""
    if "_materialize" in M.at_once:
        return M._materialize()
    return mapped(M, lambda one: one._materialize())


# Vectors.


def multiply(M: Matrix, x: Tensor, *, transposed: bool) -> Tensor:
    """M x, or M^T x, by the class's own product; leading axes of M and of x broadcast as in torch.matmul."""
    if x.ndim == 1:
        return multiply(M, x.unsqueeze(0), transposed=transposed).squeeze(-2)
    lead = _broadcast(M.leading, x.shape[:-2])
    sizes = (1,) * (len(lead) - len(M.leading)) + tuple(M.leading)
    x = x.reshape(*(1,) * (len(lead) - x.ndim + 2), *x.shape)
    # Axes of the vectors alone join the rows.
    folded = [a for a, size in enumerate(sizes) if size == 1]
    kept = [a for a, size in enumerate(sizes) if size != 1]
    rows = [x.shape[a] for a in (*folded, len(lead))]
    x = x.permute(*kept, *folded, len(lead), len(lead) + 1).flatten(len(kept), -2)
    x = x if kept else x.unsqueeze(0)  # a single matrix is a stack of one
    flat = _multiply(reshaped(M, [sizes[a] for a in kept] or [1]), x, transposed)
    y = (flat if kept else flat.squeeze(0)).unflatten(-2, rows)
    order = [*kept, *folded]
    back = [order.index(a) for a in range(len(lead))]
    return y.permute(*back, len(lead), len(lead) + 1)


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """A fast `torch.broadcast_shapes`; torch's takes as long as a product."""
    pairs = [*zip_longest(reversed(a), reversed(b), fillvalue=1)]
    if any(p != q and p != 1 and q != 1 for p, q in pairs):
        torch.broadcast_shapes(a, b)  # raises what is wrong
    return tuple(q if p == 1 else p for p, q in reversed(pairs))


def _multiply(M: Matrix, x: Tensor, transposed: bool) -> Tensor:
    """The product with vectors (..., b, n), whose leading axes have the stack's sizes or size 1."""
    wide, name = M.promoted(), "_rmatmul" if transposed else "_matmul"

    def product(x: Tensor) -> Tensor:
        if name in M.at_once:
            return getattr(wide, name)(x)
        return mapped(wide, lambda one, x: getattr(one, name)(x), x)

    return run_product(product, x, M.dtype, flatten=False)
