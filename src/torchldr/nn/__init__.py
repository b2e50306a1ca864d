"""Layers."""

from ..core.storage import Storage, rounded, stored_bytes, straight_through
from ..matrices.classical.convolution import ConvolutionMatrix
from .channels.layer import StructuredChannels
from .channels.stack import MatrixStack
from .convolution import conv_to_matrix
from .freeze import freeze
from .linear import StructuredLinear
from .quantize import quantize_
from .recurrent.layers import StructuredGRU, StructuredLSTM
from .recurrent.step import RecurrentStep

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
    "freeze",
    "quantize_",
    "rounded",
    "stored_bytes",
    "straight_through",
]
