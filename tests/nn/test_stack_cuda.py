"""Dense weights of stacks on a GPU: what the scans make against the same module on a CPU, in float64."""

from __future__ import annotations

import copy

import pytest
import torch

from torchldr import StructuredChannels, StructuredLSTM
from torchldr.nn import channels_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "hankel_like"])
@pytest.mark.parametrize("sizes", [(16, 16), (20, 12), (12, 20), (1, 1), (2, 1), (137, 137)])
def test_channels_agree_with_the_cpu(
    structure: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    n, m = sizes
    torch.manual_seed(0)
    layer = StructuredChannels(3, 2, n, m, structure=structure, rank=2, dtype=torch.float64)
    layer.plan = "dense"
    if structure == "ldr_sd":
        with torch.no_grad():
            for name, p in layer.named_parameters():
                if "subdiagonal" in name or "corner" in name:
                    p.add_(0.3 * torch.randn_like(p))
    twin = copy.deepcopy(layer).cuda()
    x = torch.randn(5, 3, n, dtype=torch.float64)
    u = torch.randn(5, 2, m, dtype=torch.float64)
    y = layer(x)
    monkeypatch.setattr(channels_weights, "shifted_sum", None)  # what serves elsewhere is not called
    z = twin(x.cuda())
    torch.testing.assert_close(z.cpu(), y, rtol=1e-10, atol=1e-12)
    (y * u).sum().backward()
    (z * u.cuda()).sum().backward()
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad, rtol=1e-9, atol=1e-11)


def test_an_lstm_agrees_with_the_cpu() -> None:
    torch.manual_seed(0)
    layer = StructuredLSTM(16, 16, structure="ldr_sd", rank=2, which="both", dtype=torch.float64)
    twin = copy.deepcopy(layer).cuda()
    x = torch.randn(7, 3, 16, dtype=torch.float64)
    y, z = layer(x)[0], twin(x.cuda())[0]
    torch.testing.assert_close(z.cpu(), y, rtol=1e-10, atol=1e-12)
    y.square().sum().backward()
    z.square().sum().backward()
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad, rtol=1e-9, atol=1e-11)
