"""torch.jit.trace and torch.fx: one operator for a product, one node for a layer."""

import io
import warnings
from contextlib import nullcontext, suppress

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import torchldr
from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM
from torchldr.nn.pointwise import StructuredPointwise

LAYERS = {
    "linear": lambda **more: StructuredLinear(12, 10, **more),
    "lstm": lambda **more: StructuredLSTM(12, 10, **more),
    "gru": lambda **more: StructuredGRU(12, 10, 2, which="both", bidirectional=True, **more),
    "grid": lambda **more: StructuredChannels(3, 2, 12, **more),
    "wide": lambda **more: StructuredChannels(3, 2, 12, form="wide", **more),
}
CASES = [("linear", name) for name in torchldr.structures()]
CASES += [(kind, name) for kind in LAYERS for name in ("ldr_sd", "fastfood") if kind != "linear"]


def made(kind: str, name: str, **more) -> nn.Module:
    rank = 2 if torchldr.get_structure(name).ranked else None
    return LAYERS[kind](structure=name, rank=rank, **more)


def first(output) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def traced(layer: nn.Module, x: Tensor) -> nn.Module:
    """The trace, written and read again; a TracerWarning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("error", torch.jit.TracerWarning)
        program, file = torch.jit.trace(layer, x), io.BytesIO()
        torch.jit.save(program, file)
        file.seek(0)
        return torch.jit.load(file)


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_trace_serves_other_sizes_and_gradients(kind, name, training):
    layer = made(kind, name, dtype=torch.float64).train(training)
    program = traced(layer, torch.randn(4, 3, 12, dtype=torch.float64))
    for size in (4, 1, 6):
        x = torch.randn(size, 3, 12, dtype=torch.float64)
        y, wanted = first(program(x)), first(layer(x))
        torch.testing.assert_close(y, wanted)
    found = torch.autograd.grad(y.square().sum(), list(program.parameters()))
    exact = torch.autograd.grad(wanted.square().sum(), list(layer.parameters()))
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", torchldr.structures())
def test_second_derivatives_of_a_trace(name):
    layer, x = made("linear", name, dtype=torch.float64), torch.randn(3, 12, dtype=torch.float64)
    x = x.requires_grad_()

    def second(program: nn.Module) -> tuple[Tensor, ...]:
        at = [x, *program.parameters()]
        found = torch.autograd.grad(program(x).sin().sum(), at, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in found), at)

    for a, b in zip(second(traced(layer, x)), second(layer), strict=True):
        torch.testing.assert_close(a, b)


def test_a_trace_in_a_narrow_dtype():
    """To its rounding: what is recorded makes the dense matrix in another order of sums."""
    layer = made("linear", "ldr_sd", dtype=torch.bfloat16)
    program = torch.jit.trace(layer, torch.randn(4, 12, dtype=torch.bfloat16), check_trace=False)
    x = torch.randn(7, 12, dtype=torch.bfloat16)
    torch.testing.assert_close(program(x), layer(x), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("name", torchldr.structures())
@pytest.mark.parametrize("early", [False, True], ids=["make_fx", "before dispatch"])
def test_recorded_operations_are_the_product(name, early):
    """By every route: what leaves torch, as compiled loops do, is not recorded and must not be taken."""
    layer = StructuredLinear(32, 32, structure=name, dtype=torch.float64).requires_grad_(False).eval()
    x, other = torch.randn(2, 3, 32, dtype=torch.float64)
    layer(x)  # keeps a plan
    for route in (None, *layer.structure.ROUTES):
        layer.route = route and route.name
        with suppress(ValueError) if route else nullcontext():  # where it does not serve
            y = make_fx(layer, pre_dispatch=early)(x)(other)
            torch.testing.assert_close(y, other @ layer.matrix().to_dense().mT + layer.bias)


@pytest.mark.parametrize("name", torchldr.structures())
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # torch, of constants that it folds
def test_linearize(name):
    """The product and the oracle: where torch folds constants, it forgets edits of them in place."""
    layer, x = made("linear", name, dtype=torch.float64), torch.randn(3, 12, dtype=torch.float64)
    y, product = torch.func.linearize(layer, x)
    torch.testing.assert_close(y, layer(x))
    torch.testing.assert_close(product(x), layer(x) - layer.bias)
    M = layer.matrix()
    _, oracle = torch.func.linearize(lambda x: x @ M.to_dense().mT, x)
    torch.testing.assert_close(oracle(x), product(x))


def test_a_trace_of_a_layer_with_a_plan():
    """The trace holds the parameters, not what the layer keeps."""
    layer, x = made("linear", "ldr_sd").eval(), torch.randn(4, 12)
    with torch.no_grad():
        layer(x)
        program = traced(layer, x)
        for p in program.parameters():
            p.mul_(1.5)
        for p in layer.parameters():
            p.mul_(1.5)
        torch.testing.assert_close(program(x), layer(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = StructuredPointwise(StructuredLinear(2, 3, structure="dense"))
        self.front = StructuredLinear(6, 6, structure="cauchy_like")
        self.lstm, self.gru = StructuredLSTM(6, 5), StructuredGRU(5, 4, rank=2)
        self.channels = StructuredChannels(2, 2, 2)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.mix(x).sum(1)
        y, (h, c) = self.lstm(torch.relu(self.front(x)), (h, c))
        y, _ = self.gru(y)
        return self.channels(y.unflatten(-1, (2, 2))) + 1, h, c


def test_layers_are_nodes_of_a_graph():
    model = Model()
    graph = fx.symbolic_trace(model)
    nodes = {node.target for node in graph.graph.nodes if node.op == "call_module"}
    assert nodes == {"mix", "front", "lstm", "gru", "channels"}
    x, h = torch.randn(4, 2, 3, 6), torch.randn(1, 3, 5)
    for a, b in zip(graph(x, h, h), model(x, h, h), strict=True):
        torch.testing.assert_close(a, b)
    assert list(graph.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_alone_is_no_graph(kind):
    with pytest.raises(
        TypeError, match=r"Structured\w+: torch.fx does not look into this layer.*nn.Sequential"
    ):
        fx.symbolic_trace(made(kind, "ldr_sd"))
    layer = made(kind, "ldr_sd")
    graph, x = fx.symbolic_trace(nn.Sequential(layer)), torch.randn(4, 3, 12)
    torch.testing.assert_close(first(graph(x)), first(layer(x)))
