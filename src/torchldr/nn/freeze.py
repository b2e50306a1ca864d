"""`freeze`: a copy of a model for inference, with everything precomputed except what depends on the input."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..core import rules
from ..core.checks import check_flags, check_model
from ..core.choice import Products
from ..core.products import check_like, check_size, run_product
from ..functional.prepared import Prepared
from ..matrices import StructuredMatrix
from ..timing import minimum_seconds
from .channels.layer import StructuredChannels
from .evaluating import evaluating
from .linear import StructuredLinear
from .recurrent.base import StructuredRecurrent
from .replace import plain_linear, replace_modules
from .tensors import let_prune, runs_as_made

Layer = StructuredLinear | StructuredChannels | StructuredRecurrent
Inputs = dict[nn.Module, tuple[Any, ...]]


class Frozen(NamedTuple):
    """How one layer was frozen."""

    layer: str
    structure: str
    shape: str
    product: str
    why: str
    bytes: int

    def __str__(self) -> str:
        what = f"{self.layer or '(model)'}: {self.structure} {self.shape}"
        return f"{what}: {self.product}, {self.bytes:,} bytes; {self.why}"


class FreezeReport(list[Frozen]):
    """A row for each structured layer, printed as a list."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "the model has no structured layer"


class FrozenLinear(nn.Module):
    """y = product(x) + bias with any leading axes, by a prepared product."""

    bias: Tensor | None

    def __init__(self, product: Prepared, layer: StructuredLinear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.product = product
        like = next(layer.parameters())
        bias = layer.bias
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.register_buffer(
            "_like", like.detach().new_empty(0), persistent=False
        )  # its dtype is the layer's

    def forward(self, input: Tensor) -> Tensor:
        like = cast(Tensor, self._like)
        check_size("FrozenLinear", input, self.in_features, "in_features")
        check_like("FrozenLinear", input, like)
        return run_product(self.product, input, like.dtype, self.bias, converts=True)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


class FrozenChannels(nn.Module):
    """StructuredChannels by one dense block matrix."""

    def __init__(self, layer: StructuredChannels) -> None:
        super().__init__()
        self.features, self.out_features = layer.features, layer.out_features
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        bias = layer.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.block = plain_linear(layer.weight, None, learned=False)

    def forward(self, input: Tensor) -> Tensor:
        axes = 1 + len(self.features)
        wanted = (self.in_channels, *self.features)
        if input.shape[-axes:] != wanted:
            came = tuple(input.shape)
            raise ValueError(f"FrozenChannels: the last axes must be {wanted}, got shape {came}.")
        y = self.block(input.flatten(-axes)).unflatten(-1, (self.out_channels, math.prod(self.out_features)))
        y = y if self.bias is None else y + self.bias.to(y.dtype).unsqueeze(-1)
        return y.unflatten(-1, self.out_features)


@torch.no_grad()
def freeze(model: nn.Module, example: Any = None, *, measure: bool = False) -> nn.Module:
    """A copy of a model for inference, with prepared structured layers.

    Each becomes an `nn.Linear` if its dense matrix is faster, else a module with the constants of its fast
    product. LSTM and GRU layers become torch's. Their parameters need no gradients. The model itself does not
    change and can train on; freeze it again to serve the new weights.

    Args:
        model: any module.
        example: an input of the model, or a tuple of its arguments. Products are then chosen for the number
            of rows that reach each layer, otherwise for one row.
        measure: whether to time both products of each layer with the example on this machine. By default a
            rule of sizes decides.

    Returns:
        The copy, in `eval()`. Its attribute `report` says which product each layer got, why, and how much it
        holds.

    The copy compiles, exports, pickles, moves and quantises like any other model. Its output is
    differentiable in its input.

    Examples:
        >>> model = nn.Sequential(StructuredLinear(64, 64, structure="toeplitz_like"), nn.ReLU())
        >>> served = freeze(model)
        >>> served[0]
        Linear(in_features=64, out_features=64, bias=True)
        >>> torch.allclose(served(torch.ones(2, 64)), model(torch.ones(2, 64)), atol=1e-5)
        True
    """
    check_model("freeze", model)
    check_flags("freeze", measure=measure)
    if measure and example is None:
        raise ValueError(
            "freeze: measure=True needs an example, an input of the model to time products with."
        )
    copied = copy.deepcopy(model, _made_by_pruning(model)).eval()
    given = (
        _inputs(copied, example if isinstance(example, tuple) else (example,)) if example is not None else {}
    )
    made: dict[nn.Module, nn.Module] = {}
    report = FreezeReport()
    for name, layer in list(_layers(copied)):
        if layer not in made:
            made[layer], row = _frozen(name, layer, given, measure)
            report.append(row)
    replace_modules(copied, made)
    served = made.get(copied, copied).eval()
    served.report = report  # type: ignore[assignment]
    return served


def thawed(model: nn.Module) -> nn.Module:
    """A model whose frozen modules are structured layers again, made of the parameters that they still hold:
    what exporters build on. A model without frozen modules is returned as it is."""
    made = {
        module: source
        for module in model.modules()
        if (source := vars(module).get("generators")) is not None and _is_unchanged(module, source)
    }
    if not made:
        return model
    memo: dict[int, Any] = {}
    copied = copy.deepcopy(model, memo)
    replacements = {memo[id(module)]: memo[id(source)].to(_first(module)) for module, source in made.items()}
    replace_modules(copied, replacements)
    return replacements.get(copied, copied)


def _first(module: nn.Module) -> Tensor:
    return next(itertools.chain(module.parameters(), module.buffers()))


@torch.no_grad()
def _is_unchanged(module: nn.Module, source: Layer) -> bool:
    """Whether a frozen module has the numbers that its generators give, and these in no narrower dtype."""
    dtype = _first(module).dtype
    if torch.promote_types(dtype, _first(source).dtype) != dtype:
        return False
    if not all(type(p) is nn.Parameter for p in module.parameters()):  # quantised by another package
        return False
    now, then = module.state_dict(), _made_again(module, source).state_dict()
    return now.keys() == then.keys() and all(_is_close(now[name].to(t), t) for name, t in then.items())


def _made_again(module: nn.Module, source: Layer) -> nn.Module:
    if isinstance(source, StructuredRecurrent):
        return source.to_torch()
    dense = isinstance(module, nn.Linear | FrozenChannels)
    return _dense(source) if dense else _fast(source, source.matrix())


def _is_close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-6 * float(b.abs().max()), equal_nan=True)


