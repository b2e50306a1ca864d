"""`quantize_`: weights kept as integers, with the rounding of the C export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.utils import parametrize

from ..core.checks import check_model
from ..core.pretrained import check_present, check_unclaimed, is_adapter
from ..core.storage import FLOAT, INT8, Rounded, Storage, rounded, straight_through
from .description import declare
from .parameters import StructuredParameters
from .recurrent.base import StructuredRecurrent


class Quantized(nn.Module):
    """A parametrization by integers: `original0` is the scale and `original1` the integers."""

    rounding = "integers"  # in the layer's description

    def __init__(self, storage: Storage, lead: int) -> None:
        super().__init__()
        self.storage, self.lead = storage, lead

    def forward(self, scale: Tensor, integers: Tensor) -> Tensor:
        return Rounded(scale, integers, self.storage.offset).value()

    def right_inverse(self, t: Tensor) -> tuple[Tensor, Tensor]:
        made = rounded(t, self.storage, self.lead)
        return made.scale, made.integers

    def extra_repr(self) -> str:
        return f"{self.storage.dtype}".removeprefix("torch.")


class RoundedInTraining(nn.Module):
    """A parametrization that rounds and passes gradients through to the float weights."""

    rounding = "training"

    def __init__(self, storage: Storage, lead: int) -> None:
        super().__init__()
        self.storage, self.lead = storage, lead

    def forward(self, t: Tensor) -> Tensor:
        return straight_through(t, self.storage, self.lead)

    def right_inverse(self, t: Tensor) -> Tensor:
        return t


class Weight(NamedTuple):
    """A parameter of a module that is stored in integers."""

    name: str
    storage: Storage
    lead: int


def weights_of(module: nn.Module) -> Iterator[Weight]:
    """The parameters of this module itself that `quantize_` rounds, and how."""
    if isinstance(module, StructuredParameters):
        for name in module._learned:
            storage = module.structure.stored.get(name, INT8)
            if storage != FLOAT:
                yield Weight(name, storage, len(module.leading))
    elif isinstance(module, StructuredRecurrent):
        for name in (*module._parameters, *_parametrizations(module)):
            if name.startswith("weight_"):
                yield Weight(name, INT8, 0)
    elif isinstance(module, nn.Linear | _ConvNd):
        yield Weight("weight", INT8, 0)


def _parametrizations(module: nn.Module) -> Any:
    """The parametrizations of a module by the names of their parameters."""
    return module.parametrizations if parametrize.is_parametrized(module) else {}


def unquantize_(model: nn.Module) -> None:
    """Give a model float weights again, in place, with the values of its integers."""
    for module in model.modules():
        for name, kept in list(_parametrizations(module).items()):
            if isinstance(kept[-1], Quantized | RoundedInTraining):
                _remove(module, name, keep=isinstance(kept[-1], Quantized))


@torch.no_grad()
def quantize_(
    model: nn.Module, *, training: bool = False, where: Callable[[str, nn.Module], bool] | None = None
) -> nn.Module:
    """Round the weights of a model to int8 and int16, in place, as the C export does.

    Generators and dense weights become int8 with a scale for each vector or row, learned operators int16
    around one or zero. Biases, corners and nodes stay as they are. This holds for structured layers (linear,
    recurrent, channels), `nn.Linear` and convolutions; other modules are left alone.

    The model then stores integers, in a quarter of the memory. `state_dict` saves them; a model on which
    `quantize_` ran can load them. Each use computes the float weights. They no longer train, and writing to
    them has no effect. Because peft merges adapters by such writes, a rounded `nn.Linear` or convolution
    accepts no adapter: add and merge adapters first, then quantize.

    Args:
        model: changed in place. Rounding twice has no further effect.
        training: quantisation-aware training: keep float weights, round them at each use, and pass the
            gradients through. Call `quantize_(model)` at the end.
        where: a function of a module's name and the module: whether to round it. By default all, except
            layers that share their weight with a module of another kind, such as an embedding.

    Returns:
        The model.

    Raises:
        ValueError: for a weight that is not finite, is computed (pruning), offloaded, quantized by another
            method, or has a peft adapter. The model is then unchanged.

    Examples:
        >>> from torchldr import StructuredLinear
        >>> model = quantize_(StructuredLinear(784, 784, structure="ldr_sd", rank=2))
        >>> model.state_dict()["parametrizations.G.original1"].dtype
        torch.int8
        >>> sum(t.nbytes for t in model.state_dict().values())  # 21,952 before
        9436
    """
    check_model("quantize_", model)
    check_unclaimed("quantize_", model)
    check_present("quantize_", model)
    others = [module for module in model.modules() if where is None and not any(weights_of(module))]
    elsewhere = {p for module in others for p in module._parameters.values()}
    todo = [
        (name, module, weight)
        for name, module in list(model.named_modules())
        if where is None or where(name, module)
        for weight in list(weights_of(module))
        if module._parameters.get(weight.name) not in elsewhere
    ]
    for name, module, weight in todo:
        _check(module, weight.name, f"{name}.{weight.name}".removeprefix("."))
    _refuse_adapters()
    first: dict[Any, Any] = {}
    for _, module, weight in todo:
        _quantize_weight_(module, weight, training, first)
    declare(model)
    return model


@cache
def _refuse_adapters() -> None:
    """Make peft raise an error when it wraps a rounded layer, because merging calls no hook. Runs once."""
    register_module_module_registration_hook(_refuse_adapter)


def _refuse_adapter(owner: nn.Module, name: str, module: nn.Module | None) -> None:
    if isinstance(module, nn.Linear | _ConvNd) and is_adapter(owner) and _is_rounded(module):
        raise ValueError(
            "an adapter of peft could not be merged into a layer that torchldr.quantize_ has rounded: writes "
            "to its weight are lost. Add and merge adapters first, then quantize."
        )


def _is_rounded(module: nn.Module) -> bool:
    kept = _parametrizations(module)
    return any(isinstance(one[-1], Quantized | RoundedInTraining) for one in kept.values())


def _check(module: nn.Module, name: str, shown: str) -> None:
    t = getattr(module, name)
    if name not in module._parameters and name not in _parametrizations(module):
        raise ValueError(
            f"quantize_: {shown} is no parameter but computed, as by torch.nn.utils.prune: its `remove`, or "
            "that of torch.nn.utils.weight_norm, makes it one."
        )
    if not t.is_floating_point():
        raise TypeError(f"quantize_: {shown} is {t.dtype}, not floating point.")
    if not t.is_meta and not t.isfinite().all():
        raise ValueError(f"quantize_: {shown} has entries that are not finite.")


def _quantize_weight_(module: nn.Module, weight: Weight, training: bool, first: dict[Any, Any]) -> None:
    """Round a weight; `first` has what was made of a parameter before, for those that are tied to it."""
    name = weight.name
    if name in _parametrizations(module):
        last = _parametrizations(module)[name][-1]
        if isinstance(last, Quantized) or (training and isinstance(last, RoundedInTraining)):
            return
        # Of quantisation-aware training the float weights stay, and are rounded below.
        _remove(module, name, keep=not isinstance(last, RoundedInTraining))
    if training:
        parametrize.register_parametrization(module, name, RoundedInTraining(*weight[1:]), unsafe=True)
        return
    whole = getattr(module, name)
    # Frozen, unless another module, such as an embedding, uses it too.
    setattr(module, name, nn.Parameter(whole.detach(), requires_grad=False))
    parametrize.register_parametrization(module, name, Quantized(*weight[1:]), unsafe=True)
    made = _parametrizations(module)[name]
    made._parameters.update(first.setdefault((whole, *weight[1:]), made)._parameters)


def _remove(module: nn.Module, name: str, *, keep: bool) -> None:
    """Take a parametrization off, and keep its value or what it was computed from."""
    # The class that torch made for parametrizations is that of copies too, and would lose the weight.
    made_class = type(module)
    module.__class__ = type(made_class.__name__, made_class.__bases__, dict(vars(made_class)))
    parametrize.remove_parametrizations(module, name, leave_parametrized=keep)


def stored_weight(module: nn.Module, name: str) -> Rounded:
    """The integers of a weight that `quantize_` has rounded."""
    kept = _parametrizations(module)[name]
    return Rounded(kept.original0, kept.original1, kept[-1].storage.offset)
