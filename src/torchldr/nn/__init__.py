"""Layers."""

from ..core.storage import Storage, rounded, stored_bytes, straight_through
from .channels import StructuredChannels
from .channels_stack import MatrixStack
from .convolution import ConvolutionMatrix, conv_to_matrix
from .linear import StructuredLinear
from .quantize import quantize_
from .recurrent import StructuredGRU, StructuredLSTM
from .recurrent_step import RecurrentStep
from .tune import tune

__all__ = [
    "ConvolutionMatrix",
    "MatrixStack",
    "RecurrentStep",
    "Storage",
    "StructuredChannels",
    "StructuredGRU",
    "StructuredLSTM",
    "StructuredLinear",
    "conv_to_matrix",
    "quantize_",
    "rounded",
    "stored_bytes",
    "straight_through",
    "tune",
]
