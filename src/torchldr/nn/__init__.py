"""Layers."""

from .channels.layer import StructuredChannels
from .channels.stack import MatrixStack
from .convolution import ConvolutionMatrix, conv_to_matrix
from .linear import StructuredLinear
from .recurrent.layers import StructuredGRU, StructuredLSTM
from .recurrent.step import RecurrentStep
from .tune import tune

__all__ = [
    "ConvolutionMatrix",
    "MatrixStack",
    "RecurrentStep",
    "StructuredChannels",
    "StructuredGRU",
    "StructuredLSTM",
    "StructuredLinear",
    "conv_to_matrix",
    "tune",
]
