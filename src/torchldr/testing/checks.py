"""One matrix or layer against its definition.

The oracle is the class's own `to_dense`, its definition, in float64. Tolerances are computed and never
tuned: 50 eps (1 + log2 n) times the largest entry of |factors| |x|, the absolute values of the factors
that define the class, multiplied out. Gradients are held to the same bound with the adjoint evaluated
on absolute values. Each function raises AssertionError with a sentence that says what failed.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..matrices import StructuredMatrix
from ..nn import StructuredLinear

SHAPES = ((1, 1), (1, 3), (5, 1), (2, 2), (3, 5), (16, 16), (16, 5), (64, 129), (129, 64))
"""(out_features, in_features) that the suite tries."""
BATCHES = ((), (0,), (3,), (2, 3), (2, 0, 3))
"""Leading axes of inputs that the suite tries."""

REGIMES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "ones": lambda s, g: torch.ones_like(s),
    "near one": lambda s, g: 1 + 0.01 * _normal(s, g),
    "uniform": lambda s, g: 0.5 + _uniform(s, g),
    "signs": lambda s, g: _normal(s, g).sign(),
    "0.8": lambda s, g: torch.full_like(s, 0.8),
    "1.05": lambda s, g: torch.full_like(s, 1.05),
    "tiny": lambda s, g: 1e-4 * _uniform(s, g),
    "zeros": lambda s, g: (1 + 0.1 * _normal(s, g)) * (_uniform(s, g) > 0.1),
}
"""How a regime draws a subdiagonal: the operators that a product must survive, by name."""
NEAR_ONE = ("ones", "near one", "signs")
"""The regimes in which operators stay near shifts."""


def _normal(like: Tensor, g: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=torch.float64, generator=g).to(like.dtype)


def _uniform(like: Tensor, g: torch.Generator) -> Tensor:
    return torch.rand(like.shape, dtype=torch.float64, generator=g).to(like.dtype)


def tolerance(dtype: torch.dtype, n: int) -> float:
    """50 eps (1 + log2 n): how far a product of this size may be off, relative to |factors| |x|."""
    return 50 * torch.finfo(dtype).eps * (1 + math.log2(n))


def has_operators(cls: type[StructuredMatrix]) -> bool:
    """Whether the class learns subdiagonals, which the regimes set."""
    names = cls.parameter_shapes(4, 4, 1, **cls.check_options({}))
    return any(name.startswith("subdiagonal") for name in names)


def member(
    cls: type[StructuredMatrix],
    out_features: int,
    in_features: int,
    rank: int | None = None,
    *,
    regime: str | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **options: Any,
) -> StructuredMatrix:
    """A random member of the class, its operators in the given regime, corners on.

    The subdiagonals are drawn by the regime; other diagonals and the corners of a tridiagonal operator
    are at most a tenth of it. Generators are scaled so that the entries of M are of order one.
    """
    g = torch.Generator().manual_seed(seed)
    M = cls.random(out_features, in_features, rank, dtype=torch.float64, generator=g, **options)
    if regime is not None:
        for name, t in M.tensors.items():
            if name.startswith("subdiagonal"):
                t.copy_(REGIMES[regime](t, g))
            elif name.startswith("corner_"):
                t.copy_(2 * _uniform(t, g) - 1)
            elif name.startswith(("diagonal", "superdiagonal", "corners")):
                level = REGIMES[regime](t, g).abs()
                t.copy_(0.1 * level * (2 * _uniform(t, g) - 1))
        size = M.magnitude().max()
        if size > 0 and size.isfinite():
            for name in cls.scaled:
                M.tensors[name].div_(size ** (1 / len(cls.scaled)))
    return M.to(dtype)


def fits(M: StructuredMatrix, dtype: torch.dtype) -> bool:
    """Whether the factors of M and their products are far from overflow in `dtype`."""
    limit = torch.finfo(dtype).max ** 0.5 / 1e3
    factors = [f for term in M.double().factors() for f in term]
    return all(bool(f.isfinite().all() and f.abs().max() < limit) for f in factors)


def _bounded(error: Tensor, size: Tensor, dtype: torch.dtype, n: int, what: str) -> None:
    if error.numel() == 0:
        return
    bound = tolerance(dtype, n) * size.max()
    bad = ~(error <= bound)
    if bad.any():
        excess = (error / bound.clamp(min=torch.finfo(torch.float64).tiny))[bad].max().item()
        raise AssertionError(f"{what}: the error is {excess:.3g} times its bound.")


def forced(M: StructuredMatrix) -> tuple[str, ...]:
    """The products that a matrix has."""
    return ("fast", "dense") if M.structured else ("dense",)


def check_values(M: StructuredMatrix, batch: Sequence[int] = (3,), seed: int = 0) -> None:
    """Both products, and the transposed ones, against `to_dense` in float64.

    The vectors are contiguous in memory, and once more strided.
    """
    g = torch.Generator().manual_seed(seed)
    W, size = M.double().to_dense(), M.double().magnitude()
    n = max(M.shape)
    for what, product, transposed in _products(M):
        matrix, bound = (W, size) if transposed else (W.mT, size.mT)
        x = torch.randn(*batch, matrix.shape[0], dtype=torch.float64, generator=g).to(M.device, M.dtype)
        for given, how in ((x, what), (torch.stack((x, -x), -1)[..., 0], f"{what}, not contiguous")):
            y = product(given)
            if y.shape != (*batch, matrix.shape[1]) or y.dtype != M.dtype:
                raise AssertionError(
                    f"{M!r}.{how}: got {tuple(y.shape)}, {y.dtype} for {tuple(x.shape)}, {x.dtype}."
                )
            error = (y.double() - x.double() @ matrix).abs()
            _bounded(error, x.double().abs() @ bound, M.dtype, n, f"{M!r}.{how}")
            if y.numel() and y.untyped_storage().data_ptr() == given.untyped_storage().data_ptr():
                raise AssertionError(f"{M!r}.{how}: the result lies in the memory of the input.")


def _products(M: StructuredMatrix) -> Iterator[tuple[str, Callable[[Tensor], Tensor], bool]]:
    """What, the product, and whether it is transposed."""
    for name in forced(M):
        yield f"matmul, {name}", partial(M.matmul, product=name), False
        yield f"rmatmul, {name}", partial(M.rmatmul, product=name), True


def check_rows(M: StructuredMatrix, seed: int = 0) -> None:
    """Both products: a row's result depends on that row alone, whatever stands in the others."""
    g = torch.Generator().manual_seed(seed)
    rows = [torch.nan, torch.inf, 1e30, 1e-30, 1.0]
    magnitude = M.double().magnitude()
    for what, product, transposed in _products(M):
        features = M.out_features if transposed else M.in_features
        x = torch.randn(len(rows), features, dtype=torch.float64, generator=g).to(M.device, M.dtype)
        together = product(x * torch.tensor(rows, dtype=M.dtype, device=M.device).unsqueeze(-1))
        size = (x.double().abs() @ (magnitude if transposed else magnitude.mT)).max()
        alone = product(x)
        for i, factor in enumerate(rows[2:], start=2):
            error = (together[i].double() / factor - alone[i].double()).abs()
            _bounded(error, size.expand_as(error), M.dtype, max(M.shape), f"{M!r}.{what}, row {i}")


