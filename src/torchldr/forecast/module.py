"""The forecaster as a module: windows in, forecasts out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.structures import get_structure
from ..nn import StructuredLinear


class Forecast(nn.Module):
    """Windows (..., past) to forecasts (..., horizon): W (x - centre) + centre.

    `linear` is an ordinary `StructuredLinear` without bias: it trains, exports and quantises as others do.
    """

    def __init__(self, linear: nn.Module, center: str | None) -> None:
        super().__init__()
        self.linear, self.center = linear, center

    def forward(self, x: Tensor) -> Tensor:
        if self.center is None:
            forecast: Tensor = self.linear(x)
            return forecast
        centre = x[..., -1:] if self.center == "last" else x.mean(-1, keepdim=True)
        return self.linear(x - centre) + centre

    def extra_repr(self) -> str:
        return f"center={self.center!r}"


class LinearStack(nn.Module):
    """A structured matrix for each channel: (..., channels, past) to (..., channels, horizon)."""

    def __init__(self, G: Tensor, H: Tensor, structure: str = "toeplitz_like") -> None:
        super().__init__()
        self.structure = structure
        self.G, self.H = nn.Parameter(G), nn.Parameter(H)

    def forward(self, x: Tensor) -> Tensor:
        matrix = get_structure(self.structure)(self.G.shape[-1], self.H.shape[-1], G=self.G, H=self.H)
        found: Tensor = matrix.matmul(x.unsqueeze(-2)).squeeze(-2)
        return found

    def extra_repr(self) -> str:
        channels, rank, horizon = self.G.shape
        return f"{channels} channels, {self.H.shape[-1]} -> {horizon}, rank={rank}"


def module_of(
    G: Tensor, H: Tensor, center: str | None, dtype: torch.dtype, structure: str = "toeplitz_like"
) -> Forecast:
    """The module with these generators (b, r, horizon) and (b, r, past); one layer where b is 1."""
    G, H = (part.to(dtype, copy=True).contiguous() for part in (G, H))
    if len(G) > 1:
        return Forecast(LinearStack(G, H), center)
    with torch.random.fork_rng(devices=[]):  # a start is drawn and replaced
        linear = StructuredLinear(
            H.shape[-1], G.shape[-1], bias=False, structure=structure, rank=G.shape[-2], dtype=dtype
        )
    linear.load_state_dict({**linear.state_dict(), "G": G[0], "H": H[0]})
    return Forecast(linear, center)


def balanced(G: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
    """The same matrix with each pair of generators of one length."""
    ratio = (H.norm(dim=-1, keepdim=True) / G.norm(dim=-1, keepdim=True)).nan_to_num(1.0, 1.0, 1.0).sqrt()
    ratio = torch.where(ratio > 0, ratio, 1)
    return G * ratio, H / ratio
