from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchldr
from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.kernels import cuda
from torchldr_paper.models.images import SingleHiddenLayer
from torchldr_paper.models.network import StackedNetwork
from torchldr_paper.models.stacked.products import form, stacked_product, subdiagonal_range
from torchldr_paper.models.stacked.scan import STRUCTURES
from torchldr_paper.models.stacked.tridiagonal import krylov_tiles

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
NATIVE = ("dense", "fastfood", "ldr_sd", "ldr_td", "low_rank")


def drawn(
    name: str, n: int, rank: int, count: int, **options: Any
) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """`count` members of a class, stacked, in float64; LDR-SD near the shift, as in training."""
    cls = torchldr.get_structure(name)
    g = torch.Generator().manual_seed(n)
    members = [
        cls.random(n, n, rank if cls.ranked else None, dtype=torch.float64, generator=g, **options)
        for _ in range(count)
    ]
    tensors = {key: torch.stack([m.tensors[key] for m in members]) for key in members[0].tensors}
    if name == "ldr_sd":
        for key in ("subdiagonal_A", "subdiagonal_C"):
            tensors[key] = 1 + (tensors[key] - 1) * 0.2
    return cls, tensors, members[0].options


def values_and_gradients(product: Any, tensors: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    leaves = {k: t.clone().requires_grad_(t.is_floating_point()) for k, t in tensors.items()}
    x = x.clone().requires_grad_()
    y = product(leaves, x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    wanted = [t for t in leaves.values() if t.requires_grad]
    return [y, *torch.autograd.grad((y * weights).sum(), [*wanted, x])]


@pytest.mark.parametrize("common", [True, False], ids=["one input", "an input each"])
@pytest.mark.parametrize("name", torchldr.structures())
def test_forms_agree(name: str, common: bool) -> None:
    n, count = 12, 3
    cls, tensors, options = drawn(name, n, 2, count)
    x = torch.randn(*(() if common else (count,)), 5, n, dtype=torch.float64)
    want = values_and_gradients(stacked_product(cls, n, n, options, how="loop"), tensors, x)
    for how in ("vmap", *(["native"] if name in NATIVE else []), *(["scan"] if name in STRUCTURES else [])):
        got = values_and_gradients(stacked_product(cls, n, n, options, how=how), tensors, x)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@settings(deadline=None, max_examples=25)
@given(
    n=st.sampled_from([2, 3, 5, 31, 64, 70]),
    rank=st.integers(1, 2),
    normalize=st.booleans(),
    b=st.integers(1, 4),
)
def test_native_tridiagonal(n: int, rank: int, normalize: bool, b: int) -> None:
    cls, tensors, options = drawn("ldr_td", n, rank, 2, normalize=normalize)
    x = torch.randn(b, n, dtype=torch.float64, generator=torch.Generator().manual_seed(b))
    want = values_and_gradients(stacked_product(cls, n, n, options, how="loop"), tensors, x)
    got = values_and_gradients(stacked_product(cls, n, n, options, how="native"), tensors, x)
    for a, c in zip(got, want, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(n=st.sampled_from([2, 3, 5, 31, 64, 70]), rank=st.integers(1, 3), b=st.integers(1, 4))
def test_native_subdiagonal(n: int, rank: int, b: int) -> None:
    cls, tensors, options = drawn("ldr_sd", n, min(rank, n), 2)
    x = torch.randn(b, n, dtype=torch.float64, generator=torch.Generator().manual_seed(b))
    want = values_and_gradients(
        stacked_product(cls, n, n, {**options, "product": "split"}, how="loop"), tensors, x
    )
    got = values_and_gradients(stacked_product(cls, n, n, options, how="native"), tensors, x)
    for a, c in zip(got, want, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 2), (7, 4), (64, 64), (65, 65), (100, 70)])
def test_krylov_tiles_are_the_krylov_matrices(m: int, k: int) -> None:
    g = torch.Generator().manual_seed(0)
    bands = torch.rand(2, m, 3, dtype=torch.float64, generator=g) * torch.tensor([0.7, 0.2, 0.2])
    V = torch.randn(2, 3, m, dtype=torch.float64, generator=g)
    K = krylov_tiles(bands, V, k).transpose(1, 2).flatten(2).unflatten(-1, (-1, 3))  # (S, m, columns, r)
    assert not K[:, :, k:].any()
    for s in range(2):
        for i in range(3):
            want = krylov_of_ring_reference(*bands[s].T, V[s, i], k)
            torch.testing.assert_close(K[s, :, :k, i], want, rtol=1e-12, atol=1e-13)


def test_native_products_keep_float32() -> None:
    for name in NATIVE:
        cls, tensors, options = drawn(name, 8, 2, 2)
        narrow = {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}
        x = torch.randn(3, 8)
        y = stacked_product(cls, 8, 8, options, how="native")(narrow, x)
        want = stacked_product(cls, 8, 8, options, how="loop")(tensors, x.double())
        assert y.dtype == torch.float32
        torch.testing.assert_close(y.double(), want, rtol=1e-4, atol=1e-5)


def test_form() -> None:
    """No class may loop on a GPU, where a step is one graph; on a CPU only the compiled stencil does."""
    for name, cls in torchldr.structures().items():
        options = cls.default_options()
        assert form(cls, CUDA, (8, 8), options) in ("native", "scan", "vmap")
        assert form(cls, CPU, (8, 8), options) == "loop" if name in ("ldr_sd", "ldr_td") else True
    convolution = {"product": "convolution"}
    assert form(torchldr.LDRSubdiagonal, CPU, (8, 8), convolution) == "native"
    assert form(torchldr.LDRSubdiagonal, CPU, (8, 9), convolution) == "loop"
    assert form(torchldr.LDRTridiagonal, CUDA, (8, 8), {}) == "native"
    with pytest.raises(ValueError, match="no native form"):
        stacked_product(torchldr.ACDC, 4, 4, {}, how="native")


def test_subdiagonal_range() -> None:
    s = torch.tensor([[10.0, 10.0, 0.1], [1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    reach = subdiagonal_range({"subdiagonal_A": s, "subdiagonal_C": torch.ones(3, 3)})
    assert reach.tolist() == pytest.approx([2.0, 0.0, float("inf")])


def test_the_kernels_are_called_with_stacked_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's place taken by the reference: layouts and gradients, without a GPU."""

    def columns(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
        return torch.stack(
            [
                torch.stack([krylov_of_ring_reference(*ring, v, k).mT for v in vectors])
                for *ring, vectors in zip(lower, diagonal, upper, V, strict=True)
            ]
        )

    def adjoint(lower: Tensor, diagonal: Tensor, upper: Tensor, K: Tensor, dK: Tensor) -> tuple[Tensor, ...]:
        inputs = [t.detach().clone().requires_grad_() for t in (lower, diagonal, upper, K[:, :, 0])]
        with torch.enable_grad():
            return torch.autograd.grad(columns(*inputs, K.shape[2]), inputs, dK)

    n = 9
    cls, tensors, options = drawn("ldr_td", n, 2, 3)
    x = torch.randn(4, n, dtype=torch.float64)
    want = values_and_gradients(stacked_product(cls, n, n, options, how="loop"), tensors, x)
    monkeypatch.setattr(cuda, "serves", lambda *_: True)
    monkeypatch.setattr(cuda, "krylov_columns", columns)
    monkeypatch.setattr(cuda, "krylov_adjoint", adjoint)
    got = values_and_gradients(stacked_product(cls, n, n, options, how="native"), tensors, x)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_only_ldr_sd_takes_the_fleets_convolution() -> None:
    """LDR-TD has an option of the same name: its fleet on a CPU runs the compiled products, one a replica."""
    for name, product in (("ldr_sd", "convolution"), ("ldr_td", "auto")):
        hidden = torchldr.StructuredLinear(16, 16, bias=False, structure=name, rank=1)
        network = StackedNetwork([SingleHiddenLayer(hidden, torch.nn.Linear(16, 3))], CPU)
        assert network.product == product