def _with_leaves(
    M: StructuredMatrix, learned: Mapping[str, Tensor]
) -> tuple[StructuredMatrix, dict[str, Tensor]]:
    leaves = {name: t.detach().clone().requires_grad_() for name, t in learned.items()}
    return M.with_tensors({**M.tensors, **leaves}), leaves


def _gradients(
    product: Callable[[Tensor], Tensor], leaves: dict[str, Tensor], x: Tensor, y: Tensor, again: bool = False
) -> dict[str, Tensor]:
    """The gradients of <y, product(x)>; `again` where another product goes through the same matrix."""
    x = x.detach().clone().requires_grad_()
    inputs = [*leaves.values(), x]
    found = torch.autograd.grad(
        product(x), inputs, y, retain_graph=again, allow_unused=True, materialize_grads=True
    )
    return dict(zip([*leaves, "input"], found, strict=True))


def _dense_product(W: Tensor, what: str) -> Callable[[Tensor], Tensor]:
    return lambda x: x @ (W.mT if what == "matmul" else W)


def check_gradients(M: StructuredMatrix, batch: int = 3, seed: int = 0) -> None:
    """Gradients of both products in the input and every parameter, against those of `to_dense`."""
    g = torch.Generator().manual_seed(seed)
    names = M.parameter_shapes(M.out_features, M.in_features, M.rank or 1, **M.options)
    D = M.double()
    exact, exact_leaves = _with_leaves(D, {k: D.tensors[k] for k in names})
    above, above_leaves = _with_leaves(D, {k: D.tensors[k].abs() for k in names})
    W, magnitude = exact.to_dense(), above.magnitude()
    for what in ("matmul", "rmatmul"):
        sizes = (M.in_features, M.out_features) if what == "matmul" else (M.out_features, M.in_features)
        x, y = (torch.randn(batch, s, dtype=torch.float64, generator=g).to(M.device, M.dtype) for s in sizes)
        dense, again = _dense_product(W, what), what == "matmul"
        want = _gradients(dense, exact_leaves, x.double(), y.double(), again)
        dense = _dense_product(magnitude, what)
        size = _gradients(dense, above_leaves, x.double().abs(), y.double().abs(), again)
        # Where a class divides parameters by their own sum, sizes cancel as well: none counts as nothing.
        least = 0.01 * max(float(t.abs().max()) for t in size.values() if t.numel())
        for name in forced(M):
            ours, leaves = _with_leaves(M, {k: M.tensors[k] for k in names})
            found = _gradients(partial(getattr(ours, what), product=name), leaves, x, y)
            for of, gradient in found.items():
                where = f"{M!r}.{what}, {name}, gradient of {of}"
                if gradient.shape != want[of].shape or gradient.dtype != M.dtype:
                    raise AssertionError(f"{where}: wrong shape or dtype.")
                error = (gradient.double() - want[of]).abs()
                _bounded(error, size[of].abs().clamp(min=least), M.dtype, max(M.shape), where)


