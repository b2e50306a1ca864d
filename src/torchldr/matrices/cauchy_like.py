"""Cauchy-like matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..algebra.members import linear_in_generators, member, scales_columns, scales_rows
from ..algebra.structure import DisplacementStructure
from ..core.contract import Random, Weights
from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix, generators_
from ..core.rules import rule
from ..core.storage import FLOAT, Storage
from ..functional.cauchy import TILE, cauchy_matmul, cauchy_reference
from ..functional.exported.dense import FormulaProduct
from ..linalg.candidates import by_generators
from ..linalg.cauchy_forms import CauchyForm, gko
from ..linalg.solvers import Candidate
from ..operators import Diagonal
from ..project.climbing import State, climb
from ..project.methods import learn_nodes
from ..project.pointwise import Pointwise, with_one_more
from ..project.problem import Problem, Tensors
from ..project.solving import halves, leading


def interleaved_nodes(
    m: int, n: int, dtype: torch.dtype, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """m + n equally spaced points of (-1, 1), dealt out evenly to s (m,) and t (n,)."""
    i, j = (torch.arange(k, device="cpu") for k in (m, n))  # whatever the default device is
    places = ((i + 1) * (m + n) - 1) // m, j * (m + n) // n  # no mask: its size would depend on values
    s, t = (((2 * p + 1).to(torch.float64) / (m + n) - 1).to(dtype=dtype, device=device) for p in places)
    return s, t


class CauchyLike(StructuredMatrix, name="cauchy_like"):
    """Cauchy-like: M[i, j] = sum_k G[k, i] H[k, j] / (s_i - t_j).

    Parameters: `G` (r, m), `H` (r, n); `s` (m) and `t` (n) interleave on (-1, 1) and so cannot meet, or
    are learned. Cost: O(r m n) operations a vector in O(m + n) memory.

    Options:
        learn_nodes: make `s` and `t` parameters. Nothing then keeps them apart but the loss.
    """

    stored: ClassVar[Mapping[str, Storage]] = {"s": FLOAT, "t": FLOAT}
    cpu_training = 1.0, 40.0, 3e6
    projection_work = 1

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, learn_nodes: bool = False
    ) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"G": (rank, out_features), "H": (rank, in_features)}
        return {**shapes, "s": (out_features,), "t": (in_features,)} if learn_nodes else shapes

    @classmethod
    def constants(
        cls, out_features: int, in_features: int, rank: int, *, dtype: torch.dtype, **options: Any
    ) -> dict[str, Tensor]:
        if options["learn_nodes"]:
            return {}
        wide = torch.promote_types(dtype, torch.float32)
        s, t = interleaved_nodes(out_features, in_features, wide, options.get("device"))
        return {"s": s, "t": t}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        r, m, n = tensors["G"].shape[-2], out_features, in_features
        s, t = interleaved_nodes(m, n, torch.float64)
        if options.get("learn_nodes"):
            tensors["s"].copy_(s)
            tensors["t"].copy_(t)
        generators_(tensors, r, generator)
        # Row i of M has mean square r / (s_i - t_j)^2, averaged over j: even the rows out.
        mean = torch.empty_like(s)
        for tile, part in zip(s.split(TILE), mean.split(TILE), strict=True):
            part.copy_(cauchy_reference(tile, t).square().mean(-1))
        tensors["G"].mul_(mean.rsqrt().to(tensors["G"]))

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        return rank * out_features * in_features

    def fast_in_words(self) -> str:
        m, n = self.shape[-2:]
        return f"{m * n:,} divisions, then {self.rank} products with {m * n:,} multiply-adds a row"

    def factors(self) -> list[tuple[Tensor, ...]]:
        C = cauchy_reference(self.s, self.t)
        return [(g.unsqueeze(-1) * C * h,) for g, h in zip(self.G, self.H, strict=True)]

    def _materialize(self) -> Tensor:
        return (self.G.mT @ self.H) * cauchy_reference(self.s, self.t)

    def _matmul(self, x: Tensor) -> Tensor:
        z = x.unsqueeze(-2) * self.H
        y = cauchy_matmul(self.s, self.t, z.flatten(0, 1)).unflatten(0, z.shape[:2])
        return (y * self.G).sum(-2)

    def _rmatmul(self, y: Tensor) -> Tensor:
        z = y.unsqueeze(-2) * self.G
        x = cauchy_matmul(self.t, self.s, z.flatten(0, 1)).unflatten(0, z.shape[:2])
        return -(x * self.H).sum(-2)


# Closure.

linear_in_generators(CauchyLike)
scales_rows(CauchyLike, "G")
scales_columns(CauchyLike, "H")


@rule("transpose", CauchyLike)
def _(M: CauchyLike) -> CauchyLike:
    tensors = {"G": -M.H, "H": M.G, "s": M.t, "t": M.s}
    return CauchyLike.unchecked(M.in_features, M.out_features, tensors, M.options)


@rule("displacement_structure", CauchyLike)
def _(M: CauchyLike) -> DisplacementStructure:
    """diag(s) M - M diag(t), of rank r."""
    rank = M.G.shape[0]
    return DisplacementStructure(Diagonal(M.s), Diagonal(M.t), "sylvester", rank, lambda: (M.G, M.H))


@rule("member", CauchyLike)
def _(M: LinearMap, known: DisplacementStructure) -> CauchyLike | None:
    if not (isinstance(known.A, Diagonal) and isinstance(known.B, Diagonal) and known.form == "sylvester"):
        return None
    s, t = known.A.d, known.B.d
    if s.is_complex() or t.is_complex() or bool(torch.isin(s, t).any()):
        return None
    nodes = {"s": s.to(M.dtype), "t": t.to(M.dtype)}
    return member(CauchyLike, M, known.generators(), **nodes, learn_nodes=True)


# Solving: elimination on their generators.


@rule("solvers", CauchyLike)
def _(M: CauchyLike) -> list[Candidate]:
    form = gko("gko", lambda: CauchyForm(M.s, M.t, M.G, M.H))
    return by_generators(M, M.G.shape[0], [form])


# Projection: the displacement's SVD, then alternating least squares.

_SWEEPS, _TOLERANCE = 60, 1e-5


@rule("project", CauchyLike)
def project(problem: Problem, rank: int) -> Tensors:
    """M o (s_i - t_j) has rank r: the displacement of a Cauchy-like matrix in Sylvester's form."""
    if problem.options["learn_nodes"]:
        return learn_nodes(problem, rank, ("s", "t"))
    s, t = problem.constants["s"], problem.constants["t"]
    c = cauchy_reference(s, t)
    pointwise = Pointwise(problem.W, c, None if problem.root is None else problem.root.mT)
    triplets = torch.linalg.svd(problem.W / c, full_matrices=False)

    def refined(G: Tensor, H: Tensor) -> State:
        G, H, loss = pointwise.alternate(G, H, problem.steps(_SWEEPS), _TOLERANCE)
        return State({"G": G, "H": H}, loss)

    def fresh(q: int) -> State:
        U, S, V = triplets
        return refined(*halves(U[:, :q], S[:q], V[:q]))

    def grown(state: State) -> State:
        G, H = state.tensors["G"], state.tensors["H"]
        rest = (problem.W - c * (G.mT @ H)) / c
        return refined(*with_one_more(G, H, halves(*leading(rest, 1, seed=problem.seed))[1]))

    return climb(problem, rank, fresh, grown).tensors


