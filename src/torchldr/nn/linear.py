"""StructuredLinear: a structured matrix where nn.Linear stood."""

from __future__ import annotations

from operator import is_
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from ..matrices import StructuredMatrix, get_structure
from ..matrices.products import Product, check_input, run_product
from . import plans
from .tensors import add_axes, named_tensors, states

PLANS = ("auto", "fast", "dense")
# Whether autocast is on for any device, in a tenth of the time of `torch.is_autocast_enabled`.
_autocasts = torch._C._is_any_autocast_enabled


class _Plan:
    """What a layer keeps for inference, and the tensors, as they were, that it was made from.

    Both ways to multiply are made when first chosen and then kept, so that batches of different sizes may
    take turns.
    """

    def __init__(self, layer: StructuredLinear, matrix: StructuredMatrix) -> None:
        self.matrix, self.choice = matrix, layer.plan
        self.in_features, self.dtype, self.device = matrix.in_features, matrix.dtype, matrix.device
        self.wide = self.dtype in (torch.float32, torch.float64)  # products run in it as it is
        self.registries = [(registry, list(registry.values())) for registry in _registries(layer)]
        self.changing = [t for _, tensors in self.registries for t in tensors if t is not None]
        self.states = states(self.changing)
        self.aliases = [t.detach() for t in self.changing]  # so that no other data comes to the same address
        self.choices: dict[int, bool] = {}
        self.ways: dict[torch.Size, Product] = {}  # for inputs of these shapes that need no conversion
        self._product: Product | None = None
        self._weight: Tensor | None = None

    def holds(self) -> bool:
        """Whether every tensor is still the one it was, and no gradient of it is wanted."""
        for registry, tensors in self.registries:
            if len(registry) != len(tensors) or not all(map(is_, registry.values(), tensors)):
                return False
        if states(self.changing) != self.states:
            return False
        return not (torch.is_grad_enabled() and any(t.requires_grad for t in self.changing))

    def dense(self, batch: int) -> bool:
        """Whether a batch of this size takes the dense matrix."""
        if self.choice != "auto":
            return self.choice == "dense"
        size = plans.batch_class(batch)
        if size not in self.choices:
            self.choices[size] = plans.prefers_dense(self.matrix, batch, self._product)
        return self.choices[size]

    @property
    def product(self) -> Product:
        if self._product is None:
            # A plan made in inference mode may have to serve autograd later.
            with torch.inference_mode(False), torch.no_grad():
                self._product = self.matrix.promoted().prepare()
        return self._product

    @property
    def weight(self) -> Tensor:
        if self._weight is None:
            with torch.inference_mode(False), torch.no_grad():
                self._weight = plans.dense_weight(self.matrix)
        return self._weight


