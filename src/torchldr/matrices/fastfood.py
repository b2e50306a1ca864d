"""Fastfood: diagonals between Hadamard transforms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..algebra.members import scales_columns, scales_rows
from ..core.contract import Random, Weights
from ..core.matrix import StructuredMatrix, normal_
from ..core.rules import rule
from ..functional.exported.dense import FormulaProduct
from ..functional.orthogonal import LARGEST_KEPT, hadamard_matrix, hadamard_reference, hadamard_transform
from ..linalg.solvers import Candidate, formula
from ..project.diagonals import Diagonals, best_of
from ..project.problem import Problem, Tensors


class Fastfood(StructuredMatrix, name="fastfood"):
    """Fastfood: M = S Had D Perm Had B.

    Had is the orthonormal Hadamard transform of the next power of two p >= N = max(m, n), padded and
    cropped to N; S, D and B are diagonal, Perm a permutation of N drawn once.

    Parameters: `S` (m), `D` (N), `B` (n); `permutation` (N) is kept in the state_dict. Cost: two
    Hadamard transforms a vector, O(p log p).

    Reference: Le, Sarlós, Smola, "Fastfood", 2013; Yang et al., "Deep fried convnets", 2015.
    """

    look = "#888888", "*"

    cpu_frozen = 45.0
    cpu_training = 24.0, 16.0, 5e5
    gpu_frozen = 140.0, 5e9
    gpu_training = 50.0, 1.5e9
    projection_work = 4

    ranked = False
    scaled = ("S",)
    also_linear = "D", "B"
    drawn = ("permutation",)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"S": (out_features,), "D": (max(out_features, in_features),), "B": (in_features,)}

    @classmethod
    def constants(
        cls, out_features: int, in_features: int, rank: int, *, generator: Random = None, **options: Any
    ) -> dict[str, Tensor]:
        where = generator.device if generator is not None else "cpu"
        drawn = torch.randperm(max(out_features, in_features), generator=generator, device=where)
        return {"permutation": drawn.to(options.get("device"))}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        n, size = in_features, max(out_features, in_features)
        tensors["B"].bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        normal_(tensors["D"], 1.0, generator)
        tensors["S"].fill_(_power_of_two(size) / (3 * n * size) ** 0.5)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        p = _power_of_two(max(out_features, in_features))
        return p * max(p.bit_length() - 1, 0) + 3 * p

    def fast_in_words(self) -> str:
        return f"2 Hadamard transforms of length {_power_of_two(max(self.shape))} a row"

    def factors(self) -> list[tuple[Tensor, ...]]:
        m, n = self.shape
        size = max(m, n)
        H = hadamard_reference(_power_of_two(size), self.dtype).to(self.device)
        inner = H[:size, :n][self.permutation]
        return [(torch.diag(self.S), H[:m, :size], torch.diag(self.D), inner, torch.diag(self.B))]

    def _materialize(self) -> Tensor:
        m, n = self.shape
        size = max(m, n)
        if size > LARGEST_KEPT:
            return super()._materialize()
        H = hadamard_matrix(_power_of_two(size), self.dtype, self.device)
        inner = H[:size, :n].index_select(0, self.permutation) * self.D.unsqueeze(-1)
        return self.S.unsqueeze(-1) * (H[:m, :size] @ inner) * self.B

    def _matmul(self, x: Tensor) -> Tensor:
        m, n = self.shape
        size = max(m, n)
        y = _padded_hadamard(x * self.B, size)[..., :size][..., self.permutation]
        return _padded_hadamard(y * self.D, size)[..., :m] * self.S

    def _rmatmul(self, y: Tensor) -> Tensor:
        m, n = self.shape
        size = max(m, n)
        x = _padded_hadamard(y * self.S, size)[..., :size] * self.D
        return _padded_hadamard(x[..., self.permutation.argsort()], size)[..., :n] * self.B


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _padded_hadamard(x: Tensor, size: int) -> Tensor:
    return hadamard_transform(pad(x, (0, _power_of_two(size) - x.shape[-1])))


# Closure: diagonals go into its own.

scales_rows(Fastfood, "S")
scales_columns(Fastfood, "B")


# Solving: Hadamard transforms, where n is a power of two.


@rule("solvers", Fastfood)
def _(M: Fastfood) -> list[Candidate] | None:
    n = M.in_features
    if n & (n - 1):
        return None  # cropped transforms are no longer orthogonal
    back = M.permutation.argsort()
    return [
        formula(
            "hadamard transform",
            lambda b: hadamard_transform((hadamard_transform(b / M.S) / M.D)[..., back]) / M.B,
            lambda b: hadamard_transform(hadamard_transform(b / M.B)[..., M.permutation] / M.D) / M.S,
        )
    ]


# Projection: one diagonal at a time, from several draws of signs.


@rule("project", Fastfood)
def project(problem: Problem, rank: int) -> Tensors:
    m, n = problem.shape
    size = max(m, n)
    Had = hadamard_reference(_power_of_two(size))
    R = Had[:size, :n][problem.constants["permutation"]]
    alternation = Diagonals(problem, Had[:m, :size], R, learn_B=True)
    signs = [torch.ones(n, dtype=torch.float64)]
    for start in range(2 if problem.large else 6):
        drawn = torch.randint(0, 2, (n,), generator=problem.generator(start))
        signs.append(2.0 * drawn.to(torch.float64) - 1)
    ones = torch.ones(m, dtype=torch.float64)
    pairs = [(ones, B) for B in signs] + [(alternation.inverse_start(B), B) for B in signs[:2]]
    return best_of(alternation, pairs)


# In an ONNX graph.

_RADIX = 32  # of a factor of the Hadamard matrix


@rule("onnx", Fastfood)
def product(mode: str, M: Fastfood) -> nn.Module:
    """S Had D Perm Had B x, Had as a few small matrix products."""
    left, radices = _power_of_two(M.D.shape[0]), []
    while left > 1:
        radices.append(min(_RADIX, left))
        left //= radices[-1]
    small = {f"hadamard_{radix}": hadamard_reference(radix).to(M.dtype) for radix in sorted(set(radices))}
    return FormulaProduct("small Hadamard matrices", _in_stages, **M.tensors, **small, radices=radices)


def _in_stages(
    x: Tensor, S: Tensor, D: Tensor, B: Tensor, permutation: Tensor, radices: list[int], **small: Tensor
) -> Tensor:
    size = math.prod(radices)

    def hadamard(x: Tensor) -> Tensor:
        y, done = pad(x, (0, size - x.shape[-1])), 1
        for radix in radices:
            H = small[f"hadamard_{radix}"]
            if done == 1:
                y = y.reshape(-1, size // radix, radix) @ H
            else:
                y = H @ y.reshape(-1, size // (radix * done), radix, done)
            done *= radix
        return y.reshape(-1, size)

    y = hadamard(x * B).index_select(-1, permutation) * D
    return hadamard(y)[:, : S.shape[0]] * S


# In C: two Hadamard transforms in place.

# work: 2 p
_TEXT = r"""
static void hadamard(float *z, int p)
{
    for (int h = 1; h < p; h *= 2)
        for (int i = 0; i < p; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                float difference = z[j] - z[j + h];
                z[j] += z[j + h];
                z[j + h] = difference;
            }
}

