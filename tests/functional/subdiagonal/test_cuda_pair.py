"""LDR-SD on a GPU: the kernels, run as C++, against the definition."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torchldr.core.routes import Call, RefusedError
from torchldr.matrices.ldr_sd.routes import sides

from torchldr import HankelLike, LDRSubdiagonal, ToeplitzLike
from torchldr.functional.subdiagonal import cuda_pair
from torchldr.functional.subdiagonal.guard import RANGE, reach
from torchldr.kernels.cuda import pair

from ...cuda_as_cpp import compiler

TAIL = """
#define RUN(name) extern "C" void run_##name( \\
    int gx, int gy, int gz, int threads, X* x, P* bias, float* enter, float* beside, float* between, \\
    float* leave, float* aside, Z* turn, Z* right, Z* left, Z* root, Z* memory, Y* out, \\
    int r, int rows, int parts \\
) { run(gx, gy, gz, threads, [=] { name(GIVEN); }); }
RUN(pair) RUN(join)
extern "C" void run_gradients(
    int gx, int gy, int gz, int threads, X* x, X* y, X* dy, float* enter, float* beside, float* between,
    float* leave, float* aside, Z* turn, Z* right, Z* left, Z* root, Z* memory, X* dx, int r, int rows
) { run(gx, gy, gz, threads, [=] { gradients(x, y, dy, THEM, memory, dx, r, rows); }); }
"""


def member(n: int, rank: int, spread: float = 0.02, seed: int = 0) -> LDRSubdiagonal:
    """A member with corners, its scales within the range of a float32 convolution."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(rank, n, generator=draw) / n**0.5 for name in "GH"}
    for side in "AC":
        tensors[f"subdiagonal_{side}"] = torch.empty(n - 1).uniform_(1 - spread, 1 + spread, generator=draw)
        tensors[f"corner_{side}"] = torch.empty(1).uniform_(-1, 1, generator=draw)
    return LDRSubdiagonal(n, n, **tensors)


def trained(M: Any) -> Any:
    return M.with_tensors({name: t.detach().requires_grad_() for name, t in M.tensors.items()})


@cache
def dense(n: int, rank: int) -> torch.Tensor:
    """A member in float64."""
    return member(n, rank).to(torch.float64).to_dense()


def test_what_it_does_not_take() -> None:
    assert cuda_pair.why_not(torch.Size((64, 64)), torch.device("cpu"), torch.float32) == "for GPUs"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return compiler(tmp_path_factory.mktemp("kernels"), TAIL)


