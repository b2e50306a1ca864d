"""Fast products of O(n^2) work hold no n x n matrix, and results no more than themselves."""

from pathlib import Path

import pytest
import torch

import torchldr
from torchldr import Toeplitz
from torchldr.matrices.classical import DCT2, DFT, Cauchy, Chebyshev, Hankel, Legendre, Vandermonde
from torchldr.testing.checks import forced

from .processes import Case, in_forks

CODE = """
import re, sys, torch, torchldr

def peak():  # megabytes; that of getrusage begins with the parent's
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024

with torch.no_grad():
    for n in (128, 6144):
        before = peak()
        layer = torchldr.StructuredLinear(n, n, structure=sys.argv[1])
        layer.product = "fast"
        layer(torch.randn(1, n))
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
@pytest.mark.parametrize("structure", ["ldr_td", "vandermonde_like", "cauchy_like"])
def test_fast_products_hold_no_square_matrix(structure):
    (ran,) = in_forks([Case(CODE, [structure])])
    assert ran.code == 0, ran.err
    assert float(ran.out) < 100  # megabytes; 6144 x 6144 floats are 144


f64 = {"dtype": torch.float64}
CLASSICAL = {
    "toeplitz": lambda: Toeplitz(torch.randn(5, **f64), torch.randn(7, **f64)),
    "hankel": lambda: Hankel(torch.randn(5, **f64), torch.randn(7, **f64)),
    "vandermonde": lambda: Vandermonde(torch.randn(5, **f64), 7),
    "cauchy": lambda: Cauchy(torch.randn(5, **f64), torch.randn(7, **f64)),
    "dft": lambda: DFT(5),
    "dct2": lambda: DCT2(5),
    "legendre": lambda: Legendre(5),
    "chebyshev": lambda: Chebyshev(5, torch.randn(7, **f64)),
}


def is_whole(t: torch.Tensor) -> bool:
    """Contiguous, and all that its memory holds: `.view(-1)` works and nothing else is kept alive."""
    return t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes


@pytest.mark.parametrize("name", torchldr.structures())
def test_results_of_both_products_are_whole(name):
    cls = torchldr.get_structure(name)
    for m, n in ((5, 8), (8, 5), (7, 7), (1, 3), (3, 1)):
        M = cls.random(m, n, 1 if cls.ranked else None, **f64)
        for batch in (1, 3):
            x, y = torch.randn(batch, n, **f64), torch.randn(batch, m, **f64)
            for product in forced(M):
                assert is_whole(M.matmul(x, product=product)), product
                assert is_whole(M.rmatmul(y, product=product)), product
        assert M.materialize().is_contiguous()


@pytest.mark.parametrize("name", CLASSICAL)
@pytest.mark.parametrize("batch", [1, 3])
def test_results_of_classical_matrices_are_whole(name, batch):
    M = CLASSICAL[name]()
    m, n = M.shape
    assert is_whole(M.matmul(torch.randn(batch, n, dtype=M.dtype)))
    assert is_whole(M.rmatmul(torch.randn(batch, m, dtype=M.dtype)))
