"""Grids of circulant blocks by one compiled function, against the dense matrix in float64."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.functional import pad

from torchldr import BlockCirculant, Circulant, StructuredLinear, Toeplitz, testing
from torchldr.functional import circulant_blocks
from torchldr.functional.circulant_blocks import Place, product
from torchldr.kernels.cpu import library
from torchldr.matrices.classical import families

pytestmark = pytest.mark.skipif(bool(library.why_not()), reason=str(library.why_not()))
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
GRIDS = [  # p, q, s, m, n
    (1, 1, 32, 32, 32),
    (1, 1, 64, 41, 7),
    (1, 1, 256, 1, 255),
    (2, 3, 32, 64, 96),
    (3, 2, 64, 131, 127),
    (1, 4, 128, 128, 512),
]


def dense(columns, m, n, place=None):
    """The definition."""
    size, start = place or Place(columns.shape[-1])
    columns = pad(columns, (0, size - columns.shape[-1])).double()
    i = torch.arange(size)
    blocks = columns[..., (i.unsqueeze(1) - i + start) % size]
    grid = blocks.transpose(1, 2).flatten(2).flatten(0, 1) if columns.ndim == 3 else blocks
    return grid[:m, :n]


def check(got, right, size, n):
    assert got.shape == right.shape
    assert (got.double() - right).abs().max() <= testing.tolerance(got.dtype, n) * size.max()


def drawn(shape, n, batch, dtype):
    g = torch.Generator().manual_seed(0)
    return (
        torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_(),
        torch.randn(batch, n, generator=g, dtype=torch.float64).to(dtype).requires_grad_(),
    )


@both_dtypes
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 5, 300])
@pytest.mark.parametrize("grid", GRIDS)
def test_values_and_gradients(grid, batch, threads, dtype, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    p, q, size, m, n = grid
    columns, x = drawn((p, q, size), n, batch, dtype)
    y = product(columns, x, m)
    u = torch.randn(batch, m, dtype=dtype)
    found = torch.autograd.grad(y, (columns, x), u)
    wide = [t.detach().double().requires_grad_() for t in (columns, x)]
    right = wide[1] @ dense(wide[0], m, n).mT
    check(y, right, wide[1].abs() @ dense(wide[0].abs(), m, n).mT, n * p)
    magnitudes = [t.detach().abs().requires_grad_() for t in wide]
    bound = magnitudes[1] @ dense(magnitudes[0], m, n).mT
    sizes = torch.autograd.grad(bound, magnitudes, u.double().abs())
    for got, wanted, size_of in zip(found, torch.autograd.grad(right, wide, u.double()), sizes, strict=True):
        check(got, wanted, size_of, max(m, n, batch))
    with torch.no_grad():
        assert torch.equal(product(columns, x, m), y)
        kept = circulant_blocks.kept(columns.detach(), m, n)
        assert torch.equal(kept(x), y)
    (dx,) = torch.autograd.grad(kept(x), x, u)
    assert torch.equal(dx, found[1])


@both_dtypes
@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_one_gradient_alone(wanted, dtype):
    tensors = drawn((2, 2, 32), 50, 3, dtype)
    u = torch.randn(3, 60, dtype=dtype)
    both = torch.autograd.grad(product(*tensors, 60), tensors, u)
    for t, of in zip(tensors, wanted, strict=True):
        t.requires_grad_(of)
    asked = [t for t in tensors if t.requires_grad]
    (alone,) = torch.autograd.grad(product(*tensors, 60), asked, u)
    assert torch.equal(alone, both[wanted.index(True)])


@both_dtypes
@pytest.mark.parametrize(("m", "n"), [(16, 17), (1, 32), (32, 1), (100, 29), (64, 64)])
def test_a_toeplitz_matrix_is_a_part_of_a_circulant_one(m, n, dtype, monkeypatch):
    monkeypatch.setattr(families, "_compiled_size", lambda *_: 1 << max(5, (m + n - 2).bit_length()))
    entries, x = drawn((m + n - 1,), n, 3, dtype)
    T = Toeplitz(torch.zeros(m, dtype=dtype), torch.zeros(n, dtype=dtype)).with_entries(entries)
    for M, wanted, rows in ((T.matmul, T.to_dense().mT, x), (T.rmatmul, T.to_dense(), x.new_ones(2, m))):
        u = torch.randn(len(rows), wanted.shape[1], dtype=dtype)
        y, right = M(rows), rows.double() @ wanted.double()
        check(y, right, rows.double().abs() @ wanted.double().abs(), m + n)
        (got,) = torch.autograd.grad(y, entries, u, retain_graph=True)
        (same,) = torch.autograd.grad(right, entries, u.double(), retain_graph=True)
        check(got, same.double(), same.abs() + u.abs().sum() * rows.abs().max(), m + n)


def test_derivatives_of_derivatives():
    columns, x = drawn((1, 2, 32), 40, 2, torch.float64)
    place = Place(32, 3)
    assert torch.autograd.gradgradcheck(lambda c, v: product(c[..., :30], v, 5, place), (columns, x))
    u = torch.randn(4, 2, 5, dtype=torch.float64)
    y = product(columns, x, 5)
    (together,) = torch.autograd.grad(y, x, u, is_grads_batched=True, retain_graph=True)
    for each, direction in zip(together, u, strict=True):
        (alone,) = torch.autograd.grad(y, x, direction, retain_graph=True)
        assert torch.allclose(each, alone)


def test_a_tangent_of_what_comes_back():
    columns, x = drawn((64,), 64, 2, torch.float64)
    u, tangent = torch.randn(2, 2, 64, dtype=torch.float64)
    with forward_ad.dual_level():
        (dx,) = torch.autograd.grad(product(columns, x, 64), x, forward_ad.make_dual(u, tangent))
        found = forward_ad.unpack_dual(dx).tangent
    assert torch.allclose(found, tangent @ dense(columns, 64, 64))


def test_tensors_in_any_order_of_memory():
    columns, x = drawn((32, 2, 3), 5, 96, torch.float64)
    turned = columns.permute(1, 2, 0)
    check(product(turned, x.mT, 64), x.mT @ dense(turned, 64, 96).mT, torch.tensor(96.0), 96)


@pytest.mark.parametrize(("cls", "options"), [(Circulant, {}), (BlockCirculant, {"block_size": 32})])
@pytest.mark.parametrize("shape", [(64, 64), (64, 40), (33, 64)])
def test_the_route_of_a_class(cls, options, shape):
    M = testing.member(cls, *shape, **options)
    assert {"compiled"} <= {row.route for row in M.routes() if row.why_not is None}
    testing.check_values(M)
    testing.check_rows(M)
    testing.check_gradients(M)


def test_for_powers_of_two_on_a_cpu():
    why_not = circulant_blocks.why_not
    assert why_not(64, "cpu", torch.float32) is None
    assert "power of two" in why_not(96, "cpu", torch.float32)
    assert "power of two" in why_not(16, "cpu", torch.float32)
    assert why_not(64, "cuda", torch.float32) == "for CPUs"


def test_a_layer_learns_the_same_by_either_route():
    layer = StructuredLinear(64, 64, structure="circulant", dtype=torch.float64)
    x = torch.randn(4, 64, dtype=torch.float64)
    found = []
    for layer.route in ("compiled", "fft"):
        layer.zero_grad()
        layer(x).square().sum().backward()
        found.append(layer.column.grad.clone())
    assert torch.allclose(*found)


@pytest.mark.parametrize("training", [True, False])
def test_transformations_of_something_else(training):
    """The layer's own tensors are plain then, and what is computed of them need not be."""
    layer = StructuredLinear(64, 64, structure="circulant", dtype=torch.float64).train(training)
    x, factors = torch.randn(3, 64, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    with torch.set_grad_enabled(training):
        y = layer(x).detach()
        product = torch.vmap(lambda a: layer(x) * a)(factors)
        gradient = torch.func.grad(lambda a: (layer(x) * a).sum())(factors[0])
    assert torch.allclose(product, factors[:, None, None] * y)
    assert torch.allclose(gradient, y.sum())
