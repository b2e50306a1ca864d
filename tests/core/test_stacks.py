"""Matrices with leading axes, held to each of their matrices alone."""

import pytest
import torch

import torchldr
from torchldr.core import stacks
from torchldr.kernels.cpu import library
from torchldr.testing import has_operators, member

CLASSES = list(torchldr.structures().values())
every_product = pytest.mark.parametrize("product", ["fast", "dense"])


def stack_of(cls, *leading, shape=(7, 5), dtype=torch.float64, regime="near one"):
    """A stack of different matrices, and its matrices in order."""
    rank = 2 if cls.ranked else None
    regime = regime if has_operators(cls) else None
    count = torch.Size(leading).numel()
    alone = [member(cls, *shape, rank, regime=regime, dtype=dtype, seed=i) for i in range(count)]
    M = torchldr.stack(alone)
    own = {name: t for name, t in M.tensors.items() if t.shape[:1] == (count,)}
    tensors = {name: t.unflatten(0, leading) if name in own else t for name, t in M.tensors.items()}
    return M.with_tensors(tensors), alone


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_a_stack_is_its_matrices(cls):
    M, alone = stack_of(cls, 2, 3)
    assert M.leading == (2, 3)
    assert M.shape == (2, 3, 7, 5)
    assert len(M) == 2
    want = torch.stack([one.to_dense() for one in alone]).unflatten(0, (2, 3))
    torch.testing.assert_close(M.to_dense(), want, rtol=0, atol=0)
    torch.testing.assert_close(M.materialize(), want)
    torch.testing.assert_close(M[1].to_dense(), want[1])
    torch.testing.assert_close(M[1, 2].to_dense(), want[1, 2])
    torch.testing.assert_close(M[:, -1].to_dense(), want[:, -1])
    torch.testing.assert_close(torch.stack([part.to_dense() for part in M]), want)


@pytest.mark.parametrize("product", ["auto", "fast", "dense"])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_products_broadcast_as_matmul(cls, product):
    M, _alone = stack_of(cls, 2, 3)
    W = M.to_dense()
    for lead in ((), (4,), (1, 4), (3, 4), (2, 1, 4), (2, 3, 4), (5, 2, 3, 4), (5, 1, 1, 4), (2, 3, 0)):
        x = torch.randn(*lead, 5, dtype=W.dtype)
        want = x @ W.mT if x.ndim > 1 else W @ x
        got = M.matmul(x, product=product)
        assert got.shape == want.shape
        torch.testing.assert_close(got, want)
        y = torch.randn(*lead, 7, dtype=W.dtype)
        want = y @ W if y.ndim > 1 else W.mT @ y
        torch.testing.assert_close(M.rmatmul(y, product=product), want)


@pytest.mark.parametrize("regime", ["uniform", "tiny", "zeros", "1.05"])
@pytest.mark.parametrize("name", ["ldr_sd", "ldr_td"])
def test_operators_of_every_regime(name, regime):
    M, _ = stack_of(torchldr.get_structure(name), 3, shape=(40, 33), regime=regime)
    x = torch.randn(3, 6, 33, dtype=torch.float64)
    for product in ("fast", "dense"):
        got = M.matmul(x, product=product)
        bound = 1e-12 * (x.abs() @ M.magnitude().mT).amax((-2, -1), keepdim=True)
        assert ((got - x @ M.to_dense().mT).abs() <= bound).all(), product