@pytest.fixture(params=[1, 4, 100], ids=lambda blocks: f"{blocks} blocks")
def kernels(
    compiled: Callable[[str], ctypes.CDLL], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A device that runs so many blocks at once: ranks run side by side where they leave some idle."""

    class Kernels(pair.nvrtc.Kernels):
        def queue(self, device: object, arguments: object) -> None:
            source = self._source.replace("extern __shared__ Z row[];", "static Z row[H + H / 16 + 1];")
            given = [a if isinstance(a, int) else ctypes.c_void_p(a.data_ptr()) for a in arguments]  # type: ignore[attr-defined]
            for name, grid, threads in self._launches:
                getattr(compiled(source), f"run_{name}")(*grid, threads, *given)

    monkeypatch.setattr(pair.nvrtc, "Kernels", Kernels)
    monkeypatch.setattr(pair, "_blocks", lambda h, device: request.param)
    for cached in ("_launches", "_gradient_kernel"):
        monkeypatch.setattr(pair, cached, getattr(pair, cached).__wrapped__)
    monkeypatch.setattr(pair, "_LONG", 32)
    monkeypatch.setattr(cuda_pair, "why_not", lambda *of: None)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.float32),
        (torch.float64, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("reversed", [False, True])
def test_dtypes_and_a_bias(given: torch.dtype, wanted: torch.dtype, reversed: bool) -> None:
    M, draw = member(64, 2), torch.Generator().manual_seed(1)
    x, bias = (torch.randn(*size, generator=draw).to(given) for size in ((2, 3, 64), (64,)))
    product = cuda_pair.KeptPair(*sides(M), reversed=reversed)
    exact = x.double() @ M.to(torch.float64).to_dense().mT
    exact = exact.flip(-1) if reversed else exact
    if given is wanted:
        got, got_biased = product(x), product(x, bias)
    else:  # as under autocast
        K, rows = cuda_pair.prepare(*sides(M)), x.flatten(0, 1)
        both = [cuda_pair.matmul(K, rows, b, wanted, reversed=reversed) for b in (None, bias)]
        got, got_biased = (y.view(x.shape) for y in both)
    assert got.dtype == got_biased.dtype == wanted
    for y, right in ((got, exact), (got_biased, exact + bias.double())):
        assert (y - right).abs().max() <= max(torch.finfo(wanted).eps, 1e-5) * right.abs().max()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("n", "rank"), [(2, 1), (30, 4), (64, 1), (500, 4), (1024, 1), (1260, 2)])
def test_it_is_the_product(n: int, rank: int) -> None:
    K = cuda_pair.prepare(*sides(member(n, rank)))
    for batch in (0, 1, 2, 7):
        x = torch.randn(n, batch, generator=torch.Generator().manual_seed(1)).mT
        exact = x.double() @ dense(n, rank).mT
        got = cuda_pair.matmul(K, x)
        assert got.shape == x.shape
        assert ((got - exact).abs() <= 1e-6 * n**0.5 * exact.abs().amax(-1, keepdim=True)).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("of", ["x", "bias", "both"])
@pytest.mark.parametrize("reversed", [False, True])
def test_gradients(of: str, reversed: bool) -> None:
    M, draw = member(64, 2), torch.Generator().manual_seed(1)
    x, bias, u = (torch.randn(*size, generator=draw) for size in ((3, 64), (64,), (3, 64)))
    x.requires_grad_(of != "bias")
    bias.requires_grad_(of != "x")
    y = cuda_pair.KeptPair(*sides(M), reversed=reversed)(x, bias)
    y.backward(u)
    W = M.to(torch.float64).to_dense()
    W = W.flip(0) if reversed else W
    if of != "x":
        assert torch.allclose(bias.grad, u.sum(0), atol=1e-6)
    if of != "bias":
        assert (x.grad - u.double() @ W).abs().max() <= 1e-5 * (u.double() @ W).abs().max()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("n", "rank", "dtype"),
    [(2, 1, torch.float32), (30, 3, torch.float32), (64, 1, torch.float32), (64, 2, torch.bfloat16)],
)
@pytest.mark.parametrize("batch", [0, 7])
def test_training(n: int, rank: int, batch: int, dtype: torch.dtype) -> None:
    """Gradients of the vectors, of the generators and of the operators, by the dense matrix in float64."""
    M, draw = member(n, rank).to(dtype), torch.Generator().manual_seed(1)
    x, bias, u = (torch.randn(*size, generator=draw).to(dtype) for size in ((batch, n), (n,), (batch, n)))
    given = [t.detach().requires_grad_() for t in (*M.tensors.values(), x, bias)]
    exact = [t.detach().double().requires_grad_() for t in given]
    names = [*M.tensors]

    def of(tensors: list[torch.Tensor]) -> LDRSubdiagonal:
        return M.with_tensors(dict(zip(names, tensors, strict=False)))

    y = cuda_pair.product(*sides(of(given)), given[-2], given[-1])
    right = exact[-2] @ of(exact).materialize().mT + exact[-1]
    assert y.dtype == dtype
    eps = 1e-5 if dtype == torch.float32 else 2**-7
    assert torch.allclose(
        y.double(), right, rtol=0, atol=eps * (1 + right.abs().amax().item() if batch else 1)
    )
    y.backward(u)
    right.backward(u.double())
    for name, ours, theirs in zip([*names, "x", "bias"], given, exact, strict=True):
        assert ours.grad is not None
        assert (ours.grad - theirs.grad).norm() <= 4 * eps * theirs.grad.norm() + 1e-30, name


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("corners", [(0.0, 0.0), (1.0, -1.0), (-1.0, -0.5), (2.0, 0.3)])
@pytest.mark.parametrize("regime", ["ones", "signs", "grow", "grow and fall"])
def test_training_in_all_regimes_within_the_guard(regime: str, corners: tuple[float, float]) -> None:
    n, draw = 30, torch.Generator().manual_seed(2)
    M, x, u = member(n, 2), *torch.randn(2, 5, n, generator=draw)
    step = 2.0 ** (1 / (n - 1))
    rows = {
        "ones": torch.ones(2, n - 1),
        "signs": torch.randint(0, 2, (2, n - 1), generator=draw) * 2.0 - 1,
        "grow": torch.stack((torch.full((n - 1,), step), torch.ones(n - 1))),
        "grow and fall": torch.stack((torch.full((n - 1,), step), torch.full((n - 1,), 1 / step))),
    }[regime]
    for side, s, corner in zip("AC", rows, corners, strict=True):
        M.tensors[f"subdiagonal_{side}"], M.tensors[f"corner_{side}"] = s, torch.tensor([corner])
    M = trained(M)
    assert reach(*sides(M)) <= RANGE
    found = cuda_pair.product(*sides(M), x.requires_grad_())
    inputs = [x, *M.tensors.values()]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    W = M.with_tensors(dict(zip(M.tensors, exact[1:], strict=True))).materialize()
    right = exact[0] @ W.mT
    gradients = torch.autograd.grad(found, inputs, u), torch.autograd.grad(right, exact, u.double())
    for ours, theirs in zip((found, *gradients[0]), (right, *gradients[1]), strict=True):
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm()


@pytest.mark.usefixtures("kernels")
def test_derivatives_of_derivatives() -> None:
    M, x = trained(member(30, 2)), torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    inputs = (x.requires_grad_(), *M.tensors.values())
    found = []
    for y in (cuda_pair.product(*sides(M), x), x @ M.to_dense().mT):
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(t.square().sum() for t in first), inputs))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.usefixtures("kernels")
def test_hooks_that_give_tensors_back_in_another_layout() -> None:
    M, x = trained(member(30, 2)), torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    found = []
    for unpack in (lambda t: t, lambda t: t.repeat_interleave(2, -1)[..., ::2]):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            y = cuda_pair.product(*sides(M), x)
        found.append(torch.autograd.grad(y.square().sum(), [*M.tensors.values()]))
    for plain, strided in zip(*found, strict=True):
        assert torch.allclose(plain, strided, rtol=1e-5)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("cls", [ToeplitzLike, HankelLike])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_constant_operators(
    cls: Any, transposed: bool, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of generators alone: the products need not be saved, nor numbers be summed along a vector.

    The latter torch refuses on a GPU where it has to be deterministic.
    """
    monkeypatch.setattr(torch.Tensor, "cumsum", None)
    draw = torch.Generator().manual_seed(1)
    G, H, x, u = torch.randn(4, 3, 64, generator=draw).unbind()
    M, bias = trained(cls(64, 64, G=G, H=H)), torch.randn(64, generator=draw) if biased else None
    x.requires_grad_()
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        y = M._cuda_product(x, transposed, bias)
    assert sum(t.shape == x.shape for t in saved) == 1
    W = M.to(torch.float64).to_dense()
    right = x.double() @ (W if transposed else W.mT) + (0 if bias is None else bias.double())
    assert (y - right).abs().max() <= 1e-5 * right.abs().max()
    inputs = x, M.G, M.H
    for ours, theirs in zip(
        torch.autograd.grad(y, inputs, u), torch.autograd.grad(right, inputs, u.double()), strict=True
    ):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("biased", [False, True])
def test_the_result_may_be_edited(biased: bool) -> None:
    """As `nn.ReLU(inplace=True)` does behind a layer."""
    M, (x, bias) = trained(member(64, 2)), (torch.randn(3, 64), torch.randn(64) if biased else None)
    y = cuda_pair.product(*sides(M), x, bias)
    found = torch.autograd.grad(y.relu().sum(), [*M.tensors.values()])
    again = torch.autograd.grad(cuda_pair.product(*sides(M), x, bias).relu_().sum(), [*M.tensors.values()])
    assert all(map(torch.equal, found, again))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("operators", ["near one", "wide", "zero", "corner", "nan"])
def test_operators_are_looked_at_on_the_way(operators: str) -> None:
    """As the guard does before, and with its bound."""
    (route,) = [r for r in LDRSubdiagonal.ROUTES if r.name == "cuda_pair"]
    M = trained(member(64, 2))
    with torch.no_grad():
        if operators == "wide":
            M.subdiagonal_A[:3] *= 4
        elif operators == "corner":
            M.corner_C.fill_(100)
        elif operators != "near one":
            M.subdiagonal_C[5] = 0 if operators == "zero" else torch.nan
    refused = route.why_not(M, Call(1, "cuda")) is not None
    assert refused == (operators != "near one")
    if refused:
        with pytest.raises(RefusedError, match="range"):
            route.run(M, torch.randn(3, 64), False)
    else:
        assert route.run(M, torch.randn(3, 64), False).shape == (3, 64)
    assert route.tried is not None
    for product in ("exact", "convolution"):
        asked = LDRSubdiagonal(64, 64, product=product, **M.tensors)
        assert route.why_not(asked, Call(1, "cuda")) is not None
        assert route.tried(asked, Call(1, "cuda")) is not None


@pytest.mark.usefixtures("kernels")
def test_determinism_matters_where_gradients_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    M, x = member(64, 2), torch.randn(3, 64)
    y = M.matmul(x, route="cuda_pair")
    assert (y - x @ M.to_dense().mT).abs().max() <= 1e-5 * y.abs().max()
    with pytest.raises(ValueError, match="deterministic algorithms"):
        trained(M).matmul(x, route="cuda_pair")


@pytest.mark.usefixtures("kernels")
def test_rows_do_not_meet() -> None:
    K, x = cuda_pair.prepare(*sides(member(64, 2))), torch.randn(4, 64)
    alone = cuda_pair.matmul(K, x)
    wild = x * torch.tensor([torch.nan, 1.0, 1e6, 1.0]).unsqueeze(1)
    assert torch.equal(cuda_pair.matmul(K, wild)[[1, 3]], alone[[1, 3]])


@pytest.mark.parametrize("h", [1, 2, 15, 210, 4096, 8192, 10000])
def test_factors(h: int) -> None:
    found = pair.radices(h)
    assert torch.tensor(found).prod() == h
    assert set(found) <= {2, 3, 4, 5, 7, 8}
