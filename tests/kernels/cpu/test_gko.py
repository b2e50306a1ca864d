"""Elimination on generators in C, against the same steps in torch and against dense linear algebra."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchldr.functional.gko import elimination, plain
from torchldr.kernels.cpu import gko, library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))


def system(n: int, r: int, p: int, dtype: torch.dtype, ties: int) -> tuple[Tensor, ...]:
    """Nodes, some of them alike, generators and right-hand sides."""
    draw = torch.Generator().manual_seed(n)
    G, H, b = (torch.randn(rows, n, generator=draw, dtype=dtype) for rows in (r, r, p))
    t = torch.arange(n, dtype=torch.float64).to(dtype)
    s = t + 0.5
    for i in range(ties):
        t[2 * i + 1], s[3 * i + 1] = t[2 * i].clone(), s[3 * i].clone()
    return s, t, G, H, b


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("ties", [0, 2])
@pytest.mark.parametrize(
    ("n", "r", "p"),
    [(1, 1, 1), (2, 1, 3), (17, 2, 2), (40, 3, 1), (40, 4, 4), (60, 5, 2), (70, 9, 1), (600, 2, 1)],
)
def test_the_steps_are_those_of_torch(n: int, r: int, p: int, ties: int, dtype: torch.dtype) -> None:
    ties = ties if r > 1 and n > 10 else 0
    s, t, G, H, b = system(n, r, p, dtype, ties)
    tables = elimination.same_node(s), elimination.same_node(t)
    results = []
    for loops in (gko, plain):
        of = [v.clone() for v in (s, t, G, H, b)]
        order, places, d = torch.arange(n), torch.arange(n), torch.empty(n, dtype=dtype)
        kept = tuple(torch.zeros(table.shape, dtype=dtype) for table in tables)
        assert loops.eliminate(*of, order, d, tables, kept, places)
        y = b[:, order].contiguous()
        loops.forward(of[0], t, G[:, order].contiguous(), of[3], d, y)
        x = y.clone()
        loops.backward(t, of[2].clone(), of[3].clone(), d, tables[1], kept[1], x)
        results.append((*of, order, d, *kept, places, y, x))
    # Complex pivots differ: C compares |re| + |im|, torch the absolute values. The solutions do not.
    compared = results if dtype is torch.float64 else [result[-1:] for result in results]
    for got, right in zip(*compared, strict=True):
        if got.dtype is torch.int64:
            assert torch.equal(got, right)
        else:
            assert (got - right).norm() <= 1e-8 * right.norm()
    C = elimination.cauchy_like_reference(s, t, G, H)
    x = results[0][-1]
    assert (x @ C.mT - b).norm() <= 1e-8 * C.norm() * x.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_singular_matrix(dtype: torch.dtype) -> None:
    s, t, G, H, b = system(6, 2, 1, dtype, 0)
    G[:, 3] = 0
    empty = torch.empty(6, 0, dtype=torch.int64), torch.empty(6, 0, dtype=torch.int64)
    kept = torch.empty(6, 0, dtype=dtype), torch.empty(6, 0, dtype=dtype)
    assert not gko.eliminate(s, t, G, H, b, torch.arange(6), b[0].clone(), empty, kept, torch.arange(6))


def test_substitution() -> None:
    w, b = torch.randn(2, 30, dtype=torch.float64)
    w[0] = 8
    lag = torch.arange(30).unsqueeze(-1) - torch.arange(30)
    T, y = torch.where(lag >= 0, w[lag.clamp(min=0)], 0.0), torch.stack((b, 2 * b))
    gko.substitute(w, y)
    assert torch.allclose(y @ T.mT, torch.stack((b, 2 * b)))
