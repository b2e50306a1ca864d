"""The paper's learning theory as code: VC-dimension bounds and sample sizes of structured networks."""

from .bound import VCBound, vc_bound
from .degrees import Degree, entry_degree, sylvester_degree
from .network import ACTIVATIONS, Activation, Layer, convolution_layer, layers_of, structured_layer
from .samples import pac_sample_size

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
