"""Declare a structured class of your own: one class, and layers and the conformance suite know it.

The class here is a diagonal times identity-plus-low-rank, M = diag(D) (E + G^T H): E has ones on its
diagonal and is m x n like M. It costs O(r (m + n)) a vector and, unlike a low-rank matrix, loses no
input.

    python examples/own_structure.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import torchldr
from torchldr.testing import check_structure


class ScaledIdentityPlusLowRank(torchldr.StructuredMatrix, name="scaled_identity_plus_low_rank"):
    """Scaled identity plus low rank: M = diag(D) (E + G^T H)."""

    scaled = ("D",)  # M is linear in D, so D carries its scale

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"D": (out_features,), "G": (rank, out_features), "H": (rank, in_features)}

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        # In expectation |E + G^T H|_F^2 = k + m n / n, and D brings |M|_F^2 to m / 3 as in nn.Linear.
        rank, k = tensors["G"].shape[0], min(out_features, in_features)
        tensors["G"].normal_(0, rank**-0.5, generator=generator)
        tensors["H"].normal_(0, in_features**-0.5, generator=generator)
        tensors["D"].fill_((out_features / (3 * (k + out_features))) ** 0.5)

    def factors(self) -> list[tuple[Tensor, ...]]:
        """The definition, as sums of products of dense factors: what everything is checked against."""
        D, E = torch.diag(self.D), torch.eye(*self.shape, dtype=self.dtype, device=self.device)
        return [(D, E), (D, self.G.mT, self.H)]

    def _matmul(self, x: Tensor) -> Tensor:
        return self.D * (_cropped(x, self.out_features) + (x @ self.H.mT) @ self.G)

    def _rmatmul(self, y: Tensor) -> Tensor:
        y = self.D * y
        return _cropped(y, self.in_features) + (y @ self.G.mT) @ self.H


def _cropped(x: Tensor, size: int) -> Tensor:
    """The first `size` entries, filled up with zeros: E x, or E^T y."""
    x = x[..., :size]
    return torch.nn.functional.pad(x, (0, size - x.shape[-1]))


def main() -> None:
    check_structure(ScaledIdentityPlusLowRank, shapes=[(1, 3), (5, 2), (16, 16), (33, 20)])
    print("it satisfies the contract of a structured class")

    layer = torchldr.StructuredLinear(784, 512, structure="scaled_identity_plus_low_rank", rank=4)
    x = torch.randn(256, 784)
    print(layer)
    print(f"{sum(p.numel() for p in layer.parameters()):,} parameters, a dense layer has {784 * 512 + 512:,}")
    print(
        f"deviation of the output {layer(x).std():.2f}, nn.Linear's {torch.nn.Linear(784, 512)(x).std():.2f}"
    )


if __name__ == "__main__":
    main()
