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
    """What counts as zero in a difference of A and B: `eps`, or None, nothing, where they are learned apart.

    Equal values have derivatives of their own then, which a difference that is left out would lose.
    """
    learned, other = (_leaves(X.entries().values) for X in (A, B))
    return eps if learned == other else None


def _leaves(t: Tensor) -> set[int]:
    """The learned tensors that a tensor is computed from, by their ids."""
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
    b = Entries(*(t.to(a.values.device) for t in b))  # a shift by a number lives nowhere in particular
    dtype = torch.promote_types(a.values.dtype, b.values.dtype)
    values = torch.cat((a.values.to(dtype), -b.values.to(dtype)))
    return Entries(torch.cat((a.rows, b.rows)), torch.cat((a.columns, b.columns)), values)


@dataclass(frozen=True)
class LowRankSum:
    """A sparse matrix as a sum of as many dyads as it has nonzero rows, or columns if those are fewer.

    That number is at least the matrix's rank, and equal to it for differences of shifts.
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
    """The dyads of a sparse matrix; entries that are rounding alone, at this precision, count as zero.

    Without a precision all entries count.
    """
    kept = nonzero(entries, n, eps)
    by_rows, by_columns = (int(line.unique().shape[0]) for line in kept[:2])
    return LowRankSum(kept, n, by_rows <= by_columns, min(by_rows, by_columns))


def nonzero(entries: Entries, n: int, eps: float | None = 0.0) -> Entries:
    """Each place once, without those whose sum is within 4 eps of the size of what is added there."""
    rows, columns, values = coalesced(entries, n)
    if eps is None:
        return Entries(rows, columns, values)
    size = coalesced(entries._replace(values=entries.values.detach().abs()), n).values
    kept = values.detach().abs() > 4 * eps * size
    return Entries(rows[kept], columns[kept], values[kept])
