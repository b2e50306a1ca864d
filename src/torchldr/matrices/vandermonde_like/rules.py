"""Rules of Vandermonde-like matrices: closure, exact conversion, solving, their products in ONNX and in C."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...algebra.convert import convert
from ...algebra.members import linear_in_generators, member, scales_rows, shift, units
from ...algebra.structure import DisplacementStructure
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...functional.exported.convolution import toeplitz
from ...functional.exported.dense import FormulaProduct
from ...linalg.candidates import by_generators, real
from ...linalg.cauchy_forms import gko, vandermonde_form
from ...linalg.solvers import Candidate
from ...operators import Diagonal, same
from ..classical.families import Vandermonde
from ..ldr_td import LDRTridiagonal
from ..ldr_td.rules import diagonal_parts, shift_parts, tridiagonal, with_zero_operators
from ..toeplitz_like.rules import check_real
from . import VandermondeLike

# Closure.

linear_in_generators(VandermondeLike)
scales_rows(VandermondeLike, "G")


@rule("displacement_structure", VandermondeLike)
def _(M: VandermondeLike) -> DisplacementStructure:
    """M - diag(nodes) M Z_0^T, of rank r."""
    C = shift(M.in_features, 0.0, M)
    return DisplacementStructure(Diagonal(M.nodes), C.T, "stein", M.G.shape[0], lambda: (M.G, M.H))


# Powers of nodes past this factor cancel in a matrix of ordinary size, and its digits with them.
_MOST_POWER = math.log(1e4)


@rule("member", VandermondeLike)
def _(M: LinearMap, known: DisplacementStructure) -> VandermondeLike | None:
    nilpotent = shift(M.in_features, 0.0, M).T
    if not (isinstance(known.A, Diagonal) and known.form == "stein" and same(known.B, nilpotent)):
        return None
    nodes = known.A.d.to(M.dtype)
    if M.in_features * float(nodes.detach().abs().log().max()) > _MOST_POWER:
        return None
    return member(VandermondeLike, M, known.generators(), nodes=nodes, learn_nodes=True)


# Vandermonde matrices as Vandermonde-like ones, and these as members of LDR-TD.


@rule("to_vandermonde_like", Vandermonde)
def _of_powers(M: Vandermonde, tol: float | None) -> VandermondeLike:
    """Of rank 1: K_n(diag(nodes), 1) K_n(Z_0, e_0)^T."""
    check_real(M)
    G, H = torch.ones_like(M.nodes).unsqueeze(0), units(M.in_features, [0], M)
    return VandermondeLike(M.out_features, M.in_features, G=G, H=H, nodes=M.nodes)


rule("to_ldr_td", Vandermonde)(lambda M, tol: convert(_of_powers(M, tol), LDRTridiagonal))


@rule("to_ldr_td", VandermondeLike)
def _(M: VandermondeLike, tol: float | None) -> LDRTridiagonal:
    m, n = M.shape
    turns = -(-n // m) if m < n else 1  # its Krylov factors have n columns, those of LDR-TD min(m, n)
    if turns * M.G.shape[0] > min(m, n):
        return with_zero_operators(M.to_dense())
    G = torch.cat([M.G * M.nodes.to(M.dtype) ** (t * m) for t in range(turns)])
    H = torch.cat([pad(M.H, (t * m, 0))[:, :n] for t in range(turns)])  # Z_0^{t m} h
    return tridiagonal(G, H, diagonal_parts(M.nodes.to(M.dtype)), shift_parts(H))


# Solving: elimination on generators of a Cauchy form.


@rule("solvers", VandermondeLike)
def _(M: VandermondeLike) -> list[Candidate]:
    (last,) = units(M.in_features, [M.in_features - 1], M)
    form = gko("gko", lambda: vandermonde_form(M.nodes, M.G, M.H, M.matmul(last)))
    return by_generators(M, 2 * M.G.shape[0] + 2, [real(form)])


# In an ONNX graph.


@rule("onnx", VandermondeLike)
def product(mode: str, M: VandermondeLike) -> nn.Module:
    """sum_i diag(g_i) V T_i x: Toeplitz products, then polynomials at the nodes.

    V[i, j] = node_i^j with j = w a + b is node_i^{w a} node_i^b: a matrix product with small powers, then
    sums with large ones, from constants of m (w + n / w) numbers.
    """
    n = M.in_features
    width = math.isqrt(n - 1) + 1
    powers = torch.arange(width), torch.arange(0, n, width)
    small, large = ((M.nodes.detach().double() ** e.unsqueeze(-1)).to(M.dtype) for e in powers)
    symbol = M.H.detach().double().cpu().numpy()[:, None, ::-1]
    convolution = toeplitz(mode, symbol, 1 - n, n, n, M.dtype)
    form, parts = "convolutions, then polynomials at the nodes", {"small": small, "large": large, "G": M.G}
    return FormulaProduct(form, _at_nodes, convolution=convolution, **parts)


def _at_nodes(x: Tensor, convolution: nn.Module, small: Tensor, large: Tensor, G: Tensor) -> Tensor:
    width, steps = small.shape[0], large.shape[0]  # powers up to (w, m) and multiples of w, (n / w, m)
    z = pad(convolution(x.unsqueeze(1)), (0, steps * width - x.shape[-1]))  # (b, r, n), lengthened
    values = z.reshape(-1, G.shape[0], steps, width) @ small
    return ((values * large).sum(2) * G).sum(1)


# In C: correlations with h, then polynomials at the nodes by Horner's rule.

# work: n, the coefficients of a polynomial
_TEXT = r"""
static void vandermonde(const weight *G, const float *g_scale, const weight *H, const float *h_scale,
                        const float *nodes, int rank, int m, int n, const float *x, float *y, float *work)
{
    zero(y, m);
    for (int r = 0; r < rank; r++, G += m, H += n) {
        for (int j = 0; j < n; j++)
            work[j] = SCALE(g_scale, r) * SCALE(h_scale, r) * dot(H, x + j, n - j);
        for (int i = 0; i < m; i++) {
            float value = 0.0f;
            for (int j = n - 1; j >= 0; j--)
                value = value * nodes[i] + work[j];
            y[i] += (float)G[i] * value;
        }
    }
}
"""


@rule("c", VandermondeLike)
def _(M: VandermondeLike, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    (G, g_scale), (H, h_scale) = c.weights("G"), c.weights("H")
    nodes = c.floats("nodes")
    c.define("vandermonde", _TEXT, "zero", "dot")
    c.call(f"vandermonde({G}, {g_scale}, {H}, {h_scale}, {nodes}, {r}, {m}, {n}, x, y, work);")
    c.scratch, c.multiplications = n, r * (m * n + n * n / 2)
    return "polynomials at the nodes"


# In integers: correlations with h, then powers of the nodes: power <- (power node + half) >> shift.
# Rounding adds at most 1/2 to a power, which later steps multiply by |node|. work: n + r n
_INTEGER = r"""
static void vandermonde(const int8_t *G, const int8_t *H, const int16_t *nodes, int32_t start, int32_t shift,
                        int32_t narrow, int32_t rank, int32_t m, int32_t n, int32_t zero,
                        const rescaling *first, const rescaling *second, const rescaling *after,
                        const int8_t *x, OUT *y, int16_t *work)
{
    int32_t half = (int32_t)1 << (shift - 1), few = ((int32_t)1 << narrow) >> 1;
    int16_t *w = work + n;
    centre(x, zero, n, work);
    for (int32_t r = 0; r < rank; r++)
        for (int32_t j = 0; j < n; j++)
            w[r * n + j] = (int16_t)rescale(first, r, dot16(H + r * n, work + j, n - j));
    for (int32_t i = 0; i < m; i++) {
        int32_t sum = 0;
        for (int32_t r = 0; r < rank; r++) {
            int32_t value = 0, power = start;
            for (int32_t j = 0; j < n; j++) {
                value += ((power + few) >> narrow) * w[r * n + j];
                power = (power * nodes[i] + half) >> shift;
            }
            sum += G[r * m + i] * rescale(second, 0, value);
        }
        y[i] = (OUT)rescale(after, i, sum);
    }
}
"""
_MOST = 2.0**17  # sums of powers: what they multiply then keeps 12 bits


@rule("c_integer", VandermondeLike)
def _(M: VandermondeLike, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    (G, g, g_scale), (H, h, h_scale) = c.vectors("G"), c.vectors("H")
    nodes = M.nodes.detach().cpu().double()
    largest = max(1.0, nodes.abs().max().item())
    shift = max(1, 15 - math.frexp(largest)[1])  # of one column only, nodes do not matter
    growth = largest ** (n - 1)
    if growth > 2.0**10:
        raise OverflowError(f"powers of the nodes grow by {growth:.3g}")
    whole, start = (nodes * 2**shift).round().clamp(-32767, 32767), int(2**14 / growth)
    power, powers = torch.full_like(whole, start), []
    for _ in range(n):
        powers.append(power)
        power = (power * whole + 2 ** (shift - 1)).div(2**shift).floor()
    table, narrow = torch.stack(powers, 1), 0
    while (table.abs().sum(1).max() / 2**narrow) > _MOST:
        narrow += 1
    table = (table + 2**narrow // 2).div(2**narrow).floor()
    places = torch.arange(n) - torch.arange(n)[:, None]
    correlations = torch.where(places >= 0, h[:, places.clamp(min=0)], 0.0).reshape(r * n, n)
    first = c.stage(correlations, h_scale, 1 / g_scale, sums=table.abs().sum(1), repeat=n)
    second = c.stage(torch.block_diag(*[table] * r), 2.0**narrow / start, sums=g.abs().sum(0))
    y = c.finish(torch.cat([torch.diag(v) for v in g], 1), 1.0)
    at = c.constant("nodes", whole, "int16")
    vandermonde = c.function("vandermonde", _INTEGER, "dot16", "centre", "rescaling")
    sizes = f"{start}, {shift}, {narrow}, {r}, {m}, {n}"
    c.call(f"{vandermonde}({G}, {H}, {at}, {sizes}, {c.zero}, {first}, {second}, {y}, x, y, work);")
    c.scratch16, c.multiplications = n + r * n, r * (2 * m * n + n * n / 2)
    return "powers of the nodes"