static void fastfood(const weight *S, const weight *D, const weight *B, float scale, const PLACE *order,
                     int m, int n, int size, int p, const float *x, float *y, float *work)
{
    float *a = work, *b = work + p;
    zero(work, 2 * p);
    for (int i = 0; i < n; i++)
        a[i] = (float)B[i] * x[i];
    hadamard(a, p);
    for (int i = 0; i < size; i++)
        b[i] = (float)D[i] * a[order[i]];
    hadamard(b, p);
    for (int i = 0; i < m; i++)
        y[i] = scale * (float)S[i] * b[i];
}
"""


@rule("c", Fastfood)
def _(M: Fastfood, c: Any) -> str:
    m, n = M.shape
    size = max(m, n)
    p = _power_of_two(size)
    names = [c.vector(name) for name in "SDB"]
    scale = np.prod([scale for _, scale in names]) / p
    kind, ctype = ("uint16", "uint16_t") if size <= 1 << 16 else ("uint32", "uint32_t")
    order = c.constant("order", M.permutation.cpu().numpy(), kind)
    c.define("fastfood", _TEXT.replace("PLACE", ctype), "zero")
    S, D, B = (name for name, _ in names)
    c.call(f"fastfood({S}, {D}, {B}, {c.literal(scale)}, {order}, {m}, {n}, {size}, {p}, x, y, work);")
    c.scratch, c.multiplications = 2 * p, 3 * size + p * p.bit_length()
    return "Hadamard transforms"


# In integers: additions alone, between the diagonals. work: size, sums: p
_HADAMARD = r"""
static void hadamard(int32_t *z, int32_t p)
{
    for (int32_t h = 1; h < p; h *= 2)
        for (int32_t i = 0; i < p; i += 2 * h)
            for (int32_t j = i; j < i + h; j++) {
                int32_t difference = z[j] - z[j + h];
                z[j] += z[j + h];
                z[j + h] = difference;
            }
}
"""
_INTEGER = r"""
static void fastfood(const int8_t *B, const PLACE *order, int32_t m, int32_t n, int32_t size, int32_t p,
                     int32_t zero, const rescaling *between, const rescaling *after, const int8_t *x, OUT *y,
                     int16_t *work, int32_t *sums)
{
    for (int32_t i = 0; i < p; i++)
        sums[i] = i < n ? B[i] * (x[i] - zero) : 0;
    hadamard(sums, p);
    for (int32_t i = 0; i < size; i++)
        work[i] = (int16_t)rescale(between, i, sums[order[i]]);
    for (int32_t i = 0; i < p; i++)
        sums[i] = i < size ? work[i] : 0;
    hadamard(sums, p);
    for (int32_t i = 0; i < m; i++)
        y[i] = (OUT)rescale(after, i, sums[i]);
}
"""


@rule("c_integer", Fastfood)
def _(M: Fastfood, c: Any) -> str:
    (m, n), size = M.shape, max(M.shape)
    p = _power_of_two(size)
    signs = hadamard_reference(p, torch.float64).sign()
    order = M.permutation.cpu()
    B, b, b_scale = c.vectors("B")
    (D, d_scale), (S, s_scale) = c.rows("D"), c.rows("S")
    outer = signs[:m, :size].contiguous()
    z = c.stage(signs[order, :n] * b, D, sums=outer.abs().sum(1))
    y = c.finish(outer, S * (s_scale * d_scale * b_scale / p))
    kind, ctype = ("uint16", "uint16_t") if size <= 1 << 16 else ("uint32", "uint32_t")
    places = c.constant("order", order, kind)
    c.define("hadamard", _HADAMARD)
    fastfood = c.function("fastfood", _INTEGER.replace("PLACE", ctype), "rescaling")
    c.call(f"{fastfood}({B}, {places}, {m}, {n}, {size}, {p}, {c.zero}, {z}, {y}, x, y, work, sums);")
    c.scratch16, c.scratch32, c.multiplications = size, p, 3 * size + p * p.bit_length()
    return "Hadamard transforms"
