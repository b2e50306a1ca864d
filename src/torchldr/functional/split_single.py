"""The split product of a few vectors on a CPU, compiled, for inference.

The trees of `split` with their nodes in the ring of `compiled_fft`: a node of two halves of N indices is a
product modulo X^{2N} + 1, of which the upper half is wanted and nothing wraps into it, one complex FFT of
length N. Constants are computed in float64 and then rounded. k is a power of two; row by row the error is
relative to |K| |w|, as in `split`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import stencil
from .arrays import as_array
from .split import Trees, split_prepare
from .subdiagonal import Side
from .threads import in_parts

BLOCK = 16  # the shortest FFT; larger dense blocks are more to read than they save


class CompiledSplit(NamedTuple):
    """K_k(A, v_i) for all i, for products from one side."""

    m: int
    k: int
    within: tuple[Any, ...]  # the constants of `compiled_trees`
    across: tuple[Any, ...] | None


def prepare(side: Side, k: int, *, transposed: bool) -> CompiledSplit | None:
    """Prepare the Krylov matrices of one operator for `matmul` or, transposed, for `rmatmul`.

    None where it does not apply: k not a power of two, or below twice the block; not on a CPU; no numba.
    """
    s, corner, V = side
    if k & (k - 1) or k < 2 * BLOCK or not stencil.serves(*side):
        return None
    wide = split_prepare(s.double(), corner.double(), V.double(), k, leaf=BLOCK, closed=corner.item() != 0)
    across = None if wide.across is None else _constants(wide.across, V.dtype, transposed)
    return CompiledSplit(wide.m, k, _constants(wide.within, V.dtype, transposed), across)


def _constants(trees: Trees, dtype: torch.dtype, transposed: bool) -> tuple[Any, ...]:
    from . import compiled_fft  # imports numba

    name = str(dtype).removeprefix("torch.")
    leaves = trees.leaves.unflatten(2, (-1, trees.leaves.shape[1])).permute(2, 0, 1, 3)  # [block, i, d, q]
    leaves = leaves.mT if transposed else leaves
    spectra, rows, tables = [], [], []
    for level in sorted(trees.levels, key=lambda level: level.rows.shape[-1]):
        N = level.rows.shape[-1]
        sources = torch.fft.irfft(level.spectra, 2 * N)[..., :N].transpose(0, 1)
        spectra.append(compiled_fft.spectra(sources.numpy(), N, name).ravel())
        rows.append((level.rows / N).numpy().ravel())
        tables.append(compiled_fft.tables(N, name))
    twists, turns = (np.concatenate([t.ravel() for t in of]) for of in zip(*tables, strict=True))
    arrays = leaves.contiguous().numpy(), np.stack(spectra), np.stack(rows)
    return *(a.astype(name) for a in arrays), twists, turns


def matmul(K: CompiledSplit, w: Tensor) -> Tensor:
    """sum_i K_k(A, v_i) w_i: (b, r, k) to (b, m)."""
    from .compiled_trees import trees_matmul

    coefficients = as_array(w.contiguous())
    y = np.empty((len(w), _total(K)), coefficients.dtype)
    _run(trees_matmul, coefficients, y, K.within)
    if K.across is not None:
        turned, other = np.zeros_like(coefficients), np.empty_like(y)
        turned[..., 1:] = coefficients[..., :0:-1]
        _run(trees_matmul, turned, other, K.across)
        y += other.reshape(len(w), _total(K) // K.k, K.k)[..., ::-1].reshape(y.shape)
    return torch.from_numpy(y[:, : K.m])


def rmatmul(K: CompiledSplit, u: Tensor) -> Tensor:
    """K_k(A, v_i)^T u for every i: (b, m) to (b, r, k)."""
    from .compiled_trees import trees_rmatmul

    source = as_array(u.contiguous())
    if K.m != _total(K):
        source = np.pad(source, ((0, 0), (0, _total(K) - K.m)))
    z = np.empty((len(u), K.within[0].shape[1], K.k), source.dtype)
    _run(trees_rmatmul, source, z, K.within)
    if K.across is not None:
        blocks = source.reshape(len(u), _total(K) // K.k, K.k)
        turned = np.ascontiguousarray(blocks[..., ::-1]).reshape(source.shape)
        other = np.empty_like(z)
        _run(trees_rmatmul, turned, other, K.across)
        z[..., 1:] += other[..., :0:-1]
    return torch.from_numpy(z)


def _total(K: CompiledSplit) -> int:
    blocks, _, block, _ = K.within[0].shape
    return int(blocks * block)


def _run(kernel: Any, source: Any, target: Any, constants: tuple[Any, ...]) -> None:
    def rows(start: int, stop: int) -> None:
        kernel(source[start:stop], target[start:stop], *constants)

    in_parts(len(source), constants[1].size, rows)
