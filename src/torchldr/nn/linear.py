"""StructuredLinear: a structured matrix where nn.Linear stood."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from ..matrices import StructuredMatrix, get_structure
from ..matrices.base import Product, check_input, run_product
from . import plans

PLANS = ("auto", "fast", "dense")


class _Plan(NamedTuple):
    """A product kept for inference and the parameters, as they were, that it was made from."""

    seen: tuple[tuple[weakref.ref[Tensor], int], ...]
    product: Product | None  # one of these two
    weight: Tensor | None


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
    input, until a parameter is changed in place or replaced. An edit through `.data` cannot be seen:
    call `drop_plan()` after one.

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
        self.options = self.structure.check_options(options)
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
        if self._keeps_plan(matrix):
            plan = self._planned(matrix)
            if plan.weight is not None:
                return plan.weight
        return matrix.materialize()

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
        """Forget what is kept for inference: needed only after an edit through `.data`."""
        self._plan = None

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.matrix()
        check_input(matrix, x, self.in_features, "in_features", "StructuredLinear")
        if self._keeps_plan(matrix):
            plan = self._planned(matrix)
            if plan.product is not None:
                return run_product(plan.product, x, matrix.dtype, self.bias)
            return _dense_product(x, plan.weight, self.bias)
        if self._plan_choice == "dense":
            return _dense_product(x, matrix.materialize(), self.bias)
        return run_product(matrix.promoted().product, x, matrix.dtype, self.bias)

    def extra_repr(self) -> str:
        parts = [f"in_features={self.in_features}", f"out_features={self.out_features}"]
        parts += [f"bias={self.bias is not None}", f"structure={self.structure.name!r}"]
        parts += [f"rank={self.rank}"] if self.rank is not None else []
        parts += [f"{name}={value!r}" for name, value in self.options.items()]
        parts += [f"init={self.init!r}"] if self.init != "linear" else []
        parts += [f"plan={self._plan_choice!r}"] if self._plan_choice != "auto" else []
        if self._plan_choice == "auto" and self._plan is not None:
            kept = {"fast": self._plan.product, "dense": self._plan.weight}
            names = " and ".join(name for name, what in kept.items() if what is not None)
            parts.append(f"plan='auto' (keeps {names})")
        return ", ".join(parts)

    # The plan, and what drops it.

    def _keeps_plan(self, matrix: StructuredMatrix) -> bool:
        """Whether the weights are constants now: in inference, and not swapped by a transformation."""
        if self.training or torch.compiler.is_compiling():
            return False
        for name in self._learned:
            p = matrix.tensors[name]
            if not isinstance(p, nn.Parameter) or p.is_inference():
                return False
            if p.requires_grad and torch.is_grad_enabled():
                return False
        return True

    def _planned(self, matrix: StructuredMatrix) -> _Plan:
        plan, tensors = self._plan, matrix.tensors.values()
        if plan is not None and all(
            ref() is t and version == t._version for (ref, version), t in zip(plan.seen, tensors, strict=True)
        ):
            return plan
        with torch.inference_mode(False), torch.no_grad():
            weight = matrix.materialize() if self._chooses_dense() else None
            product = matrix.promoted().prepare() if weight is None else None
        self._plan = _Plan(tuple((weakref.ref(t), t._version) for t in tensors), product, weight)
        return self._plan

    def _chooses_dense(self, batch: int = 1) -> bool:
        if self._plan_choice != "auto":
            return self._plan_choice == "dense"
        return plans.prefers_dense(self.matrix(), batch)

    def _tensors(self) -> dict[str, Tensor]:
        registered = {**self._buffers, **self._parameters}
        return {name: cast(Tensor, registered[name]) for name in self._names}

    def _refill_constants(self, generator: torch.Generator | None = None, *, drawn: bool = False) -> None:
        """Compute the constants again, and draw anew those that are drawn if asked to."""
        some = self._tensors()[self._learned[0]]
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
        self.drop_plan()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self.drop_plan()
        super()._apply(fn, recurse)
        self._refill_constants()  # conversion to a narrow dtype, or from the meta device, ruins them
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.drop_plan()
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}


def _dense_product(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """nn.functional.linear, and autocast leaves float64 alone, as it does for the fast products."""
    assert weight is not None
    return nn.functional.linear(x.to(weight.dtype) if weight.dtype == torch.float64 else x, weight, bias)