# In an ONNX graph.


@rule("onnx", CauchyLike)
def product(mode: str, M: CauchyLike) -> nn.Module:
    nodes = {"s": M.s.to(M.dtype), "t": M.t.to(M.dtype)}
    return FormulaProduct("made from its parameters when loaded", _from_nodes, G=M.G, H=M.H, **nodes)


def _from_nodes(x: Tensor, G: Tensor, H: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """x M^T with M = (G^T H) / (s_i - t_j), made in the graph."""
    return x @ ((H.mT @ G) / (s - t.unsqueeze(-1)))


# In C: entry by entry, from the nodes.

# work: r n, the vectors h_k x
_TEXT = r"""
static void cauchy(const weight *G, const float *g_scale, const weight *H, const float *h_scale,
                   const float *s, const float *t, int rank, int m, int n, const float *x, float *y,
                   float *work)
{
    for (int r = 0; r < rank; r++)
        for (int j = 0; j < n; j++)
            work[r * n + j] = SCALE(g_scale, r) * SCALE(h_scale, r) * (float)H[r * n + j] * x[j];
    for (int i = 0; i < m; i++) {
        float sum = 0.0f;
        for (int j = 0; j < n; j++) {
            float z = 0.0f;
            for (int r = 0; r < rank; r++)
                z += (float)G[r * m + i] * work[r * n + j];
            sum += z / (s[i] - t[j]);
        }
        y[i] = sum;
    }
}
"""


@rule("c", CauchyLike)
def _(M: CauchyLike, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    (G, g_scale), (H, h_scale) = c.weights("G"), c.weights("H")
    s, t = c.floats("s"), c.floats("t")
    c.define("cauchy", _TEXT)
    c.call(f"cauchy({G}, {g_scale}, {H}, {h_scale}, {s}, {t}, {r}, {m}, {n}, x, y, work);")
    c.scratch, c.multiplications = r * n, (r + 1) * m * n
    return "entries from the nodes"


# In integers: an entry is a division of integers, rounded. work: r n
_INTEGER = r"""
static void cauchy(const int8_t *G, const int8_t *H, const int32_t *s, const int32_t *t, int32_t numerator,
                   int32_t rank, int32_t m, int32_t n, int32_t zero, const rescaling *first,
                   const rescaling *second, const rescaling *after, const int8_t *x, OUT *y, int16_t *work)
{
    for (int32_t r = 0; r < rank; r++)
        for (int32_t j = 0; j < n; j++)
            work[r * n + j] = (int16_t)rescale(first, r, H[r * n + j] * (x[j] - zero));
    for (int32_t i = 0; i < m; i++) {
        int32_t sum = 0;
        for (int32_t r = 0; r < rank; r++) {
            int32_t value = 0;
            for (int32_t j = 0; j < n; j++) {
                int32_t apart = s[i] - t[j], size = apart < 0 ? -apart : apart;
                int32_t entry = (numerator + size / 2) / size;
                value += (apart < 0 ? -entry : entry) * work[r * n + j];
            }
            sum += G[r * m + i] * rescale(second, 0, value);
        }
        y[i] = (OUT)rescale(after, i, sum);
    }
}
"""


@rule("c_integer", CauchyLike)
def _(M: CauchyLike, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    (G, g, g_scale), (H, h, h_scale) = c.vectors("G"), c.vectors("H")
    s, t = (M.tensors[name].detach().cpu().double() for name in "st")
    apart = (s[:, None] - t).abs()
    low, high = apart.min().item(), max(apart.max().item(), s.abs().max().item(), t.abs().max().item())
    unit = min(2.0**30 / high, 2.0**16 / low) if low else 0.0
    if unit * low < 64:
        raise OverflowError(f"nodes are {low:.3g} apart")
    S, T = (unit * s).round(), (unit * t).round()
    numerator = int(2**14 * unit * low)
    size = (S[:, None] - T).abs()
    entries = (S[:, None] - T).sign() * ((numerator + (size / 2).floor()) / size).floor()
    first = c.stage(
        torch.cat([torch.diag(v) for v in h]), h_scale, 1 / g_scale, sums=entries.abs().sum(1), repeat=n
    )
    second = c.stage(torch.block_diag(*[entries] * r), unit / numerator, sums=g.abs().sum(0))
    y = c.finish(torch.cat([torch.diag(v) for v in g], 1), 1.0)
    places = f"{c.constant('s', S, 'int32')}, {c.constant('t', T, 'int32')}, {numerator}"
    cauchy = c.function("cauchy", _INTEGER, "rescaling")
    c.call(f"{cauchy}({G}, {H}, {places}, {r}, {m}, {n}, {c.zero}, {first}, {second}, {y}, x, y, work);")
    c.scratch16, c.multiplications = r * n, 2 * r * m * n
    return "entries from the nodes, by division"