class StructuredLinear(nn.Module):
    """Apply y = x M^T + b with a structured matrix M: nn.Linear with far fewer parameters.

    Args:
        in_features: size of each input vector.
        out_features: size of each output vector.
        bias: whether to learn an additive bias.
        structure: name of a structured class (`torchldr.structures()` lists them), or the class.
        rank: rank of the class's generators; None means 1, or nothing for a class without a rank.
        init: "linear" gives outputs the variance of nn.Linear's; "paper" is the authors' start.
        device, dtype: of the parameters, as everywhere in torch.
        **options: the structure's own options, such as `block_size` or `normalize`.

    Shape:
        Input (..., in_features), output (..., out_features), with any leading axes.

    Attributes:
        weight: the dense matrix, computed when asked for; read-only.
        bias: the bias (out_features), or None.
        plan: how inference multiplies: "fast" never makes a dense matrix, "dense" always does, "auto"
            does where that is faster and the matrix is small. May be set at any time.
        G, H, ...: the structure's parameters, by the names of its class.

    In `eval()` and without gradients for the parameters the layer keeps what does not depend on the
    input, until a parameter is changed in place or replaced. An edit in place through `.data` cannot be
    seen: call `drop_plan()` after one.

    Examples:
        >>> layer = StructuredLinear(784, 512, structure="ldr_sd", rank=4)
        >>> layer(torch.randn(32, 784)).shape
        torch.Size([32, 512])
        >>> sum(p.numel() for p in layer.parameters())
        6992
    """

    in_features: int
    out_features: int
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        structure: str | type[StructuredMatrix] = "ldr_sd",
        rank: int | None = None,
        init: str = "linear",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if init not in ("linear", "paper"):
            raise ValueError(f"StructuredLinear: init must be 'linear' or 'paper', got {init!r}.")
        if not isinstance(bias, bool):
            raise TypeError(f"StructuredLinear: bias must be True or False, got {bias!r}.")
        self.structure = get_structure(structure)
        self.options = self.structure.check_options(options, StructuredLinear)
        shapes = self.structure.check_shapes(
            out_features, in_features, rank, self.options, "StructuredLinear"
        )
        self.in_features, self.out_features, self.init = in_features, out_features, init
        self.rank = (rank or 1) if self.structure.ranked else None
        dtype = dtype or torch.get_default_dtype()
        if not dtype.is_floating_point:
            raise TypeError(f"StructuredLinear: dtype must be real floating point, got {dtype}.")
        for name, shape in shapes.items():
            # Not by register_parameter: it would refuse `weight` of the dense class, a property here.
            self._parameters[name] = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        constants = self.structure.constants(
            out_features, in_features, self.rank or 1, dtype=dtype, device=device, **self.options
        )
        for name, constant in constants.items():
            self.register_buffer(name, constant.value, persistent=constant.persistent)
        self._learned, self._names = tuple(shapes), (*shapes, *constants)
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self._plan_choice: str = "auto"
        self._plan: _Plan | None = None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all parameters anew, in place, and refill the constants."""
        self._refill_constants(generator, drawn=True)
        start = self.structure.init_paper_ if self.init == "paper" else self.structure.initialise_
        start(self._tensors(), self.out_features, self.in_features, generator, **self.options)
        if self.bias is not None:
            bound = self.in_features**-0.5
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)
        self.drop_plan()

    def matrix(self) -> StructuredMatrix:
        """The structured matrix M (out_features, in_features), sharing this layer's parameters."""
        return self.structure.unchecked(self.out_features, self.in_features, self._tensors(), self.options)

    @property
    def weight(self) -> Tensor:
        if (weight := self._parameters.get("weight")) is not None:
            return weight
        matrix = self.matrix()
        return self._planned(matrix).weight if self._keeps_plan(matrix) else matrix.materialize()

    @property
    def plan(self) -> str:
        return self._plan_choice

    @plan.setter
    def plan(self, choice: str) -> None:
        if choice not in PLANS:
            raise ValueError(f"StructuredLinear: plan must be one of {', '.join(PLANS)}, got {choice!r}.")
        self._plan_choice = choice
        self.drop_plan()

    def drop_plan(self) -> None:
        """Forget what is kept for inference: needed only after an edit in place through `.data`."""
        self._plan = None
        if (forget := getattr(self.structure, "forget", None)) is not None:
            forget(self._tensors(), self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """nn.Module's call, with a short cut for the second inference of a kind and all that follow.

        What nn.Module does before it comes to `forward` takes longer than the product of a small layer.
        """
        plan = self._plan
        if plan is None or self.training or kwargs or torch.compiler.is_compiling() or _is_hooked(self):
            return super().__call__(*args, **kwargs)
        x = args[0] if len(args) == 1 else None
        if type(x) is Tensor and x.dtype is plan.dtype and x.device == plan.device and not _autocasts():
            way = plan.ways.get(x.shape)
            if way is not None and plan.holds():
                return way(x)
        return super().__call__(*args, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.matrix()
        check_input(matrix, x, self.in_features, "in_features", "StructuredLinear")
        if self._keeps_plan(matrix):
            plan = self._planned(matrix)
            dense = plan.dense(x.numel() // self.in_features)
            if plan.wide and x.dtype is plan.dtype and not _autocasts():
                way = plan.ways[x.shape] = self._way(plan, x.shape, dense)
                return way(x)
            if dense:
                return _dense_product(x, plan.weight, self.bias)
            return run_product(plan.product, x, plan.dtype, self.bias)
        if self._plan_choice == "dense":
            return _dense_product(x, matrix.materialize(), self.bias)
        return run_product(matrix.promoted().product, x, matrix.dtype, self.bias)

    def _way(self, plan: _Plan, shape: torch.Size, dense: bool) -> Product:
        """The product for inputs of a shape that need no conversion."""
        bias = self._parameters["bias"]
        if dense:
            weight = plan.weight
            return lambda x: nn.functional.linear(x, weight, bias)
        product, result = plan.product, (*shape[:-1], self.out_features)
        if len(shape) == 2:
            return product if bias is None else lambda x: product(x) + bias
        rows = -1, self.in_features
        if bias is None:
            return lambda x: product(x.reshape(rows)).reshape(result)
        return lambda x: product(x.reshape(rows)).reshape(result) + bias

    def extra_repr(self) -> str:
        parts = [f"in_features={self.in_features}", f"out_features={self.out_features}"]
        parts += [f"bias={self.bias is not None}", f"structure={self.structure.name!r}"]
        parts += [f"rank={self.rank}"] if self.rank is not None else []
        parts += [f"{name}={value!r}" for name, value in self.options.items()]
        if (in_use := getattr(self.structure, "product_in_use", None)) and (why := in_use(self.matrix())):
            parts[-1] += f" ({why})"  # the option `product` is the last
        parts += [f"init={self.init!r}"] if self.init != "linear" else []
        parts += [f"plan={self._plan_choice!r}"] if self._plan_choice != "auto" else []
        if self._plan_choice == "auto" and self._plan is not None:
            kept = {"fast": self._plan._product, "dense": self._plan._weight}
            names = [name for name, what in kept.items() if what is not None]
            parts += [f"plan='auto' (keeps {' and '.join(names)})"] if names else []
        return ", ".join(parts)

    # The plan, and what drops it.

    def _keeps_plan(self, matrix: StructuredMatrix) -> bool:
        """Whether the weights are constants now: in inference, and not swapped by a transformation."""
        if self.training or torch.compiler.is_compiling():
            return False
        learned = [matrix.tensors[name] for name in self._learned]
        for p in learned if self.bias is None else [*learned, self.bias]:
            if not isinstance(p, nn.Parameter) or p.is_inference():
                return False
            if p.requires_grad and torch.is_grad_enabled():
                return False
        return True

    def _planned(self, matrix: StructuredMatrix) -> _Plan:
        if self._plan is None or not self._plan.holds():
            self._plan = _Plan(self, matrix)
        return self._plan

    def _tensors(self) -> dict[str, Tensor]:
        return named_tensors(self, self._names)

    def _refill_constants(self, generator: torch.Generator | None = None, *, drawn: bool = False) -> None:
        """Compute the constants again, and draw anew those that are drawn if asked to."""
        some = next(self.parameters())
        constants = self.structure.constants(
            self.out_features,
            self.in_features,
            self.rank or 1,
            dtype=some.dtype,
            device=some.device,
            generator=generator,
            **self.options,
        )
        for name, constant in constants.items():
            if drawn or not constant.persistent:
                self.register_buffer(name, constant.value, persistent=constant.persistent)

    def train(self, mode: bool = True) -> Self:
        self._plan = None
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self.drop_plan()
        super()._apply(fn, recurse)
        self._refill_constants()  # conversion to a narrow dtype, or from the meta device, ruins them
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.drop_plan()
        add_axes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}


def _registries(layer: nn.Module) -> list[dict[str, Any]]:
    return [registry for registry in (layer._parameters, layer._buffers) if registry]


def _is_hooked(layer: nn.Module) -> bool:
    """Whether nn.Module's call would do more than call `forward`."""
    return bool(
        layer._compiled_call_impl is not None
        or layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def _dense_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """nn.functional.linear, and autocast leaves float64 alone, as it does for the fast products."""
    return nn.functional.linear(x.to(weight.dtype) if weight.dtype == torch.float64 else x, weight, bias)
