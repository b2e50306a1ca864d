"""The contract of a structured class, by transformation, and as cases for pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..core.stacks import stack
from ..matrices import StructuredMatrix
from ..nn import StructuredLinear
from . import checks, transformations
from .checks import BATCHES, SHAPES, cases, forced, has_operators, member, tolerance
from .func import check_func

Class = type[StructuredMatrix]
Shapes = Sequence[tuple[int, int]]


def _values(cls: Class, shapes: Shapes, **options: Any) -> None:
    for i, M in enumerate(cases(cls, shapes, **options)):
        checks.check_values(M, BATCHES[i % len(BATCHES)])
        checks.check_rows(M)


def _each(check: Callable[[StructuredMatrix], None]) -> Callable[..., None]:
    def every_case(cls: Class, shapes: Shapes, **options: Any) -> None:
        for M in cases(cls, shapes, **options):
            check(M)

    return every_case


def _dtypes(cls: Class, shapes: Shapes, **options: Any) -> None:
    for m, n in shapes:
        rank = min(2, m, n) if cls.ranked else None
        M = member(cls, m, n, rank, regime="near one" if has_operators(cls) else None, **options)
        for dtype in (torch.bfloat16, torch.float16):
            checks.check_low_precision(M, dtype)


def _state_dict(cls: Class, shapes: Shapes, **options: Any) -> None:
    for m, n in shapes:
        rank = min(2, m, n) if cls.ranked else None
        checks.check_layer(StructuredLinear(n, m, structure=cls, rank=rank, **options))


def _leading_axes(cls: Class, shapes: Shapes, **options: Any) -> None:
    """Several matrices as one: both products of a stack, values and gradients, against the matrices alone."""
    for m, n in shapes:
        rank = min(2, m, n) if cls.ranked else None
        alone = [[member(cls, m, n, rank, seed=3 * i + j, **options) for j in range(3)] for i in range(2)]
        M = stack([stack(row) for row in alone])
        each = torch.stack([torch.stack([one.to_dense() for one in row]) for row in alone])
        if not (torch.equal(M.to_dense(), each) and torch.equal(M[1, 1].to_dense(), each[1, 1])):
            raise AssertionError(f"{M!r}: the matrices of a stack are not those that it was made of.")
        for what, W, size in (("matmul", each.mT, M.magnitude().mT), ("rmatmul", each, M.magnitude())):
            x = torch.randn(2, 3, 4, W.shape[-2], dtype=torch.float64)
            bound = tolerance(torch.float64, max(m, n)) * (x.abs() @ size).amax((-2, -1), True)
            if what == "matmul":
                right = [
                    [_gradients(one, v) for one, v in zip(*rows, strict=True)]
                    for rows in zip(alone, x, strict=True)
                ]
            for name in forced(M):
                got = getattr(M, what)(x, product=name)
                if got.shape != (x @ W).shape or not ((got - x @ W).abs() <= bound).all():
                    raise AssertionError(f"{M!r}.{what}, {name}: not the products of its matrices.")
                if what == "matmul":
                    _check_stack_gradients(M, right, x, name)


def _gradients(M: StructuredMatrix, x: Tensor, **how: Any) -> dict[str, Tensor]:
    """Those of the sum of squares of a product, in each parameter."""
    names = M.parameter_shapes(M.out_features, M.in_features, M.rank or 1, **M.options)
    leaves = {name: M.tensors[name].detach().clone().requires_grad_() for name in names}
    y = M.with_tensors({**M.tensors, **leaves}).matmul(x, **how).square().sum()
    found = torch.autograd.grad(y, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def _check_stack_gradients(
    M: StructuredMatrix, right: Sequence[Sequence[Mapping[str, Tensor]]], x: Tensor, name: str
) -> None:
    together = _gradients(M, x, product=name)
    for i, j in product(range(len(right)), range(len(right[0]))):
        for of, theirs in right[i][j].items():
            scale = theirs.abs().max().item() if theirs.numel() else 1.0
            if not torch.allclose(together[of][i, j], theirs, rtol=1e-7, atol=1e-9 * max(scale, 1.0)):
                raise AssertionError(f"{M!r}.matmul, {name}: another gradient of {of}.")


def _without_shapes(check: Callable[..., None]) -> Callable[..., None]:
    return lambda cls, shapes, **options: check(cls, **options)


EAGER: Mapping[str, Callable[..., None]] = {
    "values": _values,
    "transpose": _each(checks.dot_test),
    "gradients": _each(checks.check_gradients),
    "algebra": _each(checks.check_algebra),
    "displacement": _each(checks.check_displacement),
    "dtypes": _dtypes,
    "state_dict": _state_dict,
}
"""The checks that need eager mode alone: functions of the class, shapes and the class's options."""
TRANSFORMATIONS: Mapping[str, Callable[..., None]] = {
    **EAGER,
    "leading axes": _leading_axes,
    **{
        name: _without_shapes(getattr(transformations, f"check_{name}"))
        for name in ("derivatives", "functional_call", "compile", "export")
    },
    "func": _without_shapes(check_func),
}
"""All checks, by what they hold the class to."""


def check_structure(cls: Class, shapes: Shapes = SHAPES, **options: Any) -> None:
    """Hold a class to the contract in one call: values, transpose, gradients, algebra, dtypes, layer.

    Args:
        cls: the structured class.
        shapes: (out_features, in_features) to try.
        **options: the class's own options.

    Raises:
        AssertionError: with a sentence that says what failed, for which matrix and by how much.
    """
    for check in EAGER.values():
        check(cls, shapes, **options)


def contract(
    cls: Class, shapes: Shapes = SHAPES, *, without: Sequence[str] = (), **options: Any
) -> Callable[[str], None]:
    """The contract of a class as a test function for pytest, a case for each transformation.

    Args:
        cls: the structured class.
        shapes: (out_features, in_features) to try.
        without: transformations to leave out, by their names in `TRANSFORMATIONS`.
        **options: the class's own options.

    Two lines of a test file, where pytest finds the name:

        from torchldr.testing import contract
        test_contract = contract(MyClass)
    """
    import pytest

    if unknown := set(without) - TRANSFORMATIONS.keys():
        known = ", ".join(TRANSFORMATIONS)
        raise ValueError(f"contract: unknown transformation {min(unknown)!r}. Known: {known}.")

    @pytest.mark.parametrize("transformation", [name for name in TRANSFORMATIONS if name not in without])
    def test_contract(transformation: str) -> None:
        TRANSFORMATIONS[transformation](cls, shapes, **options)

    return test_contract
