"""Export: models with structured layers for torch.export and ONNX."""

from .compare import Comparison, compare
from .forms import MODES, product_module, register_form
from .layers import ExportedLayer
from .onnx import to_onnx
from .program import to_program
from .report import ExportError, ExportReport

__all__ = [
    "MODES",
    "Comparison",
    "ExportError",
    "ExportReport",
    "ExportedLayer",
    "compare",
    "product_module",
    "register_form",
    "to_onnx",
    "to_program",
]
