"""The compiled split product is right row by row, for every operator, shape and corner."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchldr import LDRSubdiagonal, testing
from torchldr.functional import compiled, split_single
from torchldr.functional.reference import krylov_reference, subdiagonal_reference
from torchldr.testing import REGIMES, tolerance

if compiled.why_not():
    pytest.skip(compiled.why_not(), allow_module_level=True)


@settings(max_examples=40)
@given(data=st.data())
def test_row_by_row(data):
    k = data.draw(st.sampled_from([32, 64, 128, 256]))
    m = k + data.draw(st.sampled_from([0, 1, 70, 300]))
    r, b = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    regime = data.draw(st.sampled_from(list(REGIMES)))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g).to(dtype)
    s = REGIMES[regime](torch.empty(m - 1, dtype=torch.float64), g).to(dtype)
    corner = draw(()) * data.draw(st.booleans())
    V, w, u = draw(r, m), draw(b, r, k), draw(b, m)
    A = subdiagonal_reference(s.double(), corner.double())
    K = torch.stack([krylov_reference(A, v.double(), k) for v in V])
    left, right = (split_single.prepare((s, corner, V), k, transposed=t) for t in (False, True))
    bound = tolerance(dtype, m)
    tiny = torch.finfo(dtype).tiny  # what underflows is lost, and may be
    error = split_single.matmul(left, w) - torch.einsum("rmk,brk->bm", K, w.double())
    size = torch.einsum("rmk,brk->bm", K.abs(), w.double().abs())
    assert (error.abs() <= bound * size + m * tiny).all()
    error = split_single.rmatmul(right, u) - torch.einsum("rmk,bm->brk", K, u.double())
    size = torch.einsum("rmk,bm->brk", K.abs(), u.double().abs())
    assert (error.abs() <= bound * size.amax((1, 2), keepdim=True) + m * tiny).all()


@pytest.mark.parametrize("regime", ["uniform", "zeros", "tiny", "1.05"])
@pytest.mark.parametrize("shape", [(128, 128), (64, 150), (150, 64)])
def test_inference_takes_it(regime, shape, monkeypatch):
    M = testing.member(LDRSubdiagonal, *shape, 2, regime=regime)  # float64: nothing wider to convolve in
    calls = []
    matmul = split_single.matmul
    monkeypatch.setattr(split_single, "matmul", lambda *a: calls.append(a) or matmul(*a))
    testing.check_values(M, (2,))
    assert calls


def test_applies_to_powers_of_two_alone():
    def prepared(k):
        return split_single.prepare(
            (torch.ones(299), torch.zeros(()), torch.ones(1, 300)), k, transposed=False
        )

    assert prepared(128) is not None
    assert prepared(96) is None
    assert prepared(16) is None
