"""Solving Cauchy-like systems by elimination on generators (the GKO method).

    matrix          C[i, j] = g_i . h_j / (s_i - t_j),  shape (n, n)
    displacement    diag(s) C - C diag(t) = G^T H, of rank r; G and H are (r, n)

A step of Gaussian elimination leaves a Schur complement with the same nodes and generators

    g_i - l_i g_k,    h_j - u_j h_k / d_k,    l_i = C[i, k] / d_k,  u_j = C[k, j],  d_k = C[k, k],

so one column and one row of the matrix at a time are made from the generators, the largest entry of the
column is the pivot, and the rest is never formed: O(n^2 r) operations. L and U are not kept either.
Kept are the generators' columns as each pivot left them, from which both triangles come again, L going
down as above, U going up: from h_j after step k

    u_j = g_k . h_j / (t_k - t_j),    h_j before it = h_j + u_j h_k / d_k.

Columns that share a node have no such quotient; their few entries of U are kept (a node that occurs more
than r times makes the matrix singular). In all O(n r) memory. The transposed system has the same factors
with the roles of G and H, s and t exchanged.

The tests hold C x = b and its transpose to `cauchy_like_reference`.

Reference: Gohberg, Kailath, Olshevsky, "Fast Gaussian elimination with partial pivoting for matrices with
displacement structure", 1995; for the memory Poloni, "A note on the O(n)-storage implementation of the
GKO algorithm", 2010.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.cpu import gko, library
from . import plain

DTYPES = (torch.float64, torch.complex128)  # that C serves


def cauchy_like_reference(s: Tensor, t: Tensor, G: Tensor, H: Tensor) -> Tensor:
    """The matrix g_i . h_j / (s_i - t_j), shape (n, n)."""
    return (G.mT @ H) / (s.unsqueeze(-1) - t)


class CauchyFactors(NamedTuple):
    """What an elimination leaves: enough to solve with the matrix and its transpose; made by `factor`.

    s, t: nodes, (n,); s in the order of the pivots. G, H: the generators at first, (r, n), G in the
    order of the pivots. G_pivot, H_pivot: column k as it was in step k. pivots: (n,). order: the row
    that each pivot came from. ties, kept: (rows, columns), each (n, q): places that share a node with
    this one, and the entries of L d and U there.
    """

    s: Tensor
    t: Tensor
    G: Tensor
    H: Tensor
    G_pivot: Tensor
    H_pivot: Tensor
    pivots: Tensor
    order: Tensor
    ties: tuple[Tensor, Tensor]
    kept: tuple[Tensor, Tensor]

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        """The solutions of C x = b, or of C^T x = b, for every row of b (p, n)."""
        if not transposed:
            B = b[:, self.order].contiguous()
            _run("forward", self.s, self.t, self.G.clone(), self.H_pivot, self.pivots, B)
            return self._substitute(B)
        B = b.clone(memory_format=torch.contiguous_format)
        _run("forward", self.t, self.s, -self.H, self.G_pivot, self.pivots, B)
        H, ties, kept = self.G_pivot.clone(), self.ties[0], self.kept[0]
        _run("backward", self.s, -self.H_pivot, H, self.pivots, ties, kept, B)
        return torch.empty_like(B).index_copy_(1, self.order, B)

    def _substitute(self, B: Tensor) -> Tensor:
        H, ties, kept = self.H_pivot.clone(), self.ties[1], self.kept[1]
        _run("backward", self.t, self.G_pivot, H, self.pivots, ties, kept, B)
        return B


def factor(s: Tensor, t: Tensor, G: Tensor, H: Tensor, b: Tensor) -> tuple[CauchyFactors, Tensor] | None:
    """Eliminate a Cauchy-like matrix, with partial pivoting, and solve on the way.

    Args:
        s, t: row and column nodes, shape (n,); none of s may equal one of t.
        G, H: generators, shape (r, n), float64 or complex128 as the nodes are.
        b: right-hand sides, shape (p, n).

    Returns:
        The factors and the solutions (p, n), or None where a pivot is zero: the matrix is singular.

    O(n^2 (r + p)) operations: one and a half passes over the triangles; a later `solve` takes one. The
    same, slowly: `torch.linalg.solve(cauchy_like_reference(s, t, G, H), b.mT).mT`.
    """
    n, r, dtype, device = s.shape[0], G.shape[0], G.dtype, G.device
    ties = same_node(s), same_node(t)
    if max(table.shape[1] for table in ties) >= r:
        return None
    s, G_pivot, H_pivot, B = (v.clone(memory_format=torch.contiguous_format) for v in (s, G, H, b.to(dtype)))
    order, places = torch.arange(n, device=device), torch.arange(n, device=device)
    pivots = torch.empty(n, dtype=dtype, device=device)
    kept = tuple(torch.zeros(table.shape, dtype=dtype, device=device) for table in ties)
    t = t.contiguous()
    if not _run("eliminate", s, t, G_pivot, H_pivot, B, order, pivots, ties, kept, places):
        return None
    rows = ties[0][order]
    rows = torch.where(rows >= 0, places[rows], rows)
    both = (rows.contiguous(), ties[1])
    factors = CauchyFactors(
        s,
        t,
        G[:, order].contiguous(),
        H.contiguous(),
        G_pivot,
        H_pivot,
        pivots,
        order,
        both,
        (kept[0], kept[1]),
    )
    return factors, factors._substitute(B)


def same_node(nodes: Tensor) -> Tensor:
    """For every place the others with the same node, shape (n, q) filled up with -1.

    q + 1 is how often the most frequent node occurs.
    """
    n = nodes.shape[0]
    _, found, how_often = np.unique(nodes.numpy(force=True), return_inverse=True, return_counts=True)
    group, counts = torch.from_numpy(found).to(nodes.device), torch.from_numpy(how_often).to(nodes.device)
    members = group.argsort(stable=True)
    start, count = (counts.cumsum(0) - counts)[group], counts[group]
    rank = torch.empty_like(members)
    rank[members] = torch.arange(n, device=nodes.device)
    table = [
        torch.where(step < count, members[start + (rank - start + step) % count], -1)
        for step in range(1, int(counts.max()))
    ]
    return torch.stack(table, -1) if table else members.new_empty(n, 0)


def _run(loop: str, *arguments: Any) -> Any:
    """One of the loops, in C where that can be."""
    nodes = arguments[0]
    compiled = nodes.device.type == "cpu" and nodes.dtype in DTYPES and library.why_not() is None
    with torch.no_grad():
        return getattr(gko if compiled else plain, loop)(*arguments)
