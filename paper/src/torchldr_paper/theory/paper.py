"""The networks of the paper's experiments, their VC bounds and sample sizes side by side.

The theorem speaks of one real output, so the output layer tells one class from the others: it has n + 1
parameters where the experiments' has classes (n + 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..tables.values import CNN, SHL
from .bound import pac_sample_size, vc_bound
from .network import Layer, convolution_layer, structured_layer, sylvester_degree

GENERIC = "generic"  # tridiagonal operators in the Sylvester equation: the theorem's rational case
_CLASSES = 10


class Network(NamedTuple):
    """One of the paper's architectures: images of `side` pixels squared with `channels`."""

    model: str
    side: int
    channels: int = 1

    @property
    def hidden(self) -> int:
        return self.side**2


NETWORKS = (Network("shl", 28), Network("shl", 32), Network("cnn", 28), Network("cnn", 32, 3))
MODELS = {"shl": SHL, "cnn": CNN}  # with the paper's tables of them


def network_layers(network: Network, structure: str, rank: int | None) -> list[Layer]:
    """The architecture with this class for its hidden layer and one output.

    `shl` is the single hidden layer without bias; `cnn` has two 5 x 5 convolutions of 6 and 16 channels
    with 2 x 2 max-pooling in front of a hidden layer with bias.
    """
    n, side, bias = network.hidden, network.side, network.model == "cnn"
    layers = []
    if network.model == "cnn":
        layers.append(convolution_layer(network.channels, 6, side, side, 5, pool=2))
        layers.append(convolution_layer(6, 16, side // 2, side // 2, 5, pool=2))
    if structure == GENERIC:
        tridiagonal = structured_layer(n, n, "ldr_td", rank, bias=bias)
        layers.append(Layer(n, n, tridiagonal.parameters, sylvester_degree(n, n), bias))
    else:
        layers.append(structured_layer(n, n, structure, rank, bias=bias))
    return [*layers, structured_layer(n, 1, phi="identity")]


def rows(
    models: Iterable[str] = MODELS, epsilon: float = 0.1, delta: float = 0.05, *, agnostic: bool = False
) -> list[dict[str, Any]]:
    """One row for each network and class of the paper's tables.

    Keys: model, hidden (its size), structure, rank, paper_parameters (of hidden and ten-class output
    layer, as the paper counts), parameters (W of the theorem's network), depth, effective_depth, degree
    (d_L), vc_bound, vc_closed, vc_theorem, of_dense (vc_bound over the dense network's), samples.
    """
    wanted = set(models)
    if unknown := wanted - set(MODELS):
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {sorted(unknown)[0]!r}.")
    found = []
    for network in (network for network in NETWORKS if network.model in wanted):
        dense = vc_bound(network_layers(network, "dense", None)).bound
        # The rows of the paper's table, then rank 16 of its Section 5 and the rational case.
        for structure, rank in (*MODELS[network.model], ("ldr_sd", 16), (GENERIC, 1)):
            layers = network_layers(network, structure, rank)
            bounds = vc_bound(layers)
            row = {
                "model": network.model,
                "hidden": network.hidden,
                "structure": structure,
                "rank": rank,
                "paper_parameters": layers[-2].parameters + _CLASSES * layers[-1].parameters,
                "parameters": bounds.parameters,
                "depth": bounds.depth,
                "effective_depth": bounds.effective_depth,
                "degree": bounds.degrees[-1],
                "vc_bound": bounds.bound,
                "vc_closed": bounds.closed,
                "vc_theorem": bounds.theorem,
                "of_dense": bounds.bound / dense,
                "samples": pac_sample_size(bounds.bound, epsilon, delta, agnostic=agnostic),
            }
            found.append(row)
    return found