@every_product
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_gradients_are_those_of_the_matrices(cls, product):
    M, _ = stack_of(cls, 3)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    u = torch.randn(3, 4, 7, dtype=torch.float64)

    def gradients(multiply):
        leaves = {k: t.clone().requires_grad_(t.is_floating_point()) for k, t in M.tensors.items()}
        vectors = x.clone().requires_grad_()
        y = multiply(M.with_tensors(leaves), vectors)
        wanted = [t for t in (*leaves.values(), vectors) if t.requires_grad]
        return torch.autograd.grad(y, wanted, u, materialize_grads=True, allow_unused=True)

    want = gradients(lambda M, x: x @ M.to_dense().mT)
    for got, right in zip(gradients(lambda M, x: M.matmul(x, product=product)), want, strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_dtypes_vmap_and_repr(cls):
    M, _alone = stack_of(cls, 3, dtype=torch.float32)
    low = M.to(torch.bfloat16)
    x = torch.randn(3, 4, 5)
    y = low.matmul(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert "leading=(3,)" in repr(low)
    torch.testing.assert_close(y.float(), M.matmul(x), rtol=0.1, atol=0.3)
    with torch.autocast("cpu", torch.bfloat16):
        assert M.matmul(x).dtype == torch.bfloat16
    mapped = torch.vmap(M.matmul)(torch.stack((x, 2 * x)))
    torch.testing.assert_close(mapped[1], 2 * M.matmul(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stacks.mapped(M, cls.to_dense), M.to_dense())


@pytest.mark.parametrize("name", ["circulant", "block_circulant"])
def test_circulant_matrices_without_the_c_kernels(name, monkeypatch):
    """Of sizes that C takes where it is there."""
    monkeypatch.setattr(library, "serves", lambda *tensors: False)
    options = {"block_size": 32} if name == "block_circulant" else {}
    cls = torchldr.structures()[name]
    M = torchldr.stack([cls.random(32, 32, **options) for _ in range(3)])
    x = torch.randn(3, 5, 32)
    torch.testing.assert_close(M.matmul(x, product="fast"), x @ M.to_dense().mT)


def test_a_stack_given_as_tensors_is_checked():
    G, H = torch.randn(3, 2, 7), torch.randn(3, 2, 5)
    M = torchldr.ToeplitzLike(7, 5, G=G, H=H)
    assert M.shape == (3, 7, 5)
    assert M.rank == 2
    with pytest.raises(ValueError, match=r"H must have shape \(3, 2, 5\)"):
        torchldr.ToeplitzLike(7, 5, G=G, H=H[0])
    fast = torchldr.Fastfood(4, 4, S=torch.ones(2, 4), D=torch.ones(2, 4), B=torch.ones(2, 4))
    assert fast.permutation.shape == (2, 4)
    with pytest.raises(IndexError):
        M[3]
    with pytest.raises(IndexError):
        M[0, 0]
    with pytest.raises(TypeError, match="single matrix"):
        M[0][0]
    with pytest.raises(TypeError, match="no length"):
        len(M[0])
    with pytest.raises(RuntimeError):
        M.matmul(torch.ones(2, 4, 5))


def test_stack_says_what_does_not_fit():
    M = torchldr.ToeplitzLike.random(4, 4, rank=1)
    with pytest.raises(ValueError, match="at least one"):
        torchldr.stack([])
    with pytest.raises(ValueError, match="one class"):
        torchldr.stack([M, torchldr.LowRank.random(4, 4, rank=1)])
    with pytest.raises(ValueError, match="one shape"):
        torchldr.stack([M, torchldr.ToeplitzLike.random(4, 4, rank=2)])
    with pytest.raises(ValueError, match="one class and shape"):  # whose tensors have one shape
        torchldr.stack([torchldr.Circulant.random(4, 3), torchldr.Circulant.random(3, 4)])


def test_products_of_a_stack_in_words():
    M, _alone = stack_of(torchldr.LDRSubdiagonal, 3, dtype=torch.float32)
    assert [row.product for row in M.products(8)] == ["fast", "dense"]
    with pytest.raises(ValueError, match=r"LDRSubdiagonal\.matmul: product must be one of auto, fast, dense"):
        M.matmul(torch.randn(3, 2, 5), product="nosuch")
    large = torchldr.stack([torchldr.LowRank.random(6000, 6000)] * 2)  # each alone could be dense
    assert [row.why_not for row in large.products(4096)] == ["", "the matrix is too large to be made"]


def test_a_stack_holds_a_matrix():
    M, _ = stack_of(torchldr.ToeplitzLike, 3)
    with pytest.raises(IndexError, match="selects no matrix of the stack"):
        M[3:]
    with pytest.raises(ValueError, match="must hold a matrix"):
        torchldr.ToeplitzLike(4, 4, G=torch.ones(0, 1, 4), H=torch.ones(0, 1, 4))


@pytest.mark.parametrize("name", ["toeplitz_like", "ldr_sd", "circulant", "dense"])
def test_solving_and_displacement_go_one_by_one(name):
    M, alone = stack_of(torchldr.get_structure(name), 3, shape=(6, 6))
    for b in (torch.randn(6), torch.randn(6, 2), torch.randn(3, 6, 2)):
        x = M.solve(b.double())
        want = b.double() if b.ndim > 1 else b.double().unsqueeze(-1)
        got = M.to_dense() @ (x if b.ndim > 1 else x.unsqueeze(-1))
        torch.testing.assert_close(got, want.expand_as(got), rtol=1e-6, atol=1e-6)
    if name != "dense":
        torch.testing.assert_close(M.displacement(), torch.stack([one.displacement() for one in alone]))


def test_the_algebra_takes_one_matrix():
    M, _ = stack_of(torchldr.Circulant, 3, shape=(6, 6))
    for operation in (lambda: M @ M, lambda: M + M, lambda: 2 * M, lambda: M.T, M.inverse, M.generators):
        with pytest.raises(TypeError, match="one matrix, not a stack"):
            operation()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_an_ellipsis_counts_the_axes_of_the_stack(cls):
    M, _ = stack_of(cls, 2, 3)
    dense = M.to_dense()
    torch.testing.assert_close(M[...].to_dense(), dense)
    torch.testing.assert_close(M[..., 1].to_dense(), dense[:, 1])
    torch.testing.assert_close(M[0, ...].to_dense(), dense[0])
    torch.testing.assert_close(M[..., None, 1].to_dense(), dense[:, None, 1])


def test_constants_that_differ_are_not_stacked():
    ones, t = torch.ones(1, 3), torch.tensor([-1.0, -2.0, -3.0])
    alone = [torchldr.CauchyLike(3, 3, G=ones, H=ones, s=torch.arange(1.0, 4.0) + i, t=t) for i in range(2)]
    with pytest.raises(ValueError, match="the constant s must be the same"):
        torchldr.stack(alone)


def test_errors_say_that_there_is_a_stack():
    M, alone = stack_of(torchldr.ToeplitzLike, 3, shape=(4, 4))
    with pytest.raises(ValueError, match="sizes 4 x 4 and 3 x 4 x 4 do not fit"):
        alone[0] + M
    with pytest.raises(ValueError, match="must be 4 x 4 as its row and column are, got 3 x 4 x 4"):
        torchldr.algebra.block([[M]])
    for shape in ((2, 4, 1), (2, 3, 4, 1), ()):
        with pytest.raises(ValueError, match=r"broadcast to \(3,\) for ToeplitzLike of 3 x 4 x 4"):
            M.solve(torch.ones(shape, dtype=torch.float64))
    with pytest.raises(TypeError, match="Toeplitz is not of a structured class"):
        torchldr.stack([torchldr.Toeplitz(torch.ones(3))])


def test_constants_without_values_are_stacked():
    M = [torchldr.VandermondeLike.random(6, 6).to("meta") for _ in range(2)]
    assert torchldr.stack(M).shape == (2, 6, 6)
