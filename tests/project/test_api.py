"""Projection: `torchldr.from_dense`, for every class in the registry."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchldr
from torchldr import from_dense
from torchldr.core.registry import REGISTRY
from torchldr.core.rules import by_class

CLASSES = torchldr.structures()
RANKED = [name for name, cls in CLASSES.items() if cls.ranked]
FIXED = ["toeplitz_like", "hankel_like", "vandermonde_like", "cauchy_like", "low_rank"]
FIXED += ["monarch", "kronecker"]
LINEAR = ["dense", "circulant", "block_circulant"]
QUICK = 0.04  # effort: every claim below holds for any
seeds = st.integers(0, 2**31)


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=drawn(seed))


def rank_of(name: str, rank: int) -> int | None:
    return rank if CLASSES[name].ranked else None


def member(name: str, m: int, n: int, rank: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    cls = CLASSES[name]
    return cls.random(m, n, rank_of(name, rank), dtype=dtype, generator=drawn(seed)).to_dense()


def relative(rest: Tensor, whole: Tensor) -> float:
    return (rest.norm() / whole.norm()).item()


def test_every_class_has_a_projection():
    assert set(CLASSES.values()) <= set(by_class("project"))


# Members are found.


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("shape", [(64, 64), (48, 64), (64, 40)])
@pytest.mark.parametrize("name", FIXED)
def test_members_of_fixed_operators_are_found(name: str, shape: tuple[int, int], rank: int):
    W = member(name, *shape, rank, seed=rank)
    found = from_dense(W, name, rank)
    assert found.residual < 1e-10
    assert relative(W - found.matrix.to_dense(), W) == pytest.approx(found.residual, abs=1e-12)


@given(st.sampled_from([*FIXED, *LINEAR, "acdc"]), st.integers(1, 12), st.integers(1, 12), seeds)
@settings(max_examples=40)
def test_members_of_every_shape_are_found(name: str, m: int, n: int, seed: int):
    rank = 1 + seed % min(m, n, 4)
    W = member(name, m, n, rank, seed)
    found = from_dense(W, name, rank_of(name, rank))
    # A cropped Kronecker product leaves entries open, and alternation comes near: worst .0075 of 576 cases.
    a, b, c, d = found.matrix.sizes if name == "kronecker" else (m, 1, n, 1)
    cropped = (a * b, c * d) != (m, n)
    assert found.residual < (0.05 if cropped else 1e-6)


@pytest.mark.parametrize(("spread", "rank"), [(0.1, 1), (0.1, 2), (0.1, 4), (0.5, 2), (0.5, 4)])
@pytest.mark.parametrize("shape", [(64, 64), (48, 64), (64, 40)])
def test_members_of_ldr_sd_are_found(shape: tuple[int, int], spread: float, rank: int):
    """Subdiagonals in 1 +- .1, and even 1 +- .5: the operators are found from the displacement."""
    generator = drawn(rank)
    M = torchldr.LDRSubdiagonal.random(*shape, rank, dtype=torch.float64, generator=generator)
    for side in "AC":
        M.tensors[f"subdiagonal_{side}"].uniform_(1 - spread, 1 + spread, generator=generator)
    assert from_dense(M.to_dense(), "ldr_sd", rank).residual < 1e-8


def test_members_of_ldr_td_are_approached():
    W = member("ldr_td", 16, 16, 1, seed=1)
    found, simpler = (from_dense(W, name, 1, effort=0.25).residual for name in ("ldr_td", "ldr_sd"))
    assert found < 1e-2
    assert found < 0.2 * simpler


@pytest.mark.parametrize("shape", [(16, 16), (12, 16), (16, 12)])
def test_members_of_fastfood_with_their_permutation_are_found(shape: tuple[int, int]):
    M = torchldr.Fastfood.random(*shape, dtype=torch.float64, generator=drawn(0))
    found = from_dense(M.to_dense(), "fastfood", permutation=M.permutation)
    assert torch.equal(found.matrix.permutation, M.permutation)
    assert found.residual < 1e-6


@pytest.mark.parametrize("name", CLASSES)
def test_the_default_device_does_not_matter(name: str):
    W = normal(6, 5, seed=0)
    found = from_dense(W, name, rank_of(name, 1), effort=QUICK)
    with torch.device("meta"):
        other = from_dense(W, name, rank_of(name, 1), effort=QUICK)
    assert other.residual == found.residual
    assert torch.equal(other.matrix.to_dense(), found.matrix.to_dense())


@pytest.mark.parametrize("name", CLASSES)
def test_float32_stays_float32(name: str):
    """Computed in float64, rounded at the end; the residual is that of the rounded matrix."""
    W = member(name, 10, 12, 2, seed=5, dtype=torch.float32)
    found = from_dense(W, name, rank_of(name, 2), effort=QUICK)
    assert found.matrix.dtype == W.dtype
    learned = CLASSES[name].parameter_shapes(10, 12, 2, **found.matrix.options)
    assert all(found.matrix.tensors[key].dtype == W.dtype for key in learned)
    assert relative(W.double() - found.matrix.double().to_dense(), W) == pytest.approx(found.residual)
    if name in (*FIXED, *LINEAR, "acdc", "ldr_sd"):
        assert found.residual < 1e-4
    y = found.matrix.matmul(torch.ones(12))
    assert torch.allclose(y, found.matrix.to_dense().sum(1), atol=1e-4)


@pytest.mark.parametrize("name", ["toeplitz_like", "cauchy_like", "circulant"])
def test_bfloat16(name: str):
    W = member(name, 8, 8, 1, seed=6).bfloat16()
    found = from_dense(W, name, rank_of(name, 1))
    assert found.matrix.dtype == torch.bfloat16
    assert found.residual < 0.1


# What is optimal is optimal.


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 14), seeds, st.booleans())
@settings(max_examples=40)
def test_circulant_kinds_are_least_squares(m: int, n: int, size: int, seed: int, weighted: bool):
    """What is left is orthogonal to every member of the class."""
    W, X = normal(m, n, seed=seed), normal(3 * n, n, seed=seed + 1) if weighted else None
    moments = torch.eye(n, dtype=torch.float64) if X is None else X.mT @ X
    block = {"block_size": min(size, max(m, n))}
    for name, options in (("circulant", {}), ("block_circulant", block)):
        M = from_dense(W, name, activations=X, **options).matrix
        other = CLASSES[name].random(m, n, dtype=torch.float64, generator=drawn(seed), **options).to_dense()
        inner = (((W - M.to_dense()) @ moments) * other).sum()
        assert abs(inner) <= 1e-9 * (W @ moments).norm() * other.norm()


@given(st.integers(1, 12), st.integers(1, 12), seeds)
@settings(max_examples=20)
def test_low_rank_is_the_truncated_svd(m: int, n: int, seed: int):
    W, rank = normal(m, n, seed=seed), 1 + seed % min(m, n)
    tail = torch.linalg.svdvals(W)[rank:].norm() / W.norm()
    assert from_dense(W, "low_rank", rank).residual == pytest.approx(tail.item(), abs=1e-12)
    X = normal(2 * n, n, seed=seed + 1)
    S = torch.linalg.svdvals(W @ X.mT)
    weighted = from_dense(W, "low_rank", rank, activations=X).weighted_residual
    assert weighted == pytest.approx((S[rank:].norm() / S.norm()).item(), abs=1e-9)


@pytest.mark.parametrize("name", ["toeplitz_like", "cauchy_like", "vandermonde_like"])
def test_refinement_improves_on_the_truncated_displacement(name: str):
    """And leaves generators that are the best for each other: no gradient is left in either."""
    W = normal(20, 20, seed=3)
    M = from_dense(W, name, 2, effort=5.0).matrix
    G, H = (M.tensors[key].clone().requires_grad_() for key in "GH")
    rest = W - CLASSES[name](20, 20, **{**M.tensors, "G": G, "H": H}).to_dense()
    gradients = torch.autograd.grad(rest.square().sum() / W.square().sum(), (G, H))
    assert all((g * t).norm() < 2e-3 for g, t in zip(gradients, (G, H), strict=True))
    assert rest.norm() < 0.95 * W.norm()


# Larger classes and higher ranks are never worse.


def best_of(W: Tensor, name: str, rank: int, X: Tensor | None) -> float:
    found = from_dense(W, name, rank, activations=X, effort=QUICK)
    return found.residual if X is None else found.weighted_residual


@pytest.mark.parametrize(("shape", "weighted"), [((8, 8), False), ((6, 9), True), ((9, 6), False)])
def test_no_class_is_worse_than_those_it_contains(shape: tuple[int, int], weighted: bool):
    m, n = shape
    W, X = normal(m, n, seed=m), normal(20, n, seed=n) if weighted else None
    contained = {"ldr_sd": ["toeplitz_like", "low_rank"], "ldr_td": ["ldr_sd", "hankel_like"]}
    contained["monarch"] = contained["blast"] = ["low_rank"]
    contained["ldr_td"] += ["vandermonde_like"] if n <= m else []
    names = {*contained, *itertools.chain(*contained.values())}
    found = {name: best_of(W, name, 2, X) for name in names}
    for name, smaller in contained.items():
        assert found[name] <= (1 + 1e-9) * min(found[other] for other in smaller)


CONTAINED = [("ldr_sd", "toeplitz_like"), ("ldr_sd", "low_rank"), ("ldr_td", "hankel_like")]
CONTAINED += [("ldr_td", "vandermonde_like"), ("ldr_td", "ldr_sd"), ("ldr_td", "low_rank")]


@pytest.mark.parametrize(("larger", "smaller"), CONTAINED)
def test_near_a_class_it_contains_a_larger_class_is_as_near(larger: str, smaller: str):
    """Members with a hundredth of noise: found only from a start in the smaller class."""
    W, noise = member(smaller, 14, 12, 2, seed=3), normal(14, 12, seed=4)
    W = W + 0.01 * W.norm() / noise.norm() * noise
    ours, theirs = (from_dense(W, name, 2, effort=QUICK).residual for name in (larger, smaller))
    assert ours <= theirs * (1 + 1e-9) < 0.0101


@pytest.mark.parametrize("shape", [(12, 12), (9, 12)])
def test_ldr_sd_is_not_worse_than_with_its_shifts(shape: tuple[int, int]):
    """On a member of the subclass with shifts and no corners, plus noise, against its own parameters."""
    M = torchldr.LDRSubdiagonal.random(*shape, 2, dtype=torch.float64, generator=drawn(1))
    for side in "AC":
        M.tensors[f"subdiagonal_{side}"].fill_(1)
        M.tensors[f"corner_{side}"].zero_()
    noise = normal(*shape, seed=2)
    W = M.to_dense() + 0.02 * M.to_dense().norm() / noise.norm() * noise
    assert from_dense(W, "ldr_sd", 2, effort=QUICK).residual <= relative(W - M.to_dense(), W)


@pytest.mark.parametrize("name", ["cauchy_like", "vandermonde_like"])
def test_learned_nodes_are_not_worse_than_fixed_ones(name: str):
    W = normal(8, 8, seed=4)
    fixed = from_dense(W, name, 2, effort=QUICK).residual
    learned = from_dense(W, name, 2, effort=QUICK, learn_nodes=True)
    assert learned.residual < fixed
    assert learned.matrix.options["learn_nodes"]


@pytest.mark.parametrize("name", RANKED)
def test_residual_falls_with_the_rank(name: str):
    W = normal(8, 9, seed=7)
    residuals = [from_dense(W, name, rank, effort=QUICK).residual for rank in (1, 2, 3)]
    for lower, higher in itertools.pairwise(residuals):
        assert higher <= lower * (1 + 1e-9)
    assert residuals[-1] < residuals[0]


# Activations.


@pytest.mark.parametrize("name", CLASSES)
def test_activations_weigh_the_error(name: str):
    """On inputs that live in a few directions the weighted projection loses less than the plain one."""
    W, X = normal(8, 10, seed=1), normal(2, 15, 10, seed=2) * torch.logspace(0, -2, 10, dtype=torch.float64)
    rank = rank_of(name, 2)
    plain, weighted = (from_dense(W, name, rank, activations=x, effort=QUICK) for x in (None, X))
    assert plain.weighted_residual is None
    outputs = X.flatten(0, 1) @ W.mT

    def lost(M: torchldr.StructuredMatrix) -> float:
        return relative(outputs - X.flatten(0, 1) @ M.to_dense().mT, outputs)

    assert weighted.weighted_residual == pytest.approx(lost(weighted.matrix), abs=1e-12)
    assert weighted.weighted_residual <= lost(plain.matrix) + 1e-12
    if name not in ("dense",):
        assert weighted.weighted_residual < 0.9 * lost(plain.matrix)


def test_fewer_activations_than_features():
    W, X = normal(6, 9, seed=1), normal(2, 9, seed=2)
    assert from_dense(W, "low_rank", 2, activations=X).weighted_residual < 1e-12
    assert from_dense(W, "low_rank", 4, activations=X).weighted_residual < 1e-12
    assert from_dense(W, "block_circulant", activations=X).weighted_residual < 1
    assert from_dense(W, "toeplitz_like", 1, activations=X).weighted_residual < 1


# Options, seeds, edges, errors.


@pytest.mark.parametrize("name", ["fastfood", "ldr_sd", "toeplitz_like"])
def test_the_same_seed_gives_the_same_matrix(name: str):
    W, before = normal(7, 6, seed=1), torch.get_rng_state()
    first, second = (from_dense(W, name, rank_of(name, 2), seed=5, effort=QUICK) for _ in range(2))
    for key, tensor in first.matrix.tensors.items():
        assert torch.equal(tensor, second.matrix.tensors[key])
    assert torch.equal(before, torch.get_rng_state())  # the global generator is left alone


def test_another_seed_draws_another_permutation():
    W = normal(16, 16, seed=1)
    a, b = (from_dense(W, "fastfood", seed=seed, effort=QUICK).matrix for seed in (0, 1))
    assert not torch.equal(a.permutation, b.permutation)


def test_options_are_those_of_the_class():
    W = normal(8, 8, seed=1)
    assert from_dense(W, "block_circulant", block_size=4).matrix.column.shape == (2, 2, 4)
    assert from_dense(W, "blast", blocks=2, effort=QUICK).matrix.options["blocks"] == 2
    M = from_dense(W, "ldr_td", normalize=True, effort=QUICK).matrix
    assert M.options["normalize"]
    nodes = torch.linspace(-0.5, 0.5, 8, dtype=torch.float64)
    N = torchldr.VandermondeLike(8, 8, G=normal(1, 8, seed=2), H=normal(1, 8, seed=3), nodes=nodes)
    assert from_dense(N.to_dense(), "vandermonde_like", nodes=nodes).residual < 1e-10


def test_normalized_operators_are_not_worse_than_fixed_ones():
    W = normal(8, 8, seed=2)
    td = from_dense(W, "ldr_td", 1, normalize=True, effort=QUICK).residual
    assert td <= from_dense(W, "hankel_like", 1, effort=QUICK).residual * (1 + 1e-9)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_smallest_sizes_and_zero(name: str, shape: tuple[int, int]):
    rank = rank_of(name, 1)
    assert math.isfinite(from_dense(normal(*shape, seed=1), name, rank, effort=QUICK).residual)
    W = torch.zeros(shape, dtype=torch.float64)
    for X in (None, normal(9, shape[1], seed=2)):
        zero = from_dense(W, name, rank, activations=X, effort=QUICK)
        assert zero.residual == 0
        assert torch.equal(zero.matrix.to_dense(), W)


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1e150])
@pytest.mark.parametrize("name", ["toeplitz_like", "ldr_sd", "acdc", "low_rank"])
def test_scale_does_not_matter(name: str, scale: float):
    W = normal(6, 6, seed=1)
    plain = from_dense(W, name, rank_of(name, 1), effort=QUICK)
    scaled = from_dense(scale * W, name, rank_of(name, 1), effort=QUICK)
    assert scaled.residual == pytest.approx(plain.residual, rel=1e-6)


def test_each_class_has_its_own():
    W = normal(6, 5, seed=1).requires_grad_()
    found = torchldr.LowRank.from_dense(W, rank=2, activations=normal(9, 5, seed=2))
    matrix, residual, weighted = found
    assert isinstance(found, torchldr.matrices.Projection)
    assert isinstance(matrix, torchldr.LowRank)
    assert 0 < residual < 1
    assert 0 < weighted < 1
    assert not any(t.requires_grad for t in matrix.tensors.values())


def test_a_class_of_ones_own_is_projected_by_descent():
    try:

        class Scaled(torchldr.StructuredMatrix, name="scaled_identity_for_tests"):
            """M = G^T H o cos(i + j)."""

            @classmethod
            def init_(cls, tensors, out_features, in_features, generator=None, **options):
                for t in tensors.values():
                    t.normal_(generator=generator)

            def _wave(self):
                i, j = torch.arange(self.shape[0]), torch.arange(self.shape[1])
                return torch.cos((i.unsqueeze(1) + j).to(self.dtype))

            def factors(self):
                return [(self._wave() * (self.G.mT @ self.H),)]

            def _matmul(self, x):
                return x @ self.to_dense().mT

        M = Scaled(6, 7, G=normal(1, 6, seed=1), H=normal(1, 7, seed=2))
        assert Scaled.from_dense(M.to_dense(), rank=1).residual < 1e-6
        W = normal(6, 7, seed=3)
        first, second = (Scaled.from_dense(W, rank=rank, effort=QUICK).residual for rank in (1, 2))
        assert second < first < 1
    finally:
        REGISTRY.pop("scaled_identity_for_tests", None)


def test_progress_calls_back():
    calls: list[tuple[str, int, int]] = []
    from_dense(normal(6, 6, seed=1), "ldr_sd", 2, effort=QUICK, progress=lambda *call: calls.append(call))
    assert len(calls) > 10
    assert all(0 <= done <= total for _, done, total in calls)
    assert any("rank 2" in stage for stage, _, _ in calls)


@pytest.mark.parametrize("name", torchldr.structures())
@pytest.mark.parametrize("shape", [(16, 16), (9, 20)])
def test_float16_near_the_end_of_its_range(name: str, shape: tuple[int, int]):
    """The scale was left to one diagonal, which overflowed: nan, with a nan residual."""
    W = 1e4 * torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    M, residual, _ = from_dense(W.half(), name, effort=QUICK)
    assert all(t.isfinite().all() for t in M.tensors.values())
    assert residual == pytest.approx(from_dense(W, name, effort=QUICK).residual, abs=0.02)


@pytest.mark.parametrize("name", CLASSES)
def test_a_stack_is_projected_one_by_one(name: str):
    W, X = normal(2, 1, 5, 4, seed=1), normal(9, 4, seed=2)
    W[0] = 0
    how = {"rank": rank_of(name, 1), "activations": X, "effort": QUICK}
    found = from_dense(W, name, **how)
    assert found.matrix.shape == W.shape
    alone = from_dense(W[1, 0], name, **how).matrix
    for key, t in alone.tensors.items():
        assert torch.equal(found.matrix[1, 0].tensors[key], t), key
    rest = W - found.matrix.to_dense()
    assert found.residual == pytest.approx(relative(rest, W))
    assert found.weighted_residual == pytest.approx(relative(rest @ X.mT, W @ X.mT))


def infinite() -> Tensor:
    W = torch.ones(4, 4)
    W[1, 2] = torch.inf
    return W


@pytest.mark.parametrize(
    ("error", "message", "arguments", "keywords"),
    [
        (ValueError, "W must be finite, got 1", (infinite(), "ldr_sd"), {}),
        (ValueError, "shape", (torch.ones(4), "ldr_sd"), {}),
        (ValueError, "at least one matrix", (torch.ones(0, 4, 4), "ldr_sd"), {}),
        (ValueError, "out_features must be at least 1", (torch.ones(0, 3), "low_rank"), {}),
        (TypeError, "must be a tensor, got list", ([[1.0]], "ldr_sd"), {}),
        (TypeError, "real floating point, got torch.int64", (torch.ones(3, 3).long(), "ldr_sd"), {}),
        (TypeError, "complex64", (torch.ones(3, 3) * 1j, "ldr_sd"), {}),
        (ValueError, "between 1 and 3", (torch.ones(3, 5), "ldr_sd", 4), {}),
        (ValueError, "between 1 and 3", (torch.ones(3, 5), "toeplitz_like", 0), {}),
        (TypeError, "rank must be an int", (torch.ones(3, 5), "toeplitz_like", 1.5), {}),
        (ValueError, "has no rank", (torch.ones(3, 5), "circulant", 1), {}),
        (ValueError, "Did you mean 'ldr_sd'", (torch.ones(3, 5), "ldr_sdd"), {}),
        (TypeError, "unknown keyword 'block'", (torch.ones(3, 5), "block_circulant"), {"block": 3}),
        (TypeError, "unknown tensor 'node'", (torch.ones(3, 5), "vandermonde_like"), {"node": torch.ones(3)}),
        (ValueError, "nodes must have", (torch.ones(3, 5), "vandermonde_like"), {"nodes": torch.ones(5)}),
        (ValueError, "in_features=5", (torch.ones(3, 5), "low_rank"), {"activations": torch.ones(2, 3)}),
        (ValueError, "not all be zero", (torch.ones(3, 5), "low_rank"), {"activations": torch.zeros(2, 5)}),
        (ValueError, "activations must be finite", (torch.ones(4, 4), "dense"), {"activations": infinite()}),
        (ValueError, "effort must be", (torch.ones(3, 5), "low_rank"), {"effort": 0}),
    ],
)
def test_errors_name_the_rule(error: type[Exception], message: str, arguments: tuple, keywords: dict):
    with pytest.raises(error, match=message):
        from_dense(*arguments, **keywords)
