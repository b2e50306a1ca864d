"""Every class in the registry: values, transpose and gradients against `to_dense` in float64."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import torchldr
from torchldr import testing

CLASSES = list(torchldr.structures().values())
OPERATORS = [cls for cls in CLASSES if testing.has_operators(cls)]
SIZES = (1, 2, 3, 5, 16, 64, 129, 300)
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)


@st.composite
def members(draw, cls, sizes):
    m, n = draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes))
    rank = draw(st.integers(1, min(4, m, n))) if cls.ranked else None
    regime = draw(st.sampled_from(list(testing.REGIMES))) if testing.has_operators(cls) else None
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    options = {"normalize": draw(st.booleans())} if cls.name == "ldr_td" else {}
    if cls.name == "block_circulant":
        options["block_size"] = draw(st.integers(1, min(max(m, n), 40)))
    if "blocks" in cls.default_options():
        options["blocks"] = draw(st.integers(1, min(max(m, n), 40)))
    if "out_blocks" in cls.default_options():
        options |= {"out_blocks": draw(st.integers(1, m)), "in_blocks": draw(st.integers(1, n))}
    M = testing.member(cls, m, n, rank, regime=regime, dtype=dtype, seed=draw(st.integers(0, 99)), **options)
    assume(testing.fits(M, dtype))
    return M


@every_class
@settings(max_examples=20)
@given(data=st.data())
def test_values(cls, data):
    M = data.draw(members(cls, SIZES))
    testing.check_values(M, data.draw(st.sampled_from(testing.BATCHES)))
    testing.dot_test(M)


@every_class
@settings(max_examples=12)
@given(data=st.data())
def test_gradients(cls, data):
    testing.check_gradients(data.draw(members(cls, SIZES[:-1])))


@pytest.mark.parametrize("regime", testing.REGIMES)
@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.name)
def test_large_members(cls, regime):
    options = {"normalize": True} if cls.name == "ldr_td" else {}
    M = testing.member(cls, 784, 129, 2, regime=regime, dtype=torch.float32, **options)
    testing.check_values(M)
    testing.check_gradients(M)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls not in OPERATORS], ids=lambda cls: cls.name)
def test_large_members_without_operators(cls):
    for shape in ((784, 129), (129, 784)):
        M = testing.member(cls, *shape, 2 if cls.ranked else None, dtype=torch.float32)
        testing.check_values(M)
        testing.check_gradients(M)


@pytest.mark.parametrize("name", ["ldr_sd", "toeplitz_like", "hankel_like"])
@pytest.mark.parametrize("n", [64, 97])
def test_generators_of_uneven_size(name, n):
    """Where x meets small entries of H alone, FFTs are exact to norms, the dense matrix to |factors| |x|."""
    M = testing.member(torchldr.get_structure(name), 64, n, 1, dtype=torch.float32)
    if name == "ldr_sd":
        for side in "AC":
            M.tensors[f"subdiagonal_{side}"].fill_(1)
            M.tensors[f"corner_{side}"].zero_()
    M.H[:, :-1] *= 1e-5
    x, D = torch.eye(1, n), M.double()
    size = sum(left.norm(dim=0).max() * right.norm(dim=1).max() for left, right in D.factors())
    exact, first = x.double() @ D.to_dense().mT, (D.magnitude() @ x[0].double()).max()
    for product in testing.checks.forced(M):
        error = (M.matmul(x, product=product) - exact).abs().max()
        bound = first if product == "dense" else size
        assert error <= testing.tolerance(torch.float32, n) * bound


@every_class
def test_displacement(cls):
    for M in testing.cases(cls, shapes=((3, 3), (16, 5), (5, 16), (32, 32)), dtypes=(torch.float64,)):
        testing.check_displacement(M)


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.name)
def test_displacement_rank_for_invertible_operators(cls):
    """The paper's proposition: A^{-1} M - M C^T has rank at most 2r."""
    M = testing.member(cls, 24, 24, 2, regime="near one")
    A, C = M.operators()
    W = M.to_dense()
    singular = torch.linalg.svdvals(torch.linalg.solve(A, W) - W @ C.mT)
    assert singular[4] < 1e-9 * singular[0]


