"""The algebra on a GPU: results, generators and members on the device of their parts."""

import pytest
import torch

import torchldr
from torchldr.algebra import block, displacement_rank, from_displacement
from torchldr.operators import Diagonal, Shift

every_class = pytest.mark.parametrize("cls", torchldr.structures().values(), ids=lambda cls: cls.name)


def drawn(cls, seed, n=48):
    g = torch.Generator().manual_seed(seed)
    return cls.random(n, n, *((1,) if cls.ranked else ()), dtype=torch.float64, generator=g).to("cuda")


@every_class
def test_results(cls):
    M, T = drawn(cls, 0), drawn(torchldr.ToeplitzLike, 1)
    V, W = M.to_dense(), T.to_dense()
    d = torch.linspace(0.5, 2, 48, dtype=torch.float64, device="cuda")
    x = torch.ones(96, 2, dtype=torch.float64, device="cuda")
    for result, want in (
        (M + T, V + W),
        (M @ T, V @ W),
        (T @ M.T, W @ V.mT),
        (Diagonal(d) @ M - T, d.unsqueeze(-1) * V - W),
        (block([[M, T], [T, M]]), torch.cat((torch.cat((V, W), 1), torch.cat((W, V), 1)))),
    ):
        part = x[: result.in_features]
        torch.testing.assert_close(result @ part, want @ part, rtol=1e-10, atol=1e-10)
        if result.rank_bound is not None:
            G, H = result.generators()
            assert G.device.type == H.device.type == "cuda"
            torch.testing.assert_close(G.mT @ H, result.displacement(), rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(result.recompress().to_dense(), want, rtol=1e-9, atol=1e-9)


def test_displacement_there_and_back():
    T = drawn(torchldr.ToeplitzLike, 0)
    Z = Shift(48)
    assert displacement_rank(T.to_dense(), Z, Z.T) == displacement_rank(T, Z, Z.T) == 3
    G, H = torchldr.algebra.generators(T, Z, Z.T)
    torch.testing.assert_close(from_displacement(Z, Z.T, G, H), T.to_dense())
    known = T.displacement_structure()
    W = from_displacement(known.A, known.B, *T.generators())
    torch.testing.assert_close(W, T.to_dense())
