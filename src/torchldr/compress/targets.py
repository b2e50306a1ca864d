"""The weights of a model that can be replaced, and the tensors they share."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize, prune

from ..core.checks import check_model
from ..nn.attention import PROJECTIONS
from .candidates import Weight

FilterFn = Callable[[nn.Module, str], bool]
KINDS = {
    nn.Linear: "linear", nn.Conv2d: "conv2d", nn.MultiheadAttention: "attention", nn.LSTM: "lstm",
    nn.GRU: "gru",
}  # fmt: skip
RECURRENT = {"lstm": 4, "gru": 3}  # with their numbers of gates
_UNPADDED = ((0, 0), "valid", "same")  # for a kernel of 1 x 1
_HIDDEN = "multiplies the state, where errors grow from step to step: only with recurrent=True"


@dataclass
class Part:
    """A replaceable weight of a module, as matrices (out, in): a parameter, or a third of one.

    A weight of a recurrent layer has one matrix for each gate; all get the same structure.
    """

    module: nn.Module
    names: list[str]  # the module's names in the model
    kind: str
    name: str  # in the module: "" for a layer with one weight, one of PROJECTIONS, or torch's
    path: str  # of the parameter, from the module
    parameter: nn.Parameter
    matrices: list[Tensor]
    third: int | None = None

    @property
    def owners(self) -> list[nn.Module]:
        """The modules that hold the parameters of its module."""
        return list(self.module.modules()) if self.kind == "attention" else [self.module]


@dataclass
class Unit(Weight):
    """Matrices that get one structure: a weight, with everything that is tied to it."""

    places: list[Part] = field(default_factory=list)

    @property
    def matrices(self) -> list[Tensor]:
        return self.places[0].matrices

    @property
    def kind(self) -> str:
        return self.places[0].kind

    @property
    def names(self) -> list[str]:
        return [".".join(filter(None, (name, part.name))) for part in self.places for name in part.names]

    @property
    def aliases(self) -> list[str]:
        """The names that a plan may use for it: its own, and those of its modules."""
        return list(dict.fromkeys(self.names + [name for part in self.places for name in part.names]))


def parts_of(module: nn.Module, names: Sequence[str] = ("",)) -> dict[str, Part]:
    """What can be replaced in a module, by name, or nothing.

    Subclasses of torch's layers are left alone, because their `forward` is unknown. So are layers with a
    replaced `forward` or a computed weight (parametrizations, weight norm).
    """
    kind = KINDS.get(type(module)) or ("conv1d" if _is_transposed(module) else None)
    if kind is None or why_not(module) is not None:
        return {}
    places: list[tuple[str, str, int | None]] = [("", "weight", None)]
    if isinstance(module, nn.RNNBase):
        weights = [name for name in module._flat_weights_names if name.startswith(("weight_ih", "weight_hh"))]
        places = [(name, name, None) for name in weights]
    elif kind == "attention":
        joint = module._parameters.get("in_proj_weight") is not None
        places = [
            (name, "in_proj_weight", i) if joint else (name, f"{name}_weight", None)
            for i, name in enumerate(PROJECTIONS[:3])
        ]
        places.append(("out_proj", "out_proj.weight", None))
    found = {}
    for name, path, third in places:
        owner, _, leaf = path.rpartition(".")
        p = module.get_submodule(owner)._parameters.get(leaf)
        if p is None:
            return {}
        W = p.detach() if third is None else p.detach().chunk(3)[third]
        matrices = (W.T if kind == "conv1d" else W.flatten(1)).chunk(RECURRENT.get(kind, 1))
        found[name] = Part(module, list(names), kind, name, path, p, list(matrices), third)
    return found


def _is_patched(module: nn.Module) -> bool:
    """Whether `forward` was replaced on the object. accelerate's does not count: it only moves inputs."""
    return "forward" in vars(module) and "_hf_hook" not in vars(module)


def _is_transposed(module: nn.Module) -> bool:
    """Whether this is Hugging Face's Conv1D, y = x W + b, and not another class of that name.

    Many models bring their own copy of that class, so this checks what it computes.
    """
    if type(module).__name__ != "Conv1D" or not hasattr(module, "nf") or _is_patched(module):
        return False
    weight = module._parameters.get("weight")
    if weight is None or weight.ndim != 2:
        return False
    if weight.is_meta:
        return True
    bias = module._parameters.get("bias")
    with torch.no_grad():
        x = torch.linspace(-1, 1, weight.shape[0], dtype=weight.dtype, device=weight.device).unsqueeze(0)
        wanted = x @ weight if bias is None else x @ weight + bias
        try:
            found = type(module).forward(module, x)
        except Exception:  # a foreign class may raise anything for such an input
            return False
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return False
    scale = (x.abs() @ weight.abs()).max().item()
    return torch.allclose(found, wanted, rtol=0.02, atol=0.02 * scale, equal_nan=True)


