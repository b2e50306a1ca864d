"""Swap nn.Linear for StructuredLinear in a small network, and compare.

The data: one of eight random patterns, moved round by a random number of places, in noise. Which pattern
is it? Weights whose rows are shifts of each other suit such data, and a structured layer begins there.

    python examples/swap_linear.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

import torchldr
from torchldr import StructuredLinear

SIZE, CLASSES = 128, 8


def shifted_patterns(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy, cyclically shifted patterns (count, SIZE) and which pattern each is (count,)."""
    patterns = torch.randn(CLASSES, SIZE, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    shifts = torch.randint(SIZE, (count, 1), generator=generator)
    places = (torch.arange(SIZE) - shifts) % SIZE
    noise = torch.randn(count, SIZE, generator=generator)
    return patterns[labels].gather(1, places) + 0.5 * noise, labels


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(SIZE, SIZE, bias=False), nn.ReLU(), nn.Linear(SIZE, CLASSES))


def swap_linear_(model: nn.Module, name: str, **structure: Any) -> None:
    """Put a StructuredLinear of the same shape where the named nn.Linear stands."""
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    new = StructuredLinear(old.in_features, old.out_features, old.bias is not None, **structure)
    model.set_submodule(name, new)


def train(model: nn.Module, epochs: int, seed: int = 0) -> float:
    """Train with Adam and return the accuracy on fresh data."""
    generator = torch.Generator().manual_seed(seed)
    x, y = shifted_patterns(4000, generator)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(100):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    served = torchldr.freeze(model)  # precomputes what does not depend on the input
    x, y = shifted_patterns(4000, generator)
    with torch.no_grad():
        return (served(x).argmax(1) == y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Swap nn.Linear for StructuredLinear, and compare.")
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    print(f"{'hidden layer':24} {'parameters':>10} {'accuracy':>9}")
    for structure, rank in ((None, None), ("low_rank", 4), ("toeplitz_like", 4), ("ldr_sd", 3)):
        torch.manual_seed(0)
        model = network()
        if structure:
            swap_linear_(model, "0", structure=structure, rank=rank)
        title = f"{structure}, rank {rank}" if structure else "nn.Linear"
        count = sum(p.numel() for p in model[0].parameters())
        print(f"{title:24} {count:10,} {train(model, epochs):9.1%}")


if __name__ == "__main__":
    main()
