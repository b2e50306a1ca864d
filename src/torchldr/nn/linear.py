"""StructuredLinear: a structured matrix in place of nn.Linear."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..core.checks import as_int, check_choices, check_flags
from ..core.choice import Products
from ..core.products import check_input
from ..matrices import StructuredMatrix
from .computed import ComputedWeight
from .parameters import INITS, StructuredParameters, describe


class StructuredLinear(ComputedWeight, StructuredParameters):
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
        weight: the dense matrix, computed at each access. Writing into it (`copy_`, `nn.init.zeros_`) changes
            a copy and not the layer: set the parameters, or call `materialize_` first.
        bias: the bias (out_features), or None.
        product: "fast" uses the class's own product, "dense" computes the dense matrix first, "auto" (the
            default) chooses by a rule of sizes. It may be set at any time; `products(x)` explains the choice.
        G, H, ...: the structure's parameters, by the names of its class.

    The layer caches nothing between calls. For inference, `torchldr.freeze(model)` gives a copy that has
    everything precomputed except what depends on the input.

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
        check_choices("StructuredLinear", init=(init, INITS))
        check_flags("StructuredLinear", bias=bias)
        common: dict[str, Any] = {"structure": structure, "rank": rank, "device": device, "dtype": dtype}
        super().__init__((), in_features, out_features, options=options, layer=StructuredLinear, **common)
        self.init = init
        empty = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", empty)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise all parameters again, in place, and refill the constants."""
        self._fill_constants(generator, drawn=True)
        start = self.structure.init_paper_ if self.init == "paper" else self.structure.initialise_
        start(self._tensors(), self.out_features, self.in_features, generator, **self.options)
        if self.bias is not None:
            bound = self.in_features**-0.5
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    @property
    def weight(self) -> Tensor:
        if "weight" in self._learned:  # of the dense class, or what replaced it, as by pruning
            weight = self._parameters.get("weight", self.__dict__.get("weight"))
            if weight is None:  # while torch's tools exchange it
                raise AttributeError("StructuredLinear: there is no weight now.")
            return weight
        return self.matrix().materialize()

    @weight.setter
    def weight(self, value: Tensor) -> None:
        self._check_weight_is_learned()
        self.__dict__["weight"] = value

    @weight.deleter
    def weight(self) -> None:
        if self.__dict__.pop("weight", None) is None:
            raise AttributeError("StructuredLinear: there is no weight to delete.")

    def forward(self, input: Tensor) -> Tensor:
        matrix = self.matrix()
        if isinstance(input, Tensor) and (input.is_nested or input.layout is not torch.strided):
            return linear(input, matrix.materialize(), self.bias)  # torch knows no other products of these
        check_input(matrix, input, self.in_features, "in_features", "StructuredLinear")
        return matrix.multiply(input, product=self.product, bias=self.bias)

    def products(self, x: Tensor | int = 1) -> Products:
        """The cost of both products for these inputs, or this many rows, the choice and the reason.

        This is for the layer itself, which computes its matrix in every call. `torchldr.freeze` does it once.

        >>> print(StructuredLinear(4096, 4096, structure="toeplitz_like").products(1))
        -> fast   4 real FFTs of lengths 4096 and 4096 a row
           dense  make the 4096 x 4096 matrix by a scan, then 16,777,216 multiply-adds a row
                  not taken: slower for 1 row in float32 on cpu
        """
        rows = x.numel() // self.in_features if isinstance(x, Tensor) else as_int(x)
        return self.matrix().products(rows)

    def extra_repr(self) -> str:
        parts = [f"in_features={self.in_features}", f"out_features={self.out_features}"]
        parts += [f"bias={self.bias is not None}", describe(self)]
        parts += [f"init={self.init!r}"] if self.init != "linear" else []
        parts += [f"product={self.product!r}"] if self.product != "auto" else []
        return ", ".join(parts)