def why_not(module: nn.Module) -> str | None:
    """Why a module that looks replaceable is left alone; None for all others."""
    if isinstance(module, torch.jit.ScriptModule):
        return "is TorchScript: compress the model first" if "weight" in module._parameters else None
    if isinstance(module, _ConvNd) and not (
        isinstance(module, nn.Conv2d) and tuple(module.kernel_size) == (1, 1)
    ):
        size = " x ".join(map(str, module.kernel_size))
        return f"a convolution ({type(module).__name__}, {size}): only nn.Conv2d of 1 x 1 is replaced"
    kind = next((kind for kind in KINDS if isinstance(module, kind)), None)
    if kind is None or isinstance(module, NonDynamicallyQuantizableLinear):
        return None  # the latter belongs to its attention
    if _is_patched(module):
        return "its forward was replaced"
    if parametrize.is_parametrized(module):
        return "its weight is computed by a parametrization"
    weight = module._parameters.get("weight")
    if prune.is_pruned(module) or (weight is None and kind in (nn.Linear, nn.Conv2d)):
        return "its weight or bias is computed, as by weight norm or pruning"
    if weight is not None and not (weight.is_floating_point() and weight.itemsize > 1):
        return f"its weight is {weight.dtype}, not real floating point of 16 bits or more"
    if type(module) is not kind:
        return f"a {type(module).__name__}, whose forward may differ from that of nn.{kind.__name__}"
    if isinstance(module, nn.Conv2d) and (module.groups != 1 or module.padding not in _UNPADDED):
        return "a 1x1 convolution with groups or padding"
    return None


def find_units(
    model: nn.Module, filter_fn: FilterFn | None, min_features: int, recurrent: bool = False
) -> tuple[list[Unit], dict[str, str]]:
    """The weights that may be replaced, tied ones together, and the reasons why others stay.

    With `recurrent` they include those that multiply the state of an LSTM or GRU.

    Raises:
        ValueError: if the model is itself a layer, which cannot be replaced in place.
    """
    if parts_of(model):
        raise ValueError(
            f"compress_: the model is itself a {type(model).__name__}, which cannot be replaced in place; "
            "put it into an nn.Sequential."
        )
    paths: dict[nn.Module, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        paths[module].append(name)
    left: dict[str, str] = {}
    found: dict[nn.Module, dict[str, Part]] = {}
    for module, names in paths.items():
        parts = parts_of(module, names)
        if not parts:
            if (reason := why_not(module)) is not None:
                left[names[0]] = reason
            continue
        if filter_fn is not None and not all(filter_fn(module, name) for name in names):
            left[names[0]] = "left out by filter_fn"
            continue
        smallest = {name: min(part.matrices[0].shape) for name, part in parts.items()}
        few = lambda small: f"has {small} features, fewer than min_features={min_features}"
        if KINDS.get(type(module)) in RECURRENT:  # each part for itself
            for name, small in smallest.items():
                hidden = name.startswith("weight_hh") and not recurrent
                if hidden or small < min_features:
                    left[f"{names[0]}.{name}"] = _HIDDEN if hidden else few(small)
                    del parts[name]
        elif (small := min(smallest.values())) < min_features:
            left[names[0]] = few(small)
            continue
        if parts:
            found[module] = parts
    # An out_proj belongs to its attention, even if it is a plain nn.Linear.
    for module in list(found):
        if isinstance(module, nn.MultiheadAttention):
            found.pop(module.out_proj, None)
            left.pop(paths[module.out_proj][0], None)
    _drop_shared(model, found, paths, left)
    units: dict[tuple[object, ...], Unit] = {}
    for parts in found.values():
        for part in parts.values():  # tied ones have the same parameter
            units.setdefault((part.kind, part.name, id(part.parameter)), Unit()).places.append(part)
    return list(units.values()), left


def _drop_shared(
    model: nn.Module,
    found: dict[nn.Module, dict[str, Part]],
    paths: Mapping[nn.Module, list[str]],
    left: dict[str, str],
) -> None:
    """Leave modules alone whose weight is shared with one that stays dense or is of another kind."""
    holders: dict[int, list[nn.Module]] = defaultdict(list)
    for module in model.modules():
        for p in module._parameters.values():
            if p is not None and p.ndim > 1:
                holders[id(p)].append(module)
    while True:
        some = {module: next(iter(parts.values())) for module, parts in found.items()}
        kinds = {owner: part.kind for part in some.values() for owner in part.owners}
        for module, part in some.items():
            shared = [
                holder
                for owner in part.owners
                for p in owner._parameters.values()
                if p is not None and p.ndim > 1
                for holder in holders[id(p)]
                if kinds.get(holder) != part.kind
                or (part.kind in ("attention", *RECURRENT) and holder not in part.owners)
            ]
            if shared:
                left[part.names[0]] = f"its weight is shared with {paths[shared[0]][0] or 'the model'}"
                del found[module]
                break
        else:
            return


def dense_parameters(units: Sequence[Unit], made: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
    """Parameters by name, with the dense matrices of the projections in place of the weights."""
    values: dict[str, Tensor] = {}
    for unit, found in zip(units, made, strict=True):
        if not found:
            continue
        matrices = [projection.matrix.to_dense() for projection in found]
        part = unit.places[0]  # tied weights follow
        key, W = f"{part.names[0]}.{part.path}", torch.cat(matrices) if matrices[1:] else matrices[0]
        if part.third is None:
            values[key] = W.T if part.kind == "conv1d" else W.reshape(part.parameter.shape)
        else:
            joint = values.setdefault(key, part.parameter.detach().clone())
            joint.chunk(3)[part.third].copy_(W)
    return values


def check_unwrapped(who: str, model: nn.Module) -> None:
    """Raise unless this is a model that torch.distributed has not taken over."""
    check_model(who, model)
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError(
                f"{who}: the model is wrapped in DistributedDataParallel, which keeps the parameters that "
                "it was given; change the model first, then wrap it."
            )
    tensors = sys.modules.get("torch.distributed.tensor")  # not imported: nothing is sharded
    if tensors is None:
        return
    for name, p in model.named_parameters():
        if isinstance(p, tensors.DTensor):
            raise ValueError(
                f"{who}: the parameter {name!r} is sharded (a DTensor); change the model first, then call "
                "fully_shard or parallelize_module."
            )
