"""What structured layers are made of: the tensors of a matrix or of a stack, and the plan that is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.compiler import is_compiling

from ..core.checks import check_dtype
from ..core.products import is_jit_tracing
from ..core.routes import are_transformed, is_recorded, lacks_memory
from ..matrices import StructuredMatrix, get_structure
from .plan import Plan
from .snapshot import why_uncounted
from .tensors import add_axes, copied, count_edits_, lack_values, named_tensors, own_tensors

INITS = ("linear", "paper")


class StructuredParameters(nn.Module):
    """The parameters and constants of a structured matrix, or of a stack of them, by the names of its class.

    The arguments are those of `MatrixStack`; `leading` is () for one matrix. Constants that are computed,
    such as nodes, are held once and are not part of the state_dict; those that are drawn, such as the
    permutation of Fastfood, are drawn for each matrix and are.
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
        with torch.inference_mode(False):  # or edits would not be counted
            for name, shape in shapes.items():
                empty = torch.empty(*self.leading, *shape, device=device, dtype=dtype)
                self.register_parameter(name, nn.Parameter(empty))
        self._shapes = {name: (*self.leading, *shape) for name, shape in shapes.items()}
        self._plan: Plan | None = None
        self._fill_constants(drawn=True)
        self._names = (*self._learned, *self._buffers)

    def matrix(self) -> StructuredMatrix:
        """The structured matrix (..., out_features, in_features), sharing this layer's parameters."""
        return self.structure.unchecked(self.out_features, self.in_features, self._tensors(), self.options)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = named_tensors(self, self._names)
        if lack_values(tensors, self._learned):
            self._fill_constants(like=tensors[self._learned[0]])
            tensors = named_tensors(self, self._names)
        if is_jit_tracing():  # shapes are tensors then
            return tensors
        for name, shape in self._shapes.items():  # compiled products trust them
            if tensors[name].shape != shape:
                came = tuple(tensors[name].shape)
                raise ValueError(f"{type(self).__name__}: {name} must have shape {shape}, got {came}.")
        return tensors

    def _fill_constants(
        self, generator: torch.Generator | None = None, *, drawn: bool = False, like: Tensor | None = None
    ) -> None:
        """Compute the constants again, and draw anew those that are drawn if asked to."""
        some = next(self.parameters()) if like is None else like
        given: dict[str, Any] = {"dtype": some.dtype, "device": some.device, "generator": generator}
        m, n, rank = self.out_features, self.in_features, self.rank or 1
        random = self.structure.drawn if drawn else ()
        count = math.prod(self.leading) if random else 1
        with torch.inference_mode(False), torch.no_grad():
            sets = [self.structure.constants(m, n, rank, **given, **self.options) for _ in range(count)]
            for name, value in sets[0].items():
                if name not in self.structure.drawn:
                    self.register_buffer(name, value, persistent=False)
                elif name in random:
                    values = torch.stack([constants[name] for constants in sets])
                    self.register_buffer(name, values.reshape(*self.leading, *value.shape))

    # The plan, and what drops it.

    def drop_plan(self) -> None:
        """Forget what is kept for inference."""
        self._plan = None

    def _why_no_plan(self, matrix: StructuredMatrix) -> str | None:
        """Why the weights are not constants now, or None where they are."""
        if self.training:
            return "the layer is in train() mode"
        if is_compiling():
            return "a compiler is at work"
        if wanted := self._gradient_wanted(matrix.tensors):
            return f"the gradient of {wanted} is wanted"
        if getattr(self, "_is_replica", False):
            return "the layer is a replica of DataParallel, with parameters that are copied for each call"
        if is_recorded(matrix.device.type):
            return "operations are recorded, by a tracer or into a CUDA graph"
        if are_transformed():  # what is computed inside belongs to it, the numbers of a plan too
            return "a transformation of torch.func is at work"
        for name, t in matrix.tensors.items():
            if lacks_memory(t):
                return (
                    f"{name} has no values to look at: it is on the meta device, mapped, or of another class"
                )
        return self._why_swapped(matrix)

    def _why_swapped(self, matrix: StructuredMatrix) -> str | None:
        """The reason, where a parameter was exchanged for another tensor with other numbers."""
        owned: dict[str, Any] = self._parameters
        swapped = (name for name in self._learned if not isinstance(owned.get(name), nn.Parameter | None))
        if (name := next(swapped, None)) is None:
            return None
        kept = self._plan if matrix.device.type == "cpu" else None
        same = kept is not None and kept.snapshot.matches([*matrix.tensors.values()])
        return None if same else f"{name} was swapped for another tensor"

    def _note(self, matrix: StructuredMatrix) -> str:
        """What keeps calls from being as fast as they can be, in words; "" where nothing does."""
        why = self._why_no_plan(matrix)
        if why is not None:
            return f"no plan is kept: {why}"
        if matrix.device.type != "cpu":
            for name, t in matrix.tensors.items():
                if (reason := why_uncounted(t)) is not None:
                    return f"each call waits for the device, to compare {name} with a copy: it {reason}"
        return ""

    def _gradient_wanted(self, tensors: Mapping[str, Tensor]) -> str | None:
        """The name of one that autograd asks for, a bias too."""
        if not is_grad_enabled():
            return None
        every = {**tensors, **self._parameters}
        return next((name for name, t in every.items() if t is not None and t.requires_grad), None)

    def _make_plan(self, matrix: StructuredMatrix) -> Plan:
        return Plan(matrix)

    def _kept_plan(self) -> Plan | None:
        """The plan for the numbers that the tensors have now; None where they are not constants."""
        if self.training or is_compiling():
            return None
        plan = self._plan
        if plan is not None:
            if is_grad_enabled() and self._gradient_wanted(self._tensors()):
                return None
            if not is_recorded(plan.kind) and plan.snapshot.holds(own_tensors(self)):
                return plan  # it was made of these very tensors
        matrix = self.matrix()
        if self._why_no_plan(matrix) is not None:
            return None
        plan = self._plan
        if plan is None or not plan.snapshot.matches([*matrix.tensors.values()]):
            plan = self._plan = self._make_plan(matrix)
        return plan

    def _dense(self, *, copy: bool = True) -> Tensor:
        """The dense matrix or matrices, differentiable; a copy of what a plan keeps, which one may edit."""
        plan = self._kept_plan()
        if plan is None:
            return self.matrix().materialize()
        return plan.weight().clone() if copy else plan.weight()

    def _count_edits(self) -> None:
        """Let the tensors count their edits, unless what is kept reads them where they are."""
        if self.structure.structured or self.leading:
            count_edits_(self)

    def train(self, mode: bool = True) -> Self:
        self._plan = None
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self.drop_plan()
        with torch.inference_mode(False), torch.no_grad():
            super()._apply(fn, recurse)
        self._count_edits()
        self._fill_constants()  # conversion to a narrow dtype, or from the meta device, ruins them
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.drop_plan()
        add_axes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._count_edits()
        self._fill_constants()  # parameters that are assigned may have another device and dtype

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._count_edits()

    __deepcopy__ = copied


def describe(part: StructuredParameters) -> str:
    """The class and its arguments, as a repr shows them."""
    parts = [f"structure={part.structure.name!r}"]
    parts += [f"rank={part.rank}"] if part.rank is not None else []
    parts += [f"{name}={value!r}" for name, value in part.options.items()]
    return ", ".join(parts)