@every_class
def test_non_contiguous_inputs(cls):
    M = testing.member(cls, 16, 24, 2 if cls.ranked else None)
    wide = torch.randn(48, 5, dtype=torch.float64)
    assert torch.allclose(M.matmul(wide[::2].mT), M.matmul(wide[::2].mT.contiguous()))
    assert torch.allclose(M.matmul(wide[:1, :1].expand(7, 24)), M.matmul(wide[:1, :1].expand(7, 24).clone()))


@every_class
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (64, 64), (129, 784), (784, 129)])
def test_low_precision(cls, dtype, shape):
    for regime in testing.NEAR_ONE if testing.has_operators(cls) else [None]:
        M = testing.member(cls, *shape, min(2, *shape) if cls.ranked else None, regime=regime)
        testing.check_low_precision(M, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_the_definition_in_low_precision(cls, dtype):
    M = cls.random(7, 5, **({"rank": 2} if cls.ranked else {}), dtype=dtype)
    assert M.to_dense().dtype == dtype
    torch.testing.assert_close(M.to_dense().double(), M.double().to_dense(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls.own_dtype], ids=lambda cls: cls.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_in_the_dtype_itself(cls, dtype):
    """As on a GPU, where factors are multiplied in a narrow dtype: at most twice as wrong, in the mean."""
    for m, n in ((64, 64), (129, 784), (784, 129)):
        for rank in (1, 16) if cls.ranked else (None,):
            M, x = testing.member(cls, m, n, rank).to(dtype), torch.randn(16, n).to(dtype)
            W = M.double().to_dense()
            exact = x.double() @ W.mT
            dense, ours = (
                (y.double() - exact).norm()
                for y in (torch.nn.functional.linear(x, W.to(dtype)), M._matmul(x))
            )
            assert ours <= 2 * dense


@every_class
def test_matmul_operator_is_torch_matmul(cls):
    M = testing.member(cls, 6, 9, 2 if cls.ranked else None)
    W = M.to_dense()
    x, y, X = (torch.randn(*shape, dtype=torch.float64) for shape in ((9,), (6,), (2, 9, 4)))
    assert torch.allclose(M @ x, W @ x)
    assert torch.allclose(M @ X, W @ X)
    assert torch.allclose(M.T @ y, W.mT @ y)
    assert torch.allclose(M.T.to_dense(), W.mT)
    assert M.T.T is M
    assert M.T.shape == (9, 6)
    with pytest.raises(TypeError):
        M @ 3


@pytest.mark.parametrize("learned", ["vandermonde_like", "cauchy_like"])
@pytest.mark.parametrize("shape", [(1, 2), (5, 16), (129, 64)])
def test_learned_nodes(learned, shape):
    cls = torchldr.get_structure(learned)
    fixed = testing.member(cls, *shape, 1, seed=3)
    M = testing.member(cls, *shape, 1, seed=3, learn_nodes=True)
    assert torch.allclose(M.to_dense(), fixed.to_dense())
    testing.check_values(M)
    nodes = ["nodes"] if learned == "vandermonde_like" else ["s", "t"]
    leaves = {name: M.tensors[name].clone().requires_grad_() for name in nodes}
    N = cls(*shape, **{**M.tensors, **leaves}, learn_nodes=True)
    x, y = torch.randn(3, shape[1], dtype=torch.float64), torch.randn(3, shape[0], dtype=torch.float64)
    ours = torch.autograd.grad(N.matmul(x), leaves.values(), y)
    exact = torch.autograd.grad(x @ N.to_dense().mT, leaves.values(), y)
    for a, b in zip(ours, exact, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9 * b.abs().max().item())


def test_toeplitz_like_has_no_dead_parameters():
    """For every shape the map from (G, H) to M has the full rank that its scaling freedom allows."""
    for m, n in ((4, 4), (8, 4), (4, 8), (16, 8), (6, 4), (7, 4), (4, 7), (12, 8)):
        M = testing.member(torchldr.ToeplitzLike, m, n, 1)

        def dense(G, H, M=M):
            return torchldr.ToeplitzLike(M.out_features, M.in_features, G=G, H=H).to_dense().flatten()

        J = torch.cat([j.flatten(1) for j in torch.func.jacrev(dense, argnums=(0, 1))(M.G, M.H)], 1)
        assert torch.linalg.matrix_rank(J) == m + n - 1
