"""A layer's inference under torch.compile: one operator that keeps what eager inference keeps.

A compiler takes parameters for inputs of its graph, so that a product would prepare itself at every call. In
`eval()`, on a CPU and without gradients it is shown `torchldr::planned` instead, except for classes that a
compiler makes as fast itself. The operator is a function of its tensors: the layer, found by a number, only
lends its plan. What the operator runs is the layer's own eager inference, with the tensors that came in the
place of its own where they are others. The number is a tensor, so that layers alike share what is compiled,
as those of torch do: a compiler takes an int for a part of its code.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from ..core.checks import check_choices
from ..core.operator import as_eager
from ..core.products import autocasts
from .parameters import StructuredParameters
from .plan import PLANS
from .tensors import called_with, copied

_LAYERS: WeakValueDictionary[int, PlannedLayer] = WeakValueDictionary()
_numbers = itertools.count()


class PlannedLayer(nn.Module):
    """A layer, or a part of one, that a compiler can be shown as one operator."""

    def __init__(self) -> None:
        super().__init__()
        self._number = _number(self)
        self._plan_choice = "auto"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._number = _number(self)

    __deepcopy__ = copied

    @property
    def plan(self) -> str:
        """How structured matrices multiply: "fast" by fast products, "dense" by dense matrices, "auto" by
        what is faster. May be set at any time."""
        return self._plan_choice

    @plan.setter
    def plan(self, choice: str) -> None:
        check_choices(type(self).__name__, plan=(choice, PLANS))
        self._plan_choice = choice
        for part in self.children():
            if isinstance(part, PlannedLayer):
                part.plan = choice
        self.drop_plan()

    def drop_plan(self) -> None:
        """Forget what is kept for inference."""
        for part in self.children():
            if isinstance(part, StructuredParameters):
                part.drop_plan()

    def _infer(self, *inputs: Tensor) -> list[Tensor]:
        """What eager inference computes."""
        raise NotImplementedError

    def _inferred(self, *inputs: Tensor) -> list[tuple[int, ...]]:
        """The shapes of what `_infer` returns, each with as many axes as the first input has."""
        raise NotImplementedError

    def _plans_compiled(self, *inputs: Tensor) -> bool:
        """Whether a compiler is at work and is shown the operator: on a CPU, where eager inference would keep
        a plan, and for weights that are parameters, not computed by pruning or parametrizations.

        On a GPU a compiler may record what runs, in memory that it takes back; a plan must not lie there.
        """
        if not torch.compiler.is_compiling() or torch.compiler.is_exporting() or self.training:
            return False
        if torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *self.parameters())):
            return False
        if inputs[0].device.type != "cpu" or autocasts("cpu"):
            return False
        return not any(_computes_weights(module) for module in self.modules())

    def _planned(self, *inputs: Tensor) -> list[Tensor]:
        """`_infer` as one operator."""
        sizes = [*itertools.chain(*self._inferred(*inputs))]
        return torch.ops.torchldr.planned([*inputs], [*_named(self).values()], self._number, sizes)


class _Inference(nn.Module):
    """`_infer` as a call, which parameters can be exchanged for."""

    def __init__(self, layer: PlannedLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return self.layer._infer(*inputs)


def _number(layer: PlannedLayer) -> Tensor:
    """A number by which the operator finds a layer, as long as there is one."""
    key = next(_numbers)
    _LAYERS[key] = layer
    with torch.inference_mode(False):
        return torch.tensor(key, device="cpu")


def _computes_weights(module: nn.Module) -> bool:
    """Whether tensors stand where parameters were.

    What layers keep for themselves is not looked at: a compiler would begin anew when there is a plan.
    """
    others = (t for name, t in vars(module).items() if not name.startswith("_"))
    return "parametrizations" in module._modules or any(isinstance(t, Tensor) for t in others)


def _named(layer: nn.Module) -> dict[str, Tensor]:
    return dict(itertools.chain(layer.named_parameters(), layer.named_buffers()))


def _same(t: Tensor, own: Tensor) -> bool:
    """Whether these are the same numbers in the same memory."""
    return t.data_ptr() == own.data_ptr() and t.shape == own.shape and t.stride() == own.stride()


def _planned(
    inputs: Sequence[Tensor], tensors: Sequence[Tensor], layer: Tensor, sizes: Sequence[int]
) -> list[Tensor]:
    found = _LAYERS[int(layer)]
    own = _named(found)
    with torch.no_grad(), as_eager():
        if all(map(_same, tensors, own.values())):
            results = found._infer(*inputs)
        else:  # detached they are no parameters, and the layer makes no plan for them
            others = {id(mine): t.detach() for mine, t in zip(own.values(), tensors, strict=True)}
            results = called_with(_Inference(found), others, tuple(inputs), {})
    return [result.contiguous() for result in results]


def _register() -> None:
    schema = "(Tensor[] inputs, Tensor[] tensors, Tensor layer, SymInt[] sizes) -> Tensor[]"
    torch.library.define("torchldr::planned", schema)
    torch.library.impl("torchldr::planned", "CompositeExplicitAutograd", _planned)

    def fake(inputs: Sequence[Tensor], tensors: Any, layer: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        x = inputs[0]
        return [x.new_empty(sizes[i : i + x.ndim]) for i in range(0, len(sizes), x.ndim)]

    torch.library.register_fake("torchldr::planned", fake)

    def stacked(
        info: Any, in_dims: tuple[Any, ...], inputs: Sequence[Tensor], tensors: Sequence[Tensor], *rest: Any
    ) -> tuple[list[Tensor], list[int]]:
        def parts(every: Sequence[Tensor], dims: Sequence[int | None], i: int) -> list[Tensor]:
            return [t if dim is None else t.select(dim, i) for t, dim in zip(every, dims, strict=True)]

        results = [
            torch.ops.torchldr.planned(parts(inputs, in_dims[0], i), parts(tensors, in_dims[1], i), *rest)
            for i in range(info.batch_size)
        ]
        made = [torch.stack(each) for each in zip(*results, strict=True)]
        return made, [0] * len(made)

    torch.library.register_vmap("torchldr::planned", stacked)


_register()
