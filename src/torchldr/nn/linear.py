"""StructuredLinear: a structured matrix where nn.Linear stood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import linear

from ..core.checks import as_int, check_choices, check_flags
from ..core.products import check_input
from ..core.routes import Call, RouteTable
from ..matrices import StructuredMatrix
from .computed import ComputedWeight
from .parameters import INITS, StructuredParameters, describe
from .plan import PLANS, SHAPES, Plan
from .planned import PlannedLayer
from .tensors import as_node, is_proxy


class StructuredLinear(ComputedWeight, StructuredParameters, PlannedLayer):
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
        plan: which routes may serve: "fast" never makes a dense matrix, "dense" always does, "auto" takes
            what costs least. May be set at any time. `routes(x)` lists them.
        route: the name of the one route to take, or None.
        G, H, ...: the structure's parameters, by the names of its class.

    In `eval()` and without gradients for the parameters the layer keeps what does not depend on the
    input, as long as the parameters have the same numbers. On a CPU the numbers themselves are compared at
    every call, so nothing that changes them goes unseen. On a GPU torch's count of edits is asked, and every
    step of an optimizer is seen; after writing to its memory by other means, `.data` too, call `drop_plan()`.

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
    _tries = True  # routes that look at values on their way: one served the last time

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
        with torch.inference_mode(False):  # as the other parameters
            empty = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", empty)
        self._route: str | None = None
        self._tuned: dict[Call, str] = {}
        self._runs: dict[tuple[Any, ...], Callable[..., Tensor] | None] = {}  # by what was asked, in training
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all parameters anew, in place, and refill the constants."""
        self._fill_constants(generator, drawn=True)
        start = self.structure.init_paper_ if self.init == "paper" else self.structure.initialise_
        start(self._tensors(), self.out_features, self.in_features, generator, **self.options)
        if self.bias is not None:
            bound = self.in_features**-0.5
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)
        self.drop_plan()

    @property
    def weight(self) -> Tensor:
        if "weight" in self._learned:  # of the dense class, or what pruning and the like put in its place
            weight = self._parameters.get("weight", self.__dict__.get("weight"))
            if weight is None:  # while torch's tools exchange it
                raise AttributeError("StructuredLinear: there is no weight now.")
            return weight
        return self._dense()

    @weight.setter
    def weight(self, value: Tensor) -> None:
        self._check_weight_is_learned()
        self.__dict__["weight"] = value

    @weight.deleter
    def weight(self) -> None:
        if self.__dict__.pop("weight", None) is None:
            raise AttributeError("StructuredLinear: there is no weight to delete.")

    @property
    def route(self) -> str | None:
        return self._route

    @route.setter
    def route(self, name: str | None) -> None:
        known = [route.name for route in self.structure.ROUTES]
        if name is not None and name not in known:
            listed = ", ".join(known)
            raise ValueError(f"StructuredLinear: route must be one of {listed} or None, got {name!r}.")
        self._route = name
        self.drop_plan()

    def keep_tuned(self, call: Call, route: str) -> None:
        """Take this route for inputs as in `call`: what `torchldr.tune` found."""
        self._tuned[call.sized] = route
        self.drop_plan()

    def untune(self) -> None:
        """Forget what `torchldr.tune` found."""
        self._tuned.clear()
        self.drop_plan()

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is not Tensor and is_proxy(x):
            return as_node(self, x)
        owned = self._parameters  # to ask the module takes longer
        bias = owned["bias"] if "bias" in owned else self.bias  # noqa: SIM401
        if isinstance(x, Tensor):
            if x.is_nested or x.layout is not torch.strided:  # torch multiplies these by dense matrices alone
                return linear(x, self._dense(copy=False), bias)
            if (plan := self._kept_plan()) is not None:
                return plan(x, bias)
        matrix = self.matrix()
        asked = matrix.asked(x) if isinstance(x, Tensor) and not is_compiling() else None
        if asked is not None and (run := self._runs.get(asked)) is not None:
            return run(matrix, x, False, bias)
        check_input(matrix, x, self.in_features, "in_features", "StructuredLinear")
        if not self.structure.fuses and self._plans_compiled(x):
            (y,) = self._planned(x.reshape(-1, self.in_features))
            return y.reshape(*x.shape[:-1], self.out_features)
        if asked is not None and asked not in self._runs:
            self._keep_run(asked, matrix, x)
        matrix.tries = tries = self._tries
        y = matrix.multiply(x, route=self._route, dense=PLANS[self._plan_choice], bias=bias)
        if matrix.tries is not tries:
            self._tries = matrix.tries
        return y

    def _keep_run(self, asked: tuple[Any, ...], matrix: StructuredMatrix, x: Tensor) -> None:
        """Remember what multiplies inputs like this one, or None where it is looked for at each call."""
        if len(self._runs) >= SHAPES:
            self._runs.clear()
        forced = self._route is not None
        self._runs[asked] = None if forced else matrix.run_by_sizes(x, dense=PLANS[self._plan_choice])

    def drop_plan(self) -> None:
        super().drop_plan()
        self._runs = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_runs": {}}

    def routes(self, x: Tensor | int = 1) -> RouteTable:
        """Every route for these vectors, or for so many, with its cost or the reason against it.

        The layer's mode counts: in `eval()` and without gradients the matrix is kept, and what a route
        prepares costs nothing. The table's `note` says why no plan is kept, or what else makes calls wait.
        """
        x, matrix = as_int(x), self.matrix()
        if isinstance(x, int):
            x = torch.empty(x, self.in_features, dtype=matrix.dtype, device=matrix.device)
        call = matrix.call(x, kept=self._why_no_plan(matrix) is None)
        only, plan = self._route, self._kept_plan()
        if plan is not None:
            call = plan.computed(call)
            only = only or plan.route(call).name
        table = RouteTable(matrix.promoted(), call, only=only, dense=PLANS[self._plan_choice])
        table.note = self._note(matrix)
        return table

    def extra_repr(self) -> str:
        parts = [f"in_features={self.in_features}", f"out_features={self.out_features}"]
        parts += [f"bias={self.bias is not None}", describe(self)]
        parts += [f"init={self.init!r}"] if self.init != "linear" else []
        parts += [f"route={self._route!r}"] if self._route is not None else []
        kept = self._plan.prepared() if self._plan is not None else []
        if kept or self._plan_choice != "auto":
            keeps = f" (keeps {' and '.join(kept)})" if kept else ""
            parts += [f"plan={self._plan_choice!r}{keeps}"]
        return ", ".join(parts)

    def _infer(self, *inputs: Tensor) -> list[Tensor]:
        return [self.forward(*inputs)]

    def _inferred(self, *inputs: Tensor) -> list[tuple[int, ...]]:
        return [(len(inputs[0]), self.out_features)]

    def _make_plan(self, matrix: StructuredMatrix) -> Plan:
        return Plan(matrix, self._plan_choice, self._route, self._tuned)
