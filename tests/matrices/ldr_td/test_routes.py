"""LDR-TD by ports: products that are right for every pair of operators, and choices that are not shared."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import torchldr
from torchldr.functional.port import acceptance
from torchldr.matrices import LDRTridiagonal
from torchldr.matrices.ldr_td import routes
from torchldr.nn.plan import Plan


def opposing(n: int, profile: Tensor, **options: str) -> LDRTridiagonal:
    """The subdiagonal of C is the inverse of that of A and G = H = e_0: the identity."""
    e, zeros = torch.zeros(1, n), torch.zeros(n)
    e[0, 0] = 1
    tensors = {"G": e, "H": e.clone(), "subdiagonal_A": profile, "subdiagonal_C": 1 / profile}
    for side in "AC":
        tensors |= {f"diagonal_{side}": zeros.clone(), f"superdiagonal_{side}": zeros[1:].clone()}
        tensors |= {f"corners_{side}": zeros[:2].clone()}
    return LDRTridiagonal(n, n, **tensors, **options)


class Kept:
    """The product of a matrix that is kept, as a layer in inference has it, without the dense matrix."""

    def __init__(self, M: LDRTridiagonal) -> None:
        self.M, self.plan = M, Plan(M, "fast")

    def __call__(self, x: Tensor) -> Tensor:
        return self.plan(x, None)

    def why_not(self, x: Tensor) -> str | None:
        """Why x is not multiplied by ports."""
        ports = next(route for route in self.M.ROUTES if route.name == "ports")
        return ports.why_not(self.plan.matrix, self.M.call(x, kept=True))


def by_stencil(M: LDRTridiagonal, x: Tensor) -> Tensor:
    """M x in float64."""
    with torch.no_grad():
        return LDRTridiagonal(*M.shape, **M.double().tensors, product="stencil").matmul(x.double())


@pytest.mark.parametrize("profile", ["steps", "sine"])
def test_opposing_operators_that_make_the_identity(profile: str) -> None:
    """|A^t g| rises and falls while |C^t h| does the opposite."""
    n = 2048
    at = torch.arange(n - 1)
    s = torch.where(at < n // 2, 1.02, 1 / 1.02)
    if profile == "sine":
        s = (0.02 * (2 * math.pi * at / n).sin()).exp()
    M = opposing(n, s, product="port")
    x = torch.randn(2, n, requires_grad=True)
    want = by_stencil(M, x)
    assert (want - x).norm() <= 1e-3 * x.norm()
    y = M.matmul(x)
    (dx,) = torch.autograd.grad(y, x, x.detach())
    with torch.no_grad():
        for got in (y, dx, Kept(M)(x), M.rmatmul(x)):  # the matrix is its own transpose
            assert (got - want).norm() <= 1e-5 * want.norm()


def test_a_random_matrix_of_thousands_of_features() -> None:
    M = LDRTridiagonal.random(2048, 2048, 1, generator=torch.Generator().manual_seed(0), product="port")
    x, kept = torch.randn(2, 2048), Kept(M)
    want = by_stencil(M, x)
    for got in (M.matmul(x), kept(x)):
        assert (got - want).norm() <= 1e-5 * want.norm()


@pytest.mark.parametrize("part", ["diagonal_A", "superdiagonal_C", "corners_A"])
def test_matrices_that_share_tensors_do_not_share_a_choice(part: str) -> None:
    """Two matrices that differ in one tensor alone, one after the other."""
    n = 300
    M = LDRTridiagonal.random(n, n, 1, product="port")
    other = LDRTridiagonal(n, n, **(M.tensors | {part: M.tensors[part] + 0.3}), product="port")
    x = torch.randn(2, n)
    for matrix in (M, other):
        want = x.double() @ matrix.double().to_dense().mT
        for got in (matrix.matmul(x), Kept(matrix)(x)):
            assert (got - want).norm() <= 1e-5 * want.norm()


def test_edits_are_seen_by_the_next_kept_product() -> None:
    """Of a matrix and of a converted copy."""
    n = 300
    M = LDRTridiagonal.random(n, n, 1, product="port")
    x = torch.randn(2, n, dtype=torch.float64)
    Kept(M)(x.float())
    for matrix in (M, M.double()):
        Kept(matrix)(x.to(matrix.dtype))
        matrix.tensors["superdiagonal_A"].add_(0.2)
        want = x @ matrix.double().to_dense().mT
        for got in (matrix.matmul(x.to(matrix.dtype)), Kept(matrix)(x.to(matrix.dtype))):
            assert (got - want).norm() <= (1e-5 if matrix is M else 1e-9) * want.norm()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("shape", [(200, 200), (140, 400), (300, 80)])
def test_kept_products_by_ports(shape: tuple[int, int], normalize: bool) -> None:
    M = LDRTridiagonal.random(*shape, 2, product="port", normalize=normalize)
    W = M.double().to_dense()
    kept, x = Kept(M), torch.randn(3, shape[1])
    assert kept.why_not(x) is None
    want = x.double() @ W.mT
    assert kept(x).dtype == torch.float32
    assert (kept(x) - want).norm() <= 1e-6 * want.norm()
    with torch.inference_mode():
        assert torch.equal(kept(x), Kept(M)(x))


def test_rows_do_not_hear_each_other() -> None:
    M = LDRTridiagonal.random(200, 200, 2, product="port")
    kept, x = Kept(M), torch.randn(6, 200)
    alone = torch.cat([kept(row.unsqueeze(0)) for row in x])
    rounding = 1e-6 * float(alone.abs().max())  # of an entry whose terms cancel
    for wild in (math.nan, math.inf, 1e30, 1e-30):
        mixed = x.clone()
        mixed[::2] *= wild
        got = kept(mixed)
        assert kept.why_not(mixed) is None
        torch.testing.assert_close(got[1::2], alone[1::2], rtol=1e-6, atol=0)
        if math.isfinite(wild):
            torch.testing.assert_close(got[::2] / wild, alone[::2], rtol=1e-5, atol=rounding)


def test_what_takes_the_stencil_and_why() -> None:
    M = LDRTridiagonal.random(100, 100, 1, product="port")
    x = torch.randn(2, 100)
    kept = Kept(M)
    assert kept.why_not(x) is None
    assert "torch.float64" in str(Kept(M.double()).why_not(x.double()))
    assert kept.why_not(x.clone().requires_grad_()) == "a gradient is needed"
    assert kept.why_not(x[:0]) == "there are no numbers to multiply"
    assert "'stencil'" in str(Kept(LDRTridiagonal(100, 100, **M.tensors, product="stencil")).why_not(x))
    assert "fewer than" in str(Kept(LDRTridiagonal(100, 100, **M.tensors)).why_not(x))
    torch.testing.assert_close(torch.func.vmap(kept)(x.unsqueeze(1))[:, 0], kept(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.func.jvp(kept, (x,), (x,))[1], kept(x), rtol=1e-4, atol=1e-5)


def test_what_rings_takes_the_stencil() -> None:
    n = 600
    M = LDRTridiagonal.random(n, n, 1, product="port")
    for side in "AC":
        M.tensors[f"subdiagonal_{side}"].fill_(0.5)
        M.tensors[f"superdiagonal_{side}"].fill_(0.5)
        M.tensors[f"diagonal_{side}"].zero_()
    x, kept = torch.randn(2, n), Kept(M)
    assert "|factors||x|" in str(kept.why_not(x))
    assert (kept(x) - by_stencil(M, x)).norm() <= 1e-5 * by_stencil(M, x).norm()


def test_auto_judges_nothing_where_the_stencil_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "judge", lambda *args: pytest.fail("judged"))
    M = LDRTridiagonal.random(256, 256, 1)
    Kept(M)(torch.randn(2, 256))
    monkeypatch.setattr(routes, "FROM", {"cpu": 64})
    Kept(M)(torch.randn(2, 256))  # it could be judged now, but the stencil costs less


def test_a_layer_in_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports are kept until a parameter changes; training and gradients take the stencil."""
    judged: list[acceptance.Verdict] = []
    judge = acceptance.judge
    monkeypatch.setattr(acceptance, "judge", lambda *args: judged.append(judge(*args)) or judged[-1])
    layer = torchldr.StructuredLinear(100, 120, structure="ldr_td", rank=2, product="port")
    layer.plan = "fast"
    x = torch.randn(3, 100)
    layer(x).sum().backward()
    layer.eval()
    assert not judged
    for changed in (False, True):
        with torch.no_grad():
            if changed:
                layer.diagonal_A.add_(0.05)
            want = x.double() @ layer.matrix().double().to_dense().mT + layer.bias.double()
            for _ in range(3):
                assert (layer(x) - want).norm() <= 1e-6 * want.norm()
        assert len(judged) == 1 + changed
        assert judged[-1].ports is not None
    layer.requires_grad_(False)
    (got,) = torch.autograd.grad(layer(x.requires_grad_()).sum(), x)
    exact = layer.matrix().double().to_dense().sum(0).expand(3, -1)
    assert (got - exact).norm() <= 1e-5 * exact.norm()


def test_the_option() -> None:
    with pytest.raises(ValueError, match="product must be one of auto, stencil, port, got 'tree'"):
        torchldr.StructuredLinear(8, 8, structure="ldr_td", product="tree")
