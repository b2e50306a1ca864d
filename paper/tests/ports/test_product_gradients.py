"""The gradients and transformations of the port products."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from torchldr.functional.reference import krylov_of_ring_reference
from torchldr_paper.ports import port_matmul, port_rmatmul

pytestmark = pytest.mark.usefixtures("small_leaves")

Operands = tuple[list[Tensor], Tensor, Tensor, Tensor]  # lower, diagonal, upper; V, U, w


def ring(regime: str, n: int, generator: torch.Generator) -> list[Tensor]:
    """Coefficients in float64, absolute row sums at most 1."""
    lower, diagonal, upper = torch.randn(3, n, generator=generator, dtype=torch.float64)
    if regime == "zeros":
        return [torch.zeros(n, dtype=torch.float64) for _ in range(3)]
    if regime in ("Z_1", "Z_-1", "shift"):
        lower, diagonal, upper = torch.ones_like(lower), 0 * diagonal, 0 * upper
        lower[0] = {"Z_1": 1, "Z_-1": -1, "shift": 0}[regime]
        return [lower, diagonal, upper]
    if regime == "random":  # a walk to the right more often than to the left, with signs
        lower, diagonal, upper = 0.7 + 0.2 * lower, 0.1 * diagonal, 0.05 + 0.1 * upper
    else:
        lower, diagonal, upper = 1 + 0.05 * lower, 0.1 * diagonal, 0.1 * upper
    if regime == "line":
        lower[0] = upper[-1] = 0
    stacked = torch.stack((lower, diagonal, upper))
    return list(stacked / stacked.abs().sum(0).max())


REGIMES = ["near shift", "line", "random", "zeros", "shift", "Z_1", "Z_-1"]
SIZES = [(100, 70, 2, 3), (140, 150, 1, 2), (1, 3, 1, 2), (33, 33, 2, 1)]  # n, k, r, b


def operands(regime: str, n: int, k: int, r: int, b: int, dtype: torch.dtype) -> Operands:
    generator = torch.Generator().manual_seed(n + k)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    coefficients = ring(regime, n, generator)
    return (
        [x.to(dtype) for x in coefficients],
        draw(r, n).to(dtype),
        draw(b, n).to(dtype),
        draw(b, r, k).to(dtype),
    )


def references(
    coefficients: list[Tensor], V: Tensor, U: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """K^T u, K w and the gradients of <w, K^T u> in everything, from the definition, in float64."""
    inputs = [x.detach().double().requires_grad_() for x in (*coefficients, V, U, w)]
    K = krylov_of_ring_reference(*inputs[:4], w.shape[-1])
    up = torch.einsum("bn,rnk->brk", inputs[4], K)
    phi = (up * inputs[5]).sum()
    gradients = torch.autograd.grad(phi, inputs)
    return up.detach(), gradients[4], list(gradients)


def assert_near(got: Tensor, want: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
    """To 5e-12 (what closing a ring leaves) or 32 eps, of the largest sum of absolute values."""
    share = 5e-12 if dtype == torch.float64 else 32 * torch.finfo(dtype).eps
    assert got.dtype == dtype
    assert float((got.detach().double() - want).abs().max()) <= share * float(scale.abs().max())


def check_all(found: Operands, dtype: torch.dtype, oversampling: int = 4) -> None:
    """Values and gradients of both products."""
    coefficients, V, U, w = found
    up, down, gradients = references(*found)
    up_scale, down_scale, scales = references([x.abs() for x in coefficients], V.abs(), U.abs(), w.abs())
    inputs = [x.clone().requires_grad_() for x in (*coefficients, V, U)]
    got = port_rmatmul(*inputs, w.shape[-1], oversampling=oversampling)
    assert_near(got, up, up_scale, dtype)
    for x, *y in zip(torch.autograd.grad((got * w).sum(), inputs), gradients[:5], scales[:5], strict=True):
        assert_near(x, *y, dtype)
    inputs = [x.clone().requires_grad_() for x in (*coefficients, V, w)]
    got = port_matmul(*inputs, oversampling=oversampling)
    assert_near(got, down, down_scale, dtype)
    del gradients[4], scales[4]
    for x, *y in zip(torch.autograd.grad((got * U).sum(), inputs), gradients, scales, strict=True):
        assert_near(x, *y, dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("regime", REGIMES)
def test_values_and_gradients(regime: str, size: tuple[int, int, int, int]) -> None:
    for dtype in (torch.float64, torch.float32):
        check_all(operands(regime, *size, dtype), dtype)


def test_autocast_rounds_nothing() -> None:
    """Gradients are taken inside of it too."""
    with torch.autocast("cpu", torch.bfloat16):
        check_all(operands("near shift", 140, 150, 1, 2, torch.float32), torch.float32)


def test_gradients_of_a_long_line() -> None:
    check_all(operands("near shift", 1000, 1000, 1, 2, torch.float64), torch.float64)
    check_all(operands("line", 1000, 300, 2, 1, torch.float64), torch.float64, oversampling=8)


@pytest.mark.parametrize("n", [5, 67])
def test_gradcheck(n: int) -> None:
    coefficients, V, U, w = operands("near shift", n, 4, 1, 2, torch.float64)
    inputs = [x.requires_grad_() for x in (*coefficients, V, U)]
    product = lambda *x: port_rmatmul(*x, 4, oversampling=2)
    assert torch.autograd.gradcheck(product, inputs, fast_mode=n > 5)
    inputs = [*inputs[:4], w.requires_grad_()]
    assert torch.autograd.gradcheck(lambda *x: port_matmul(*x, oversampling=2), inputs, fast_mode=n > 5)


def test_gradients_of_what_is_asked() -> None:
    """A frozen operator, or a frozen input, changes no other gradient; a graph can be used twice."""
    coefficients, V, U, w = operands("near shift", 70, 70, 1, 2, torch.float64)
    _, down, gradients = references(coefficients, V, U, w)
    U.requires_grad_()
    got = port_rmatmul(*coefficients, V, U, 70)
    assert_near(torch.autograd.grad((got * w).sum(), U)[0], down, down, torch.float64)
    V.requires_grad_()
    got = (port_rmatmul(*coefficients, V, U.detach(), 70) * w).sum()
    for retain in (True, False):
        (dV,) = torch.autograd.grad(got, V, retain_graph=retain)
        assert_near(dV, gradients[3], gradients[3], torch.float64)
    got = (port_matmul(*coefficients, V, w) * U.detach()).sum()
    for retain in (True, False):
        (dV,) = torch.autograd.grad(got, V, retain_graph=retain)
        assert_near(dV, gradients[3], gradients[3], torch.float64)
    assert not port_rmatmul(*coefficients, V.detach(), U.detach(), 70).requires_grad


def test_second_derivatives() -> None:
    coefficients, V, U, w = operands("near shift", 3, 4, 1, 1, torch.float64)
    inputs = [x.requires_grad_() for x in (*coefficients, V, U)]
    product = lambda *x: port_rmatmul(*x, 4, oversampling=2)
    assert torch.autograd.gradgradcheck(product, inputs, fast_mode=True)
    inputs = [*inputs[:4], w.requires_grad_()]
    assert torch.autograd.gradgradcheck(lambda *x: port_matmul(*x, oversampling=2), inputs, fast_mode=True)


def test_vmap_and_jvp() -> None:
    coefficients, V, U, w = operands("near shift", 40, 50, 2, 3, torch.float64)
    both = ((lambda *x: port_rmatmul(*x, 50), (*coefficients, V, U)), (port_matmul, (*coefficients, V, w)))
    for product, inputs in both:
        *fixed, x = inputs
        stack = torch.stack((x, 2 * x, x.flip(-1)))
        want = torch.stack([product(*fixed, y) for y in stack])
        torch.testing.assert_close(torch.vmap(lambda y, f=fixed, p=product: p(*f, y))(stack), want)
        lowers = torch.stack((inputs[0], inputs[0] / 2))
        got = torch.vmap(lambda y, f=inputs, p=product: p(y, *f[1:]))(lowers)
        torch.testing.assert_close(got, torch.stack([product(y, *inputs[1:]) for y in lowers]))
        _, tangent = torch.func.jvp(lambda y, f=fixed, p=product: p(*f, y), (x,), (x.flip(-1),))
        torch.testing.assert_close(tangent, product(*fixed, x.flip(-1)))
        per_sample = torch.func.vmap(
            torch.func.grad(lambda v, y, f=fixed, p=product: p(*f[:3], v, y).square().sum()),
            in_dims=(None, 0),
        )(V, stack)
        for y, gradient in zip(stack, per_sample, strict=True):
            v = V.clone().requires_grad_()
            (want,) = torch.autograd.grad(product(*fixed[:3], v, y).square().sum(), v)
            torch.testing.assert_close(gradient, want)


def test_compile() -> None:
    """Traced as one graph of torch operations."""
    coefficients, V, U, w = operands("near shift", 70, 70, 1, 2, torch.float64)
    whole = partial(torch.compile, backend="eager", fullgraph=True)
    got = whole(lambda *x: port_rmatmul(*x, 70))(*coefficients, V, U)
    torch.testing.assert_close(got, port_rmatmul(*coefficients, V, U, 70))
    got = whole(lambda *x: port_matmul(*x))(*coefficients, V, w)
    torch.testing.assert_close(got, port_matmul(*coefficients, V, w))


def test_what_is_refused() -> None:
    x, V = torch.ones(8), torch.ones(1, 8)
    with pytest.raises(ValueError, match=r"port_matmul: w must be \(b, r, k\)"):
        port_matmul(x, x, x, V, torch.ones(1, 2, 8))
    with pytest.raises(ValueError, match=r"got \(1, 1, 8\) in torch.float64"):
        port_matmul(x, x, x, V, torch.ones(1, 1, 8).double())
