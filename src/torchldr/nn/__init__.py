"""Layers."""

from .channels import StructuredChannels
from .channels_stack import MatrixStack
from .convolution import ConvolutionMatrix, conv_to_matrix
from .linear import StructuredLinear
from .recurrent import StructuredGRU, StructuredLSTM
from .recurrent_step import RecurrentStep
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
