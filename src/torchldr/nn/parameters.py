"""The tensors of a structured layer: those of a matrix or of a stack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..core.checks import check_choices, check_dtype
from ..core.choice import PRODUCTS
from ..matrices import StructuredMatrix, get_structure
from .tensors import add_axes, named_tensors

INITS = ("linear", "paper")


class Multiplying(nn.Module):
    """A layer that multiplies by structured matrices, with a choice of the product."""

    _choice = "auto"

    @property
    def product(self) -> str:
        """The product: "fast" is the class's own, "dense" that of the dense matrix, "auto" the faster one.

        It may be set at any time.
        """
        return self._choice

    @product.setter
    def product(self, choice: str) -> None:
        check_choices(type(self).__name__, product=(choice, PRODUCTS))
        self._choice = choice
        for part in self.children():
            if isinstance(part, Multiplying):
                part.product = choice


class StructuredParameters(Multiplying):
    """The parameters and constants of a structured matrix, or of a stack of them, by the names of its class.

    The arguments are those of `MatrixStack`; `leading` is () for one matrix. Computed constants, such as
    nodes, are stored once and are not in the state_dict. Random constants, such as Fastfood's permutation,
    are drawn for each matrix and are in the state_dict.
    """

    def __init__(
        self,
        leading: tuple[int, ...],
        in_features: int,
        out_features: int,
        *,
        structure: str | type[StructuredMatrix] = "ldr_sd",
        rank: int | None = None,
        options: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        layer: type[nn.Module] | None = None,
    ) -> None:
        super().__init__()
        layer = layer or type(self)
        who = layer.__name__
        self.structure = get_structure(structure)
        self.options = self.structure.check_options(options or {}, layer)
        sizes = self.structure.checked_sizes(out_features, in_features, rank, who)
        self.leading, (self.out_features, self.in_features, rank) = tuple(leading), sizes
        shapes = self.structure.check_shapes(*sizes, self.options, who)
        self.rank = (rank or 1) if self.structure.ranked else None
        dtype = dtype or torch.get_default_dtype()
        check_dtype(who, dtype)
        self._learned = tuple(shapes)
        for name, shape in shapes.items():
            empty = torch.empty(*self.leading, *shape, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(empty))
        self._shapes = {name: (*self.leading, *shape) for name, shape in shapes.items()}
        self._fill_constants(drawn=True)
        self._names = (*self._learned, *self._buffers)

    def matrix(self) -> StructuredMatrix:
        """The structured matrix (..., out_features, in_features), sharing this layer's parameters."""
        return self.structure.unchecked(self.out_features, self.in_features, self._tensors(), self.options)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = named_tensors(self, self._names)
        for name, shape in self._shapes.items():  # kernels trust them
            if tensors[name].shape != shape:
                came = tuple(tensors[name].shape)
                raise ValueError(f"{type(self).__name__}: {name} must have shape {shape}, got {came}.")
        return tensors

    def _fill_constants(self, generator: torch.Generator | None = None, *, drawn: bool = False) -> None:
        """Compute the constants again, and on request draw the random ones again."""
        some = next(self.parameters())
        held = next((b for b in self._buffers.values() if b is not None), some)
        device = held.device if some.is_meta else some.device  # weights that are offloaded lie elsewhere
        given: dict[str, Any] = {"dtype": some.dtype, "device": device, "generator": generator}
        m, n, rank = self.out_features, self.in_features, self.rank or 1
        random = self.structure.drawn if drawn else ()
        count = math.prod(self.leading) if random else 1
        with torch.no_grad():
            sets = [self.structure.constants(m, n, rank, **given, **self.options) for _ in range(count)]
            for name, value in sets[0].items():
                if name not in self.structure.drawn:
                    self.register_buffer(name, value, persistent=False)
                elif name in random:
                    values = torch.stack([constants[name] for constants in sets])
                    self.register_buffer(name, values.reshape(*self.leading, *value.shape))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # Channels last is for images: tensors with more axes stay in order, and five would be refused.
        super()._apply(lambda t: fn(t.flatten(1)).view(t.shape) if t.ndim > 3 else fn(t), recurse)
        self._fill_constants()  # conversion to a narrow dtype, or from the meta device, ruins them
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        add_axes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._fill_constants()  # parameters that are assigned may have another device and dtype


def describe(part: StructuredParameters) -> str:
    """The class and its arguments, as a repr shows them."""
    parts = [f"structure={part.structure.name!r}"]
    parts += [f"rank={part.rank}"] if part.rank is not None else []
    parts += [f"{name}={value!r}" for name, value in part.options.items()]
    return ", ".join(parts)
