"""LDR-TD in an ONNX graph."""

from __future__ import annotations

import torch
from torch import nn

from ...core.rules import rule
from ...functional.exported.grown import GrownMatrix
from . import LDRTridiagonal


@rule("onnx", LDRTridiagonal)
def product(mode: str, M: LDRTridiagonal) -> nn.Module:
    with torch.no_grad():
        return GrownMatrix(torch.stack(M._ring("A"), -1), torch.stack(M._ring("C"), -1), M.G, M.H)
