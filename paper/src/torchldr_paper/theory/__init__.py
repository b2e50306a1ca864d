"""The paper's learning theory as code: VC-dimension bounds and sample sizes of structured networks."""

from .bound import VCBound, pac_sample_size, vc_bound
from .network import (
    ACTIVATIONS,
    Activation,
    Degree,
    Layer,
    convolution_layer,
    entry_degree,
    layers_of,
    structured_layer,
    sylvester_degree,
)

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Degree",
    "Layer",
    "VCBound",
    "convolution_layer",
    "entry_degree",
    "layers_of",
    "pac_sample_size",
    "structured_layer",
    "sylvester_degree",
    "vc_bound",
]
