"""Learn a hidden transform from few examples: a dense layer fails, and LDR-SD shows how the transform works.

    python examples/hidden_transform.py

The examples are inputs and outputs of an unknown linear transform of 64 numbers, with a little noise. It
shifts a signal with a strength that changes along the way: nearly a convolution. There are fewer examples
than unknowns in a row of the matrix, so a dense layer fits them perfectly and is wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchldr import LDRSubdiagonal, StructuredLinear

FEATURES, EXAMPLES, STEPS = 64, 48, 500


def transform() -> tuple[Tensor, Tensor]:
    """The matrix, and its strength along the signal."""
    place = torch.linspace(0, 1, FEATURES)
    gain = torch.exp(1.2 * torch.sin(6 * place))
    echoes = torch.exp(-place * 8) * torch.cos(place * 40)  # what it makes of a single pulse
    i = torch.arange(FEATURES)
    delay = i[:, None] - i
    return gain[:, None] / gain * torch.where(delay >= 0, echoes[delay % FEATURES], 0.0), gain


def train(layer: nn.Module, x: Tensor, y: Tensor) -> None:
    """Train it like any layer."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        optimizer.step()
        schedule.step()


def bent(values: Tensor) -> Tensor:
    """Without the straight line that fits best."""
    place = torch.linspace(-1, 1, len(values))
    return values - values.mean() - place * (values @ place) / (place @ place)


def main() -> None:
    torch.manual_seed(0)
    hidden, gain = transform()
    x, new = torch.randn(EXAMPLES, FEATURES), torch.randn(1000, FEATURES)
    y = x @ hidden.mT + 0.05 * torch.randn(EXAMPLES, FEATURES)

    def structured(name: str, rank: int | None = None) -> StructuredLinear:
        return StructuredLinear(FEATURES, FEATURES, bias=False, structure=name, rank=rank)

    ours = structured("ldr_sd", 1)
    layers = {
        "dense": nn.Linear(FEATURES, FEATURES, bias=False),
        "low_rank, rank 2": structured("low_rank", 2),
        "circulant": structured("circulant"),
        "toeplitz_like, rank 2": structured("toeplitz_like", 2),
        "ldr_sd, rank 1": ours,
    }
    print(f"{EXAMPLES} examples for {hidden.numel():,} entries")
    print(f"{'layer':22} {'parameters':>10} {'error on new inputs':>20}")
    for name, layer in layers.items():
        train(layer, x, y)
        with torch.no_grad():
            error = (layer(new) - new @ hidden.mT).norm() / (new @ hidden.mT).norm()
        print(f"{name:22} {sum(p.numel() for p in layer.parameters()):10,} {float(error):20.0%}")

    # The operators have one weight for each step along the signal. Their products up to a place are the gain
    # there, which no example shows, times a power that A and C may share in any way. In logarithms that is a
    # straight line, which is subtracted from both.
    learned = ours.matrix()
    assert isinstance(learned, LDRSubdiagonal)
    found = learned.subdiagonal_A.detach().abs().log().cumsum(0)
    both = torch.stack([bent(found), bent((gain[1:] / gain[0]).log())])
    print(f"the learned gain and the true one, correlation of logarithms: {torch.corrcoef(both)[0, 1]:.3f}")


if __name__ == "__main__":
    main()
