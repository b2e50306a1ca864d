"""Kept products of LDR-TD: by ports where they are accepted and pay, else by the stencil.

A choice belongs to one kept product, which is made from the matrix as it is. Nothing else remembers it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..functional import port_acceptance, stencil
from ..functional.port_layer import port_seconds, stencil_seconds

if TYPE_CHECKING:
    from .ldr_td import LDRTridiagonal

PRODUCTS = "auto", "stencil", "port"
FROM = {"cpu": 8192, "cuda": 16384}  # k = min(m, n) from which "auto" looks at the port product at all


class KeptProduct:
    """M x for an LDR-TD matrix whose tensors do not change any more, (b, n) to (b, m).

    The operators are judged at the first product that could be by ports, which waits for that. Products by
    the stencil are those of the matrix itself, with gradients.
    """

    def __init__(self, matrix: LDRTridiagonal) -> None:
        self._matrix, self._option = matrix, matrix.options["product"]

    def __call__(self, x: Tensor) -> Tensor:
        if self.why_not(x) is not None:
            return self._matrix._matmul(x)
        assert self.verdict.ports is not None
        return self.verdict.ports(x)

    def why_not(self, x: Tensor) -> str | None:
        """Why x is multiplied by the stencil and not by ports, or None where it is by ports."""
        return self._beforehand(x) or self._judged(x)

    def _beforehand(self, x: Tensor) -> str | None:
        """The reasons that need no judging."""
        tensors = (*self._matrix.tensors.values(), x)
        if self._option == "stencil":
            return "the option product is 'stencil'"
        if x.device.type not in FROM or x.dtype != torch.float32:
            return f"ports serve float32 on a CPU or a GPU, this is {x.dtype} on {x.device}"
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return "a gradient is needed"
        if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
            return "the product is traced or differentiated"
        if not all(stencil.is_plain(t) for t in tensors) or len(x) == 0:
            return "there are no numbers to multiply"
        if self._option == "auto" and min(self._matrix.shape) < FROM[x.device.type]:
            return f"fewer than {FROM[x.device.type]} features"
        if not self._candidates(x):
            return f"the stencil is faster for {len(x)} vectors"
        return None

    def _judged(self, x: Tensor) -> str | None:
        if self.verdict.ports is None:
            return self.verdict.reason
        if self.verdict.ports.oversampling not in self._candidates(x):
            return f"the stencil is faster for {len(x)} vectors"
        return None

    def _candidates(self, x: Tensor) -> list[int]:
        """Oversamplings at which ports cost less than the stencil; all where they are asked for."""
        if self._option == "port":
            return list(port_acceptance.CANDIDATES)
        case = self._matrix.shape, len(self._matrix.G), len(x)
        most = stencil_seconds(*case, x.device.type)
        return [c for c in port_acceptance.CANDIDATES if port_seconds(*case, c, x.device.type) < most]

    @cached_property
    def verdict(self) -> port_acceptance.Verdict:
        with torch.inference_mode(False), torch.no_grad():
            return port_acceptance.judge(*self._matrix._operators())