def _layers(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    """The outermost structured layers that run their own `forward`."""
    inner = {
        part for layer in model.modules() if isinstance(layer, StructuredChannels) for part in layer.modules()
    }
    for name, module in model.named_modules():
        own = isinstance(module, Layer) and runs_as_made(module)
        if own and (isinstance(module, StructuredChannels) or module not in inner):
            yield name, cast(Layer, module)


def _made_by_pruning(model: nn.Module) -> dict[int, Any]:
    """What a copy has for tensors that pruning computes before each call, which torch does not copy."""
    held = (value for module in model.modules() for value in vars(module).values())
    return {id(t): t.detach().clone() for t in held if isinstance(t, Tensor) and not t.is_leaf}


def _inputs(model: nn.Module, arguments: tuple[Any, ...]) -> Inputs:
    """The arguments that reach each structured layer when the model is called."""
    found: Inputs = {}

    def keep(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        found[layer] = (*given, *named.values())

    with ExitStack() as hooks, evaluating(model):
        for _, layer in _layers(model):
            hooks.enter_context(layer.register_forward_pre_hook(keep, with_kwargs=True))
        model(*arguments)
    return found


def _frozen(name: str, layer: Layer, given: Inputs, measure: bool) -> tuple[nn.Module, Frozen]:
    let_prune(layer)
    if isinstance(layer, StructuredRecurrent):
        return _frozen_recurrent(name, layer)
    matrix = (
        layer.matrix() if isinstance(layer, StructuredLinear) or layer.grid is None else layer.grid.matrix()
    )
    rows = _rows(layer, given)
    table = matrix.products(rows, frozen=True)
    taken, why = (
        (layer.product, "product was set") if layer.product != "auto" else (table.taken, _why(table, rows))
    )
    source = layer.requires_grad_(False)
    makers: dict[str, Callable[[], nn.Module]] = {
        "dense": lambda: _dense(source),
        "fast": lambda: _fast(source, matrix),
    }
    if measure and layer in given and matrix.structured:
        modules = {product: make() for product, make in makers.items()}
        x = given[layer]
        times = minimum_seconds({product: _call(module, x) for product, module in modules.items()}, 3, 0.05)
        taken = min(times, key=lambda product: times[product])
        made = modules[taken]
        why = ", ".join(f"{product} {seconds * 1e6:.0f} us" for product, seconds in times.items())
    else:
        made = makers[taken]()
    if made is not source:
        made.__dict__["generators"] = source
    shape = " x ".join(map(str, matrix.shape))
    return made, Frozen(name, matrix.name, shape, taken, why, _bytes(made))


def _call(module: nn.Module, arguments: tuple[Any, ...]) -> Callable[[], object]:
    def call() -> None:
        module(*arguments)
        if isinstance(arguments[0], Tensor) and arguments[0].is_cuda:
            torch.cuda.synchronize(arguments[0].device)

    return call


def _rows(layer: nn.Module, given: Inputs) -> int:
    if layer not in given or not isinstance(x := given[layer][0], Tensor):
        return 1
    if isinstance(layer, StructuredChannels):
        return max(x.numel() // (layer.in_channels * math.prod(layer.features)), 1)
    return max(x.numel() // max(x.shape[-1], 1), 1)


def _why(table: Products, rows: int) -> str:
    row = next(row for row in table if row.taken)
    return f"{row.cost}, chosen by sizes for {rows} row{'s' * (rows != 1)}"


def _dense(layer: StructuredLinear | StructuredChannels) -> nn.Module:
    if isinstance(layer, StructuredChannels):
        return FrozenChannels(layer)
    bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
    return plain_linear(layer.weight, bias, learned=False)


def _fast(layer: StructuredLinear | StructuredChannels, matrix: StructuredMatrix) -> nn.Module:
    """A layer with the class's prepared constants, or else the layer itself without gradients."""
    prepare = rules.of_product("frozen", type(matrix))
    if isinstance(layer, StructuredLinear) and prepare is not None:
        made = prepare(matrix if matrix.own_dtype else matrix.promoted(), layer.bias)
        if made is not None:
            return FrozenLinear(made, layer) if isinstance(made, Prepared) else made
    layer.product = "fast"
    return layer


def _frozen_recurrent(name: str, layer: StructuredRecurrent) -> tuple[nn.Module, Frozen]:
    made = layer.to_torch().requires_grad_(False)
    made.__dict__["generators"] = layer.requires_grad_(False)
    shape = f"{layer.input_size} -> {layer.hidden_size}"
    why = "torch's own recurrence on dense weights"
    return made, Frozen(name, layer.structure.name, shape, "dense", why, _bytes(made))


def _bytes(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
