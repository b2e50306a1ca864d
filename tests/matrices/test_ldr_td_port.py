"""LDR-TD by ports: the choice, how it is kept and revised, plans, and what is said about it."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import Tensor

import torchldr
from torchldr.functional import port_choice
from torchldr.functional.port import port_matmul, port_rmatmul
from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.matrices import port_keeper
from torchldr.nn import plans

pytestmark = pytest.mark.usefixtures("small_leaves")

SHAPES = [(100, 100), (70, 200), (150, 40)]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(port_keeper, "_kept", {})


def small_crossover(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` as if thousands of features were 64, and the port product cost nothing."""
    monkeypatch.setattr(port_keeper, "FROM", {"cpu": 64, "cuda": 64})
    monkeypatch.setattr(port_choice, "port_is_cheaper", lambda *args: True)


def way(M: torchldr.LDRTridiagonal) -> port_keeper.Way | None:
    return port_keeper.keeper(M.tensors, M.options).way


def near_shift(n: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    """Subdiagonal 1 +- .05, others and both corners +- .1."""
    generator = torch.Generator().manual_seed(seed)
    lower, diagonal, upper = 2 * torch.rand(3, n, generator=generator, dtype=torch.float64) - 1
    V = torch.randn(1, n, generator=generator, dtype=torch.float64)
    lower[0] = (0.1 * lower[0] - 1) * 20  # a corner like the others
    return tuple(x.to(dtype) for x in (1 + 0.05 * lower, 0.1 * diagonal, 0.1 * upper, V))


def walk(n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Sub = super = 1/2: rings without loss."""
    half, zeros = torch.full((n,), 0.5, dtype=dtype), torch.zeros(n, dtype=dtype)
    return half, zeros, half.clone(), torch.ones(1, n, dtype=dtype)


# The choice.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.3])
def test_scale_and_oversampling_of_a_near_shift(dtype: torch.dtype, factor: float) -> None:
    """Shrinking operators need no scale; growing ones are divided by their growth; products are right."""
    n = 700
    lower, diagonal, upper, V = near_shift(n, dtype)
    lower, diagonal, upper = lower * factor, diagonal * factor, upper * factor
    choice = port_choice.choose_port(lower, diagonal, upper, V, n)
    assert choice.accepted
    assert choice.trial.oversampling <= 4
    if factor == 1.3:
        assert abs(choice.log_scale - 0.2624) < 0.02
    if factor == 0.7:
        assert choice.log_scale == 0
    gamma = torch.tensor(choice.log_scale, dtype=torch.float64).exp()
    scaled = [(x.double() / gamma).to(dtype) for x in (lower, diagonal, upper)]
    K = krylov_of_ring_reference(*(x.double() for x in scaled), V[0].double(), n)
    size = K.norm() / n**0.5
    most = 4 * port_choice.tolerance(dtype, n) * size
    c = choice.trial.oversampling
    U = torch.randn(2, n, generator=torch.Generator().manual_seed(1), dtype=dtype)
    error = port_rmatmul(*scaled, V, U, n, oversampling=c)[:, 0].double() - U.double() @ K
    assert error.square().mean().sqrt() <= most
    w = U.unsqueeze(1)
    error = port_matmul(*scaled, V, w, oversampling=c).double() - U.double() @ K.mT
    assert error.square().mean().sqrt() <= most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised_near_shifts_are_accepted(dtype: torch.dtype) -> None:
    """Those of the speed benchmark, over their row sum, and raw ones by their growth."""
    n = 8192
    lower, diagonal, upper, V = near_shift(n)
    row_sum = (lower.abs() + diagonal.abs() + upper.abs()).max()
    normalised = [(x / row_sum).to(dtype) for x in (lower, diagonal, upper)]
    choice = port_choice.choose_port(*normalised, V.to(dtype), n)
    assert choice.accepted
    assert choice.trial.oversampling <= 4
    assert choice.log_scale == 0
    choice = port_choice.choose_port(*(x.to(dtype) for x in (lower, diagonal, upper, V)), n, most=4)
    assert choice.accepted
    assert choice.log_scale > 0


def test_the_growth_of_powers() -> None:
    n = 600
    lower, diagonal, upper, V = near_shift(n)
    K = krylov_of_ring_reference(lower, diagonal, upper, V[0], n)
    first, last = K[:, : n // 8].norm(), K[:, -n // 8 :].norm()
    want = float((last / first).log()) / (n * 7 / 8)
    assert abs(float(port_choice.growth_rate(lower, diagonal, upper, V, n)) - want) < 3 / n
    for factor in (0.2, 5.0):
        scaled = [x * factor for x in (lower, diagonal, upper)]
        found = float(port_choice.growth_rate(*scaled, V, n))
        assert abs(found - want - torch.tensor(factor).log().item()) < 5 / n
    zeros = torch.zeros(n, dtype=torch.float64)
    assert port_choice.growth_rate(zeros, zeros, zeros, V, n) == 0


def test_what_rings_is_refused() -> None:
    choice = port_choice.choose_port(*walk(300), 300, most=8)
    assert not choice.accepted
    assert choice.trial.oversampling == 8
    assert choice.trial.truncation > 1e-3
    assert choice.trial.tail > 0.1


def test_oversampling_rises_with_memory() -> None:
    """Superdiagonal 1/4 against 3/4."""
    n = 256
    lower, zeros = torch.full((n,), 0.75, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    V = torch.randn(1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    upper = 1 - lower
    lower[0] = upper[-1] = 0
    choice = port_choice.choose_port(lower, zeros, upper, V, n)
    assert choice.accepted
    assert choice.trial.oversampling > 4
    single = port_choice.choose_port(lower, zeros, upper, V, n, torch.float32)
    assert single.trial.oversampling < choice.trial.oversampling


def test_scales_of_a_pair() -> None:
    """Growth is balanced, and only what both grow by is taken away."""
    rate = torch.tensor
    assert port_choice.balanced(rate(-0.1), rate(-0.1), 1000) == (0, 0)
    A, C = port_choice.balanced(rate(-0.1), rate(0.1), 1000)
    torch.testing.assert_close(torch.stack((A, C)), rate([-0.1, 0.1]))
    A, C = port_choice.balanced(rate(0.1), rate(0.3), 1000)
    torch.testing.assert_close(torch.stack((A, C)), rate([0.1, 0.3]))
    assert port_choice.balanced(rate(0.0009), rate(-0.0009), 1000) == (0, 0)


def test_costs() -> None:
    assert port_choice.port_is_cheaper((16384, 16384), 1, 1, (4, 4), "cpu")
    assert not port_choice.port_is_cheaper((256, 256), 1, 1, (2, 2), "cpu")
    assert not port_choice.port_is_cheaper((16384, 16384), 1, 1, (64, 64), "cpu")
    assert not port_choice.port_is_cheaper((65536, 64), 1, 1, (2, 2), "cpu")  # few columns


# Products.


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_and_gradients(shape: tuple[int, int], dtype: torch.dtype, normalize: bool) -> None:
    m, n = shape
    generator = torch.Generator().manual_seed(m)
    M = torchldr.LDRTridiagonal.random(
        m, n, 2, dtype=dtype, generator=generator, product="port", normalize=normalize
    )
    W = M.double().to_dense()
    x, y = (torch.randn(3, size, generator=generator, dtype=dtype) for size in (n, m))
    eps = 200 * torch.finfo(dtype).eps
    for got, want in ((M.matmul(x), x.double() @ W.mT), (M.rmatmul(y), y.double() @ W)):
        assert (got - want).norm() <= eps * want.norm()
    assert (M.prepare()(x) - x.double() @ W.mT).norm() <= eps * (x.double() @ W.mT).norm()
    assert way(M) is not None
    leaves = {name: t.clone().requires_grad_() for name, t in M.tensors.items()}
    exact = {name: t.double().clone().requires_grad_() for name, t in M.tensors.items()}
    x = x.requires_grad_()
    got = torch.autograd.grad(
        M.unchecked(m, n, leaves, M.options)._matmul(x).square().sum(), [*leaves.values(), x]
    )
    slow = M.unchecked(m, n, exact, M.options).to_dense()
    wide = x.detach().double().requires_grad_()
    want = torch.autograd.grad((wide @ slow.mT).square().sum(), [*exact.values(), wide])
    for name, a, b in zip((*leaves, "x"), got, want, strict=True):
        assert (a - b).norm() <= 20 * eps * b.norm() + 1e-30, name


def test_growth_of_one_side_is_balanced_by_the_other() -> None:
    """A shrinks and C grows, some e^80 in k steps each: alone either would drown in float32."""
    n, generator = 400, torch.Generator().manual_seed(0)
    M = torchldr.LDRTridiagonal.random(n, n, 1, generator=generator, product="port")
    for name, t in M.tensors.items():
        if name not in "GH":
            t.mul_(0.8 if name.endswith("A") else 1.25)
    W = M.double().to_dense()
    x = torch.randn(2, n, generator=generator)
    want = x.double() @ W.mT
    assert (M.matmul(x) - want).norm() <= 1e-4 * want.norm()
    found = way(M)
    assert found is not None
    assert found.scales[0] < -0.1 < 0.1 < found.scales[1]


def test_what_rings_takes_the_stencil_without_a_warning() -> None:
    n = 100
    M = torchldr.LDRTridiagonal.random(n, n, 1, product="port")
    for side in "AC":
        M.tensors[f"subdiagonal_{side}"].fill_(0.5)
        M.tensors[f"superdiagonal_{side}"].fill_(0.5)
        M.tensors[f"diagonal_{side}"].zero_()
    x = torch.randn(2, n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = M.matmul(x)
    want = x.double() @ M.double().to_dense().mT
    assert (got - want).norm() <= 1e-5 * want.norm()
    assert way(M) is None
    assert "stencil: truncation" in M.product_in_use()


def test_the_option() -> None:
    with pytest.raises(ValueError, match="product must be one of auto, stencil, port, got 'tree'"):
        torchldr.StructuredLinear(8, 8, structure="ldr_td", product="tree")


# `auto`, kept and revised.


def test_auto_leaves_small_layers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_keeper.Keeper, "look", lambda *args: pytest.fail("looked"))
    layer = torchldr.StructuredLinear(256, 256, structure="ldr_td")
    layer(torch.randn(2, 256)).sum().backward()
    layer.eval()(torch.randn(2, 256))
    assert "port" not in repr(layer)
    assert port_keeper._kept == {}


@pytest.mark.parametrize("fused", [False, True])  # which counts no versions
def test_training_revises_the_choice(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    """Measured at the first product, after 4 steps, 8 more, and then every 16 (10, 20, .. 200 in earnest)."""
    small_crossover(monkeypatch)
    monkeypatch.setattr(port_keeper, "FIRST_REVISION", 4)
    monkeypatch.setattr(port_keeper, "LAST_REVISION", 16)
    asked: list[int] = []
    whole = port_keeper.Keeper._ask

    def counted(self: port_keeper.Keeper, *args: object) -> None:
        asked.append(step)
        whole(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(port_keeper.Keeper, "_ask", counted)
    layer = torchldr.StructuredLinear(80, 80, structure="ldr_td")
    optimizer = torch.optim.SGD(layer.parameters(), 1e-5, fused=fused)
    x = torch.randn(4, 80)
    for step in range(60):  # noqa: B007
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()
    assert asked == [4, 12, 28, 44]
    assert "port, c = 2" in repr(layer)


@pytest.mark.parametrize("jumps", [False, True])
def test_an_operator_that_moves_changes_its_product(monkeypatch: pytest.MonkeyPatch, jumps: bool) -> None:
    """In small steps it is seen at the next revision, in a large one at once."""
    small_crossover(monkeypatch)
    monkeypatch.setattr(port_keeper, "FIRST_REVISION", 4)
    layer = torchldr.StructuredLinear(80, 80, structure="ldr_td", bias=False)
    x = torch.randn(4, 80)
    layer(x)
    assert "port, c = 2" in repr(layer)
    with torch.no_grad():
        for t in (0.0, 1.0) if jumps else torch.linspace(0, 1, 20).tolist():
            for side in "AC":
                getattr(layer, f"superdiagonal_{side}").fill_(0.45 * t)
                getattr(layer, f"subdiagonal_{side}").fill_(1 - 0.45 * t)
            y = layer(x)
    want = x.double() @ layer.matrix().double().to_dense().mT
    assert (y - want).norm() <= 1e-4 * want.norm()
    assert "port, c = 2," not in repr(layer)


def test_a_large_first_batch_does_not_bind_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch for which only c = 2 pays sees an operator first that asks for more; a small one trains it."""
    small_crossover(monkeypatch)
    monkeypatch.setattr(port_keeper, "FIRST_REVISION", 2)
    cheaper = lambda sizes, r, b, c, device: b < 100 or max(c) <= 2
    monkeypatch.setattr(port_choice, "port_is_cheaper", cheaper)
    layer = torchldr.StructuredLinear(256, 256, structure="ldr_td", bias=False)
    with torch.no_grad():
        for side in "AC":
            getattr(layer, f"superdiagonal_{side}").fill_(0.1)
            getattr(layer, f"subdiagonal_{side}").fill_(0.9)
    layer(torch.randn(200, 256))
    assert "stencil: truncation" in repr(layer)
    x = torch.randn(4, 256)
    with torch.no_grad():
        for _ in range(4):
            layer.G.mul_(1.0001)
            y = layer(x)
    assert "port, c = " in repr(layer)
    want = x.double() @ layer.matrix().double().to_dense().mT
    assert (y - want).norm() <= 1e-4 * want.norm()


def test_loading_drops_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    small_crossover(monkeypatch)
    layer = torchldr.StructuredLinear(80, 80, structure="ldr_td")
    layer(torch.randn(1, 80))
    assert len(port_keeper._kept) == 1
    layer.load_state_dict(layer.state_dict())
    assert port_keeper._kept == {}
    assert "chosen at the first product" in repr(layer)
    layer(torch.randn(1, 80))
    del layer
    gc.collect()
    torchldr.StructuredLinear(80, 80, structure="ldr_td")(torch.randn(1, 80))
    assert len(port_keeper._kept) <= 1


def test_inference_keeps_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    small_crossover(monkeypatch)
    layer = torchldr.StructuredLinear(100, 120, structure="ldr_td", rank=2).eval()
    layer.plan = "fast"
    with torch.no_grad():
        for name, t in layer.named_parameters():
            if "diagonal" in name or "corners" in name:
                t.add_(0.05 * torch.randn_like(t))
    for x in (torch.randn(100), torch.randn(3, 100), torch.randn(2, 2, 100)):
        with torch.inference_mode():
            y = layer(x)
        want = x.double() @ layer.matrix().double().to_dense().mT + layer.bias.double()
        assert (y - want).norm() <= 1e-5 * want.norm()
    x = torch.randn(3, 100, requires_grad=True)
    layer.requires_grad_(False)
    (got,) = torch.autograd.grad(layer(x).sum(), x)
    want = layer.matrix().double().to_dense().sum(0).expand(3, -1)
    assert (got - want).norm() <= 1e-5 * want.norm()
    assert plans.path(layer.matrix()).startswith("port")
    monkeypatch.setattr(port_choice, "port_is_cheaper", lambda sizes, r, b, c, device: b < 50)
    assert plans.path(layer.matrix(), 49).startswith("port")
    assert plans.path(layer.matrix(), 50) == "stencil"
    with torch.no_grad():
        layer.G.mul_(2)
        y = layer(x)
    want = x.double() @ layer.matrix().double().to_dense().mT + layer.bias.double()
    assert (y - want).norm() <= 1e-5 * want.norm()


def test_bfloat16_keeps_one_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    small_crossover(monkeypatch)
    layer = torchldr.StructuredLinear(80, 80, structure="ldr_td", dtype=torch.bfloat16)
    for _ in range(3):
        layer(torch.randn(2, 80, dtype=torch.bfloat16)).sum().backward()
    assert len(port_keeper._kept) == 1
    assert "port, c = 2" in repr(layer)


def test_transformations_and_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """vmap, jvp and second derivatives hold; what a compiler is shown runs the same product."""
    small_crossover(monkeypatch)
    layer = torchldr.StructuredLinear(80, 80, structure="ldr_td", bias=False).double()
    x = torch.randn(3, 80, dtype=torch.float64)
    want = layer(x)
    torch.testing.assert_close(torch.vmap(layer)(x), want)
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (x,))[1], want)
    hessian = torch.autograd.functional.hvp(lambda t: layer(t).pow(4).sum(), x, x)[1]
    y, v = want, want  # of sum y^4 along x: 12 W^T (y^2 * W x)
    torch.testing.assert_close(hessian, (12 * y.square() * v) @ layer.matrix().to_dense())
    from torchldr.matrices import opaque

    got = opaque.product(layer.matrix(), x, transposed=False)
    torch.testing.assert_close(got, want)
    assert len(port_keeper._kept) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_step_of_training_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    small_crossover(monkeypatch)
    monkeypatch.setattr(port_keeper, "FIRST_REVISION", 2)
    layer = torchldr.StructuredLinear(300, 300, structure="ldr_td", device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), 1e-6)
    x = torch.randn(4, 300, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()

    step()  # the choice itself waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(12):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    step()
    assert "port, c = " in repr(layer)
    want = x.cpu().double() @ layer.matrix().to("cpu").double().to_dense().mT + layer.bias.cpu().double()
    assert (layer(x).cpu() - want).norm() <= 1e-5 * want.norm()