def dot_test(M: StructuredMatrix, seed: int = 0) -> None:
    """<M x, y> = <x, M^T y> by both products: matmul and rmatmul are each other's transpose."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(M.in_features, dtype=torch.float64, generator=g).to(M.device, M.dtype)
    y = torch.randn(M.out_features, dtype=torch.float64, generator=g).to(M.device, M.dtype)
    size = y.double().abs() @ M.double().magnitude() @ x.double().abs()
    for name in forced(M):
        left = torch.dot(M.matmul(x, product=name).double(), y.double())
        right = torch.dot(x.double(), M.rmatmul(y, product=name).double())
        _bounded((left - right).abs(), 2 * size, M.dtype, max(M.shape), f"dot test of {M!r}, {name}")


def check_algebra(M: StructuredMatrix) -> None:
    """M^T, 2 M and M + M by the rules of the class: 2 M requires that M is linear in each of `scaled`."""
    M = M.double()
    W, size = M.to_dense(), M.magnitude()
    doubled = [(f"2 M by {name}", _times_two(M, name), 2 * W, 2 * size) for name in M.scaled]
    for what, N, want, bound in (
        ("M.T", M.T, W.mT, size.mT), ("M + M", M + M, 2 * W, 2 * size), *doubled,
    ):  # fmt: skip
        _bounded((N.to_dense() - want).abs(), bound, M.dtype, max(M.shape), f"{what} of {M!r}")


def _times_two(M: StructuredMatrix, name: str) -> StructuredMatrix:
    return M.with_tensors({**M.tensors, name: 2 * M.tensors[name]})


def check_displacement(M: StructuredMatrix) -> None:
    """The Stein form: M - A M C^T = G^T H - A^k (G^T H) (C^k)^T, where the class has operators."""
    D = M.double()
    operators = D.operators()
    if operators is None:
        return
    A, C = operators
    k = D.krylov_length()
    R = D.factors()
    start = sum((left[:, :1] @ right[:1] for left, right in R), torch.zeros(1, dtype=torch.float64))
    power = torch.linalg.matrix_power
    want = start - power(A, k) @ start @ power(C, k).mT
    got = D.displacement()
    magnitude = D.magnitude()
    size = magnitude + A.abs() @ magnitude @ C.abs().mT + start.abs()
    size = size + power(A.abs(), k) @ start.abs() @ power(C.abs(), k).mT
    _bounded((got - want).abs(), size, torch.float64, max(M.shape), f"displacement of {M!r}")


def check_low_precision(M: StructuredMatrix, dtype: torch.dtype, seed: int = 0) -> None:
    """In bfloat16 or half: at most twice as wrong as the dense product in that dtype, transposed too."""
    M = M.to(dtype)
    g = torch.Generator().manual_seed(seed)
    W = M.double().to_dense()
    for what, product, matrix in (("matmul", M.matmul, W), ("rmatmul", M.rmatmul, W.mT)):
        x = torch.randn(16, matrix.shape[1], dtype=torch.float64, generator=g).to(M.device, dtype)
        exact = x.double() @ matrix.mT
        dense = (torch.nn.functional.linear(x, matrix.to(dtype)).double() - exact).norm()
        ours = (product(x).double() - exact).norm()
        if not ours <= 2 * dense + torch.finfo(dtype).tiny:
            raise AssertionError(
                f"{M!r}.{what}: in {dtype} {float(ours / dense):.3g} times as wrong as the dense product."
            )


def check_layer(layer: StructuredLinear, seed: int = 0) -> None:
    """A layer of the class: products agree, copies and state_dict round trips are bit for bit."""
    g = torch.Generator().manual_seed(seed)
    M = layer.matrix()
    x = torch.randn(3, layer.in_features, dtype=torch.float64, generator=g).to(M.device, M.dtype)
    y = layer(x)
    M = M.double()
    size = tolerance(x.dtype, max(M.shape)) * ((x.double().abs() @ M.magnitude().mT).max() + 1)
    bias = 0 if layer.bias is None else layer.bias.detach().double()
    exact = x.double() @ M.to_dense().detach().mT + bias
    was, choice = layer.training, layer.product
    layer.eval()
    with torch.no_grad():
        for product in ("fast", "dense", "auto"):
            layer.product = product
            if not (layer(x).double() - exact).abs().max() <= size:
                raise AssertionError(f"{layer!r}: the product {product!r} gives other numbers.")
    layer.product = choice
    layer.train(was)
    if not torch.equal(copy.deepcopy(layer)(x), y):
        raise AssertionError(f"{layer!r}: a deep copy gives another product.")
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(layer)
    other.reset_parameters()
    other.load_state_dict(torch.load(file, weights_only=True))
    if not torch.equal(other(x), y):
        raise AssertionError(f"{layer!r}: the state_dict does not restore the product bit for bit.")


def cases(
    cls: type[StructuredMatrix],
    shapes: Sequence[tuple[int, int]] = SHAPES,
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.float64),
    **options: Any,
) -> Iterator[StructuredMatrix]:
    """Members of the class over shapes, ranks, dtypes and regimes."""
    regimes: Sequence[str | None] = list(REGIMES) if has_operators(cls) else [None]
    for i, (m, n) in enumerate(shapes):
        for rank in sorted({1, min(4, m, n)}) if cls.ranked else [None]:
            for regime in regimes:
                wide = member(cls, m, n, rank, regime=regime, seed=i, **options)
                for dtype in dtypes:
                    M = wide.to(dtype)
                    if fits(M, dtype):
                        yield M
