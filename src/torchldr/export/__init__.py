"""Export: models with structured layers for torch.export, ONNX and C."""

from .c import CReport, to_c
from .check import ExportError
from .forms import MODES, product_module, register_form
from .layers import ExportedLayer
from .onnx import ExportReport, to_onnx
from .program import to_program

__all__ = [
    "MODES",
    "CReport",
    "ExportError",
    "ExportReport",
    "ExportedLayer",
    "product_module",
    "register_form",
    "to_c",
    "to_onnx",
    "to_program",
]
