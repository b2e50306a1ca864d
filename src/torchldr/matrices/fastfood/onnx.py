"""Fastfood in an ONNX graph."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

from ...core.rules import rule
from ...functional.orthogonal import hadamard_reference
from . import Fastfood

_RADIX = 32  # of a factor of the Hadamard matrix


class FastfoodProduct(nn.Module):
    """S Had D Perm Had B x, Had as a few small matrix products."""

    form = "small Hadamard matrices"
    S: Tensor
    D: Tensor
    B: Tensor
    permutation: Tensor

    def __init__(self, S: Tensor, D: Tensor, B: Tensor, permutation: Tensor) -> None:
        super().__init__()
        for name, value in (("S", S), ("D", D), ("B", B), ("permutation", permutation)):
            self.register_buffer(name, value.detach().clone())
        self.size = 1 << (D.shape[0] - 1).bit_length()
        self.radices = []
        left = self.size
        while left > 1:
            self.radices.append(min(_RADIX, left))
            left //= self.radices[-1]
        for radix in sorted(set(self.radices)):
            self.register_buffer(f"hadamard_{radix}", hadamard_reference(radix).to(S.dtype))

    def forward(self, x: Tensor) -> Tensor:
        y = self._hadamard(x * self.B).index_select(-1, self.permutation) * self.D
        return self._hadamard(y)[:, : self.S.shape[0]] * self.S

    def _hadamard(self, x: Tensor) -> Tensor:
        y, done = pad(x, (0, self.size - x.shape[-1])), 1
        for radix in self.radices:
            H = self.get_buffer(f"hadamard_{radix}")
            if done == 1:
                y = y.reshape(-1, self.size // radix, radix) @ H
            else:
                y = H @ y.reshape(-1, self.size // (radix * done), radix, done)
            done *= radix
        return y.reshape(-1, self.size)


@rule("onnx", Fastfood)
def product(mode: str, M: Fastfood) -> nn.Module:
    return FastfoodProduct(M.S, M.D, M.B, M.permutation)
