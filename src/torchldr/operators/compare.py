"""Whether two operators are the same, and by how much they differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .base import Entries, Operator, coalesced


def same(A: Operator, B: Operator) -> bool:
    """Whether two operators have the same entries, exactly, whatever their kind.

    >>> import torch
    >>> from torchldr.operators import Shift, Subdiagonal, same
    >>> same(Shift(3), Subdiagonal(torch.ones(2)))
    True
    """
    return A is B or (A.n == B.n and low_rank_sum(difference(A, B), A.n, tolerance(A, B)).rank == 0)


def tolerance(A: Operator, B: Operator, eps: float = 0.0) -> float | None:
    """The tolerance for zero in a difference of A and B: `eps`, or None if they are separate parameters.

    Equal values then still have different derivatives, which an omitted difference would lose.
    """
    learned, other = (_leaves(X.entries().values) for X in (A, B))
    return eps if learned == other else None


def _leaves(t: Tensor) -> set[int]:
    """The ids of the learned tensors from which a tensor is computed."""
    if not (torch.is_grad_enabled() and t.requires_grad):
        return set()
    nodes, seen = [get_gradient_edge(t).node], set()
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions if before is not None]
    return {id(node.variable) for node in seen if hasattr(node, "variable")}


def difference(A: Operator, B: Operator) -> Entries:
    """The entries of A - B."""
    a, b = coalesced(A.entries(), A.n), coalesced(B.entries(), B.n)
    b = Entries(*(t.to(a.values.device) for t in b))  # a shift with a Python number has no device
    dtype = torch.promote_types(a.values.dtype, b.values.dtype)
    values = torch.cat((a.values.to(dtype), -b.values.to(dtype)))
    return Entries(torch.cat((a.rows, b.rows)), torch.cat((a.columns, b.columns)), values)


@dataclass(frozen=True)
class LowRankSum:
    """A sparse matrix as a sum of as many dyads as it has nonzero rows, or columns if those are fewer.

    The number is an upper bound of the rank, and equals it for differences of shifts.
    """

    entries: Entries
    n: int
    by_rows: bool
    rank: int

    def factors(self) -> tuple[Tensor, Tensor]:
        """U and V, both (rank, n), with U^T V the matrix."""
        rows, columns, values = self.entries
        line, across = (rows, columns) if self.by_rows else (columns, rows)
        lines, place = torch.unique(line, return_inverse=True)
        unit = torch.zeros(self.rank, self.n, dtype=values.dtype, device=values.device)
        unit[torch.arange(self.rank, device=values.device), lines] = 1
        flat = torch.zeros(self.rank * self.n, dtype=values.dtype, device=values.device)
        content = flat.index_add(0, place * self.n + across, values).reshape(self.rank, self.n)
        return (unit, content) if self.by_rows else (content, unit)


def low_rank_sum(entries: Entries, n: int, eps: float | None = 0.0) -> LowRankSum:
    """The dyads of a sparse matrix; entries at the level of rounding count as zero.

    With None as the precision all entries count.
    """
    kept = nonzero(entries, n, eps)
    by_rows, by_columns = (int(line.unique().shape[0]) for line in kept[:2])
    return LowRankSum(kept, n, by_rows <= by_columns, min(by_rows, by_columns))


def nonzero(entries: Entries, n: int, eps: float | None = 0.0) -> Entries:
    """Each place once, without sums below 4 eps times the size of their terms."""
    rows, columns, values = coalesced(entries, n)
    if eps is None:
        return Entries(rows, columns, values)
    size = coalesced(entries._replace(values=entries.values.detach().abs()), n).values
    kept = values.detach().abs() > 4 * eps * size
    return Entries(rows[kept], columns[kept], values[kept])
