"""Which weights of a model can be replaced, and which tensors they share."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize

from ..core.checks import check_model
from .candidates import Weight
from .pieces import Pieces

FilterFn = Callable[[nn.Module, str], bool]
RECURRENT = ("lstm", "gru")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
_UNPADDED = ((0, 0), "valid", "same")  # for a kernel of 1 x 1
_HIDDEN = "multiplies the state, where errors grow from step to step: only with recurrent=True"


@dataclass
class Part:
    """A weight of a module: a parameter, or a third of a joint one, as matrices (out, in).

    That of a recurrent layer has a matrix for each gate, which take the same structure.
    """

    path: str  # of the parameter, from the module
    parameter: nn.Parameter
    matrices: list[Tensor]
    third: int | None = None


@dataclass
class Site:
    """A module that can be replaced, under all the names that the model has for it.

    It has one part "" if it is a layer with one weight, four if it is an attention, and those of torch's
    names if it is a recurrent layer.
    """

    module: nn.Module
    names: list[str]
    kind: str
    parts: dict[str, Part]

    @property
    def owners(self) -> list[nn.Module]:
        """The modules that hold its parameters."""
        return list(self.module.modules()) if self.kind == "attention" else [self.module]


@dataclass
class Unit(Weight):
    """Matrices that get one structure: a weight, with everything that is tied to it."""

    places: list[tuple[Site, str]] = field(default_factory=list)

    @property
    def matrices(self) -> list[Tensor]:
        site, part = self.places[0]
        return site.parts[part].matrices

    @property
    def kind(self) -> str:
        return self.places[0][0].kind

    @property
    def names(self) -> list[str]:
        return [".".join(filter(None, (name, part))) for site, part in self.places for name in site.names]

    @property
    def aliases(self) -> list[str]:
        """The names that a plan may call it by: its own, and those of the modules that it is part of."""
        return list(dict.fromkeys(self.names + [name for site, _ in self.places for name in site.names]))


def describe_site(module: nn.Module, names: list[str]) -> Site | None:
    """What can be replaced in a module, or None.

    Subclasses of torch's layers are left alone: what their `forward` does is not known. So are layers
    whose `forward` someone has replaced, or whose weight is computed from others (parametrizations, weight
    norm).
    """
    if why_not(module) is not None:
        return None
    kind, weight = type(module), module._parameters.get("weight")
    if isinstance(module, nn.MultiheadAttention):
        return _attention(module, names)
    if isinstance(module, nn.LSTM | nn.GRU):
        return _recurrent(module, names)
    if weight is None:
        return None
    if kind in (nn.Linear, nn.Conv2d):
        name, W = "linear" if kind is nn.Linear else "conv2d", weight.detach().flatten(1)
    elif _is_transposed(module, weight):
        name, W = "conv1d", weight.detach().T
    else:
        return None
    return Site(module, names, name, {"": Part("weight", weight, [W])})


def _is_patched(module: nn.Module) -> bool:
    """Whether an object has a `forward` of its own. That of accelerate only moves inputs between devices."""
    return "forward" in vars(module) and "_hf_hook" not in vars(module)


def _is_transposed(module: nn.Module, weight: Tensor) -> bool:
    """Whether this is Hugging Face's Conv1D, y = x W + b, and not another class of that name.

    Many models bring a copy of that class with them, so it is asked what it computes.
    """
    if type(module).__name__ != "Conv1D" or not hasattr(module, "nf") or weight.ndim != 2:
        return False
    if _is_patched(module):
        return False
    if weight.is_meta:
        return True
    bias = module._parameters.get("bias")
    with torch.no_grad():
        x = torch.linspace(-1, 1, weight.shape[0], dtype=weight.dtype, device=weight.device).unsqueeze(0)
        wanted = x @ weight if bias is None else x @ weight + bias
        try:
            found = type(module).forward(module, x)
        except Exception:  # whatever a stranger's class says of such an input
            return False
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return False
    scale = (x.abs() @ weight.abs()).max().item()
    return torch.allclose(found, wanted, rtol=0.02, atol=0.02 * scale, equal_nan=True)


def why_not(module: nn.Module) -> str | None:
    """Why a module that looks like one to replace has no site; None for all others."""
    if isinstance(module, torch.jit.ScriptModule):
        return "is TorchScript: compress the model first" if "weight" in module._parameters else None
    if isinstance(module, _ConvNd) and not (
        isinstance(module, nn.Conv2d) and tuple(module.kernel_size) == (1, 1)
    ):
        size = " x ".join(map(str, module.kernel_size))
        return f"a convolution ({type(module).__name__}, {size}): only nn.Conv2d of 1 x 1 is replaced"
    kinds = (nn.Linear, nn.Conv2d, nn.LSTM, nn.GRU, nn.MultiheadAttention)
    kind = next((kind for kind in kinds if isinstance(module, kind)), None)
    if kind is None or isinstance(module, NonDynamicallyQuantizableLinear):
        return None  # the latter belongs to its attention
    if _is_patched(module):
        return "its forward was replaced by another"
    if parametrize.is_parametrized(module):
        return "its weight is computed by a parametrization"
    if kind in (nn.Linear, nn.Conv2d) and module._parameters.get("weight") is None:
        return "its weight is computed, as by weight norm or pruning"
    if type(module) is not kind:
        return f"a {type(module).__name__}, whose forward may differ from that of nn.{kind.__name__}"
    if isinstance(module, nn.Conv2d) and (module.groups != 1 or module.padding not in _UNPADDED):
        return "a 1x1 convolution with groups or padding"
    return None


def _attention(module: nn.MultiheadAttention, names: list[str]) -> Site | None:
    joint, out = module._parameters.get("in_proj_weight"), module.out_proj._parameters.get("weight")
    parts: dict[str, Part] = {}
    for i, name in enumerate(PROJECTIONS[:3]):
        path = f"{name}_weight" if joint is None else "in_proj_weight"
        p = module._parameters.get(path)
        if p is None or out is None:
            return None
        whole, third = p.detach(), None if joint is None else i
        parts[name] = Part(path, p, [whole if joint is None else whole.chunk(3)[i]], third)
    assert out is not None
    parts["out_proj"] = Part("out_proj.weight", out, [out.detach()])
    return Site(module, names, "attention", parts)


def _recurrent(module: nn.RNNBase, names: list[str]) -> Site | None:
    kind, gates = ("lstm", 4) if isinstance(module, nn.LSTM) else ("gru", 3)
    parts: dict[str, Part] = {}
    for name in module._flat_weights_names:
        if name.startswith(("weight_ih", "weight_hh")):
            p = module._parameters.get(name)
            if p is None:
                return None
            parts[name] = Part(name, p, list(p.detach().chunk(gates)))
    return Site(module, names, kind, parts)


def find_units(
    model: nn.Module, filter_fn: FilterFn | None, min_features: int, recurrent: bool = False
) -> tuple[list[Unit], dict[str, str]]:
    """The weights that may be replaced, tied ones together, and why others are left alone.

    With `recurrent` those that multiply the state of an LSTM or GRU too.

    Raises:
        ValueError: where the model is itself a layer, which cannot be replaced in place.
    """
    if describe_site(model, [""]) is not None:
        raise ValueError(
            f"compress_: the model is itself a {type(model).__name__}, which cannot be replaced in place; "
            "put it into an nn.Sequential."
        )
    paths: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        paths[id(module)].append(name)
    left: dict[str, str] = {}
    sites: dict[int, Site] = {}
    for module in model.modules():
        names = paths[id(module)]
        site = describe_site(module, names)
        if site is None:
            if (reason := why_not(module)) is not None:
                left[names[0]] = reason
            continue
        if filter_fn is not None and not all(filter_fn(module, name) for name in names):
            left[names[0]] = "left out by filter_fn"
            continue
        smallest = {name: min(part.matrices[0].shape) for name, part in site.parts.items()}
        few = lambda small: f"has {small} features, fewer than min_features={min_features}"
        if site.kind in RECURRENT:  # each part for itself
            for name, small in smallest.items():
                hidden = name.startswith("weight_hh") and not recurrent
                if hidden or small < min_features:
                    left[f"{names[0]}.{name}"] = _HIDDEN if hidden else few(small)
                    del site.parts[name]
        elif (small := min(smallest.values())) < min_features:
            left[names[0]] = few(small)
            continue
        if site.parts:
            sites[id(module)] = site
    # An out_proj belongs to its attention, also where someone has put a plain nn.Linear there.
    for site in list(sites.values()):
        for owner in site.owners[1:]:
            sites.pop(id(owner), None)
            left.pop(paths[id(owner)][0], None)
    _drop_shared(model, sites, paths, left)
    units: dict[tuple[object, ...], Unit] = {}
    for site in sites.values():
        for name, part in site.parts.items():  # tied ones have the same parameter
            units.setdefault((site.kind, name, id(part.parameter)), Unit()).places.append((site, name))
    return list(units.values()), left


def _drop_shared(
    model: nn.Module, sites: dict[int, Site], paths: dict[int, list[str]], left: dict[str, str]
) -> None:
    """Leave alone what shares a weight with a module that stays dense, or is used there otherwise."""
    holders: dict[int, list[nn.Module]] = defaultdict(list)
    for module in model.modules():
        for p in module._parameters.values():
            if p is not None and p.ndim > 1:
                holders[id(p)].append(module)
    while True:
        kinds = {id(owner): site.kind for site in sites.values() for owner in site.owners}
        for key, site in list(sites.items()):
            shared = [
                holder
                for owner in site.owners
                for p in owner._parameters.values()
                if p is not None and p.ndim > 1
                for holder in holders[id(p)]
                if kinds.get(id(holder)) != site.kind
                or (site.kind in ("attention", *RECURRENT) and holder not in site.owners)
            ]
            if shared:
                left[site.names[0]] = f"its weight is shared with {paths[id(shared[0])][0] or 'the model'}"
                del sites[key]
                break
        else:
            return


def dense_parameters(
    units: Sequence[Unit], made: Sequence[Sequence[Any]], pieces: Pieces
) -> dict[str, Tensor]:
    """The parameters of a model with the dense matrices of projections in place of its weights, by name.

    They are as large as the model: on a CPU they lie in the files of `pieces`, where it has some.
    """
    new: dict[int, tuple[Site, dict[str, list[Tensor]]]] = {}
    for i, (unit, found) in enumerate(zip(units, made, strict=True)):
        matrices = []
        for j, projection in enumerate(found):
            M = projection.matrix.to_dense()
            filed = pieces.folder is not None and M.device.type == "cpu"
            matrices.append(pieces.zeros(f"dense-{i}-{j}", M.shape, M).copy_(M) if filed else M)
        for site, name in unit.places if found else []:
            new.setdefault(id(site.module), (site, {}))[1][name] = matrices
    values: dict[str, Tensor] = {}
    for site, some in new.values():
        rows: dict[str, list[Tensor]] = defaultdict(list)  # of a parameter, which may have several parts
        for name, part in site.parts.items():
            rows[part.path] += some.get(name, part.matrices)
        shapes = {part.path: part.parameter.shape for part in site.parts.values()}
        for path, matrices in rows.items():
            W = torch.cat(matrices) if len(matrices) > 1 else matrices[0]
            W = W.T if site.kind == "conv1d" else W.reshape(shapes[path])
            values[f"{site.names[0]}.{path}"] = W
    return values


def check_unwrapped(who: str, model: nn.Module) -> None:
    """Errors for what is no model, or one that torch.distributed has taken over, whose layers must stay."""
    check_model(who, model)
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError(
                f"{who}: the model is wrapped in DistributedDataParallel, which keeps the parameters that "
                "it was given; change the model first, then wrap it."
            )
    tensors = sys.modules.get("torch.distributed.tensor")  # where nobody has imported it, nothing is sharded
    if tensors is None:
        return
    for name, p in model.named_parameters():
        if isinstance(p, tensors.DTensor):
            raise ValueError(
                f"{who}: the parameter {name!r} is sharded (a DTensor); change the model first, then call "
                "fully_shard or parallelize_module."
            )
