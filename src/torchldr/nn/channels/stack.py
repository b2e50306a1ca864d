"""MatrixStack: structured matrices of one class and shape, held together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...core.products import without_autocast
from ...core.routes import is_traced
from ...matrices import StructuredMatrix, get_structure
from ..snapshot import Snapshot
from ..tensors import add_axes, lack_values, let_prune, named_tensors
from .weights import stacked_dense, stacked_matmul

SMALL_ENTRIES = 1 << 14  # of a matrix: no product of several steps beats a dense one of 128 x 128
_MEASURED = 1 << 24  # entries of all matrices up to which the initial scale is measured


class MatrixStack(nn.Module):
    """A grid of structured matrices (out_features, in_features) whose parameters share tensors.

    Every parameter of the class has the grid's axes in front: `G` of a stack of four matrices has shape
    (4, r, m). Layers that need several matrices at once (the gates of an LSTM, a grid of channels) are
    made of it; products and dense weights are computed for all of them together.

    Args:
        stack: shape of the grid, such as (4,) or (3, 3).
        in_features, out_features: shape of each matrix.
        structure: name of a structured class, or the class.
        rank: rank of the class's generators; None means 1, or nothing for a class without a rank.
        options: the structure's own options.
        device, dtype: of the parameters.
        layer: whose arguments these are, for errors.

    Attributes:
        G, H, ...: the structure's parameters by the names of its class, shape (*stack, ...).

    Constants that are computed, such as nodes, are held once; those that are drawn, such as the
    permutation of Fastfood, are drawn for each matrix and are part of the state_dict.
    """

    def __init__(
        self,
        stack: tuple[int, ...],
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
        who = (layer or MatrixStack).__name__
        self.stack, self.in_features, self.out_features = tuple(stack), in_features, out_features
        self.structure = get_structure(structure)
        self.options = self.structure.check_options(options or {}, layer)
        shapes = self.structure.check_shapes(out_features, in_features, rank, self.options, who)
        self.rank = (rank or 1) if self.structure.ranked else None
        dtype = dtype or torch.get_default_dtype()
        if not dtype.is_floating_point:
            raise TypeError(f"{who}: dtype must be real floating point, got {dtype}.")
        for name, shape in shapes.items():
            self.register_parameter(
                name, nn.Parameter(torch.empty(*self.stack, *shape, device=device, dtype=dtype))
            )
        self._learned = tuple(shapes)
        self._kept: _Kept | None = None
        self._fill_constants(drawn=True)
        self._names = (*self._learned, *self._buffers)

    # The matrices.

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, parameters and constants."""
        let_prune(self)
        tensors = named_tensors(self, self._names)
        if lack_values(tensors, self._learned):
            self._fill_constants()
            tensors = named_tensors(self, self._names)
        return tensors

    @property
    def shared(self) -> frozenset[str]:
        """The constants without the grid's axes."""
        return frozenset(self._non_persistent_buffers_set)

    @property
    def on_a_gpu(self) -> bool:
        return next(self.parameters()).is_cuda

    def matrix(self, *index: int) -> StructuredMatrix:
        """The matrix at a place of the grid, sharing this module's parameters."""
        tensors = {name: t if name in self.shared else t[index] for name, t in self.tensors().items()}
        return self.structure.unchecked(self.out_features, self.in_features, tensors, self.options)

    def dense(self) -> Tensor:
        """The dense matrices, shape (*stack, out_features, in_features), by way of fast products.

        Differentiable. In `eval()` and without gradients for the parameters they are kept until a
        parameter changes.
        """
        if not self._keeps():
            return self._dense()
        tensors = list(self.tensors().values())
        if self._kept is None or not self._kept.snapshot.matches(tensors):
            # What is made in inference mode may have to serve autograd later.
            with torch.inference_mode(False), torch.no_grad():
                self._kept = _Kept(Snapshot(tensors), _as_blocks(self._dense()))
        return self._kept.dense

    def favours_dense(self, factor: int) -> bool:
        """Whether dense matrices, made anew in every call, are faster than fast products.

        A dense product takes about m n operations a vector, a fast one r (m + n) times `factor`, which
        the caller has measured; low rank needs no transforms and has a factor of its own.
        """
        m, n = self.out_features, self.in_features
        if self.structure.name == "dense":
            return True
        factor = 4 if self.structure.name == "low_rank" else factor
        return m * n <= SMALL_ENTRIES or m * n <= factor * (self.rank or 1) * (m + n)

    def _dense(self) -> Tensor:
        some = next(self.parameters())
        device, axes = some.device.type, len(self.stack)
        tensors = {n: t if n in self.shared else t.flatten(0, axes - 1) for n, t in self._wide().items()}
        with without_autocast(device):
            W = stacked_dense(
                self.structure, self.out_features, self.in_features, tensors, self.options, self.shared
            )
        return W.reshape(*self.stack, self.out_features, self.in_features).to(some.dtype)

    def matmul(self, x: Tensor, x_axes: tuple[int | None, ...]) -> Tensor:
        """The fast product of all matrices: see `weights.stacked_matmul`.

        Runs in float32 or wider and answers in that.
        """
        if not torch.compiler.is_compiling() and x.shape[0] == 0:  # FFTs refuse it: a row that is dropped
            return self.matmul(pad(x, [0, 0] * (x.ndim - 1) + [0, 1]), x_axes)[..., :-1, :]
        tensors = self._wide()
        x = x.to(tensors[self._learned[0]].dtype)
        with without_autocast(x.device.type):
            return stacked_matmul(
                self.structure,
                self.out_features,
                self.in_features,
                tensors,
                self.options,
                self.shared,
                x,
                x_axes,
            )

    def _wide(self) -> dict[str, Tensor]:
        """The tensors in the dtype that products run in: float32 or wider."""
        tensors = self.tensors()
        wide = torch.promote_types(tensors[self._learned[0]].dtype, torch.float32)
        return {name: t.to(wide) if name in self._learned else t for name, t in tensors.items()}

    # Starting values.

    @torch.no_grad()
    def reset_parameters(
        self, generator: torch.Generator | None = None, *, init: str = "linear", gain: float = 1.0
    ) -> None:
        """Draw every matrix anew, in place, and refill the constants.

        Args:
            generator: where random numbers come from.
            init: "linear" gives each matrix the mean square of nn.Linear's weight, 1 / (3 in_features);
                "paper" is the authors' start.
            gain: with "linear", what each matrix is multiplied by.
        """
        self._fill_constants(generator, drawn=True)
        structure, size = self.structure, (self.out_features, self.in_features)
        start = structure.init_paper_ if init == "paper" else structure.init_
        for index in itertools.product(*map(range, self.stack)):
            start(self.matrix(*index).tensors, *size, generator, **self.options)
        if init != "paper":
            self._rescale(gain)
        self.drop_plan()

    def _rescale(self, gain: float) -> None:
        """Times the gain, and the scale that `init_` gives in expectation made exact where that is cheap."""
        parts = [self.get_parameter(name) for name in self.structure.scaled]
        scale = torch.full(self.stack, gain, dtype=torch.float64, device=parts[0].device)
        if math.prod((*self.stack, self.out_features, self.in_features)) <= _MEASURED and not scale.is_meta:
            scale /= (3 * self.in_features * self._dense().double().square().mean((-2, -1))).sqrt()
        for p in parts:
            root = scale ** (1 / len(parts))
            p.mul_(root.reshape(self.stack + (1,) * (p.ndim - root.ndim)).to(p.dtype))

    def _fill_constants(self, generator: torch.Generator | None = None, *, drawn: bool = False) -> None:
        """Compute the constants again, and draw anew those that are drawn if asked to."""
        some = next(self.parameters())
        like: dict[str, Any] = {"dtype": some.dtype, "device": some.device, "generator": generator}
        m, n, rank = self.out_features, self.in_features, self.rank or 1
        count = math.prod(self.stack) if drawn else 1
        sets = [self.structure.constants(m, n, rank, **like, **self.options) for _ in range(count)]
        for name, constant in sets[0].items():
            if not constant.persistent:
                self.register_buffer(name, constant.value, persistent=False)
            elif drawn:
                values = torch.stack([constants[name].value for constants in sets])
                self.register_buffer(name, values.unflatten(0, self.stack))

    # What is kept for inference, and what drops it.

    def _keeps(self) -> bool:
        if self.training or torch.compiler.is_compiling() or self.structure.name == "dense":
            return False
        tensors = self.tensors()
        for name in self._learned:
            own = self._parameters.get(name)
            swapped = own is not None and not isinstance(own, nn.Parameter)  # by a transformation
            if swapped or (torch.is_grad_enabled() and tensors[name].requires_grad):
                return False
        return not is_traced(*tensors.values())

    def drop_plan(self) -> None:
        """Forget what is kept for inference."""
        self._kept = None

    def train(self, mode: bool = True) -> Self:
        self.drop_plan()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self.drop_plan()
        super()._apply(fn, recurse)
        self._fill_constants()  # conversion to a narrow dtype, or from the meta device, ruins them
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.drop_plan()
        add_axes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._fill_constants()  # parameters that are assigned may have another device and dtype

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def extra_repr(self) -> str:
        grid = " x ".join(map(str, self.stack))
        return f"{grid} of {describe(self)}"


def describe(stack: MatrixStack, sizes: bool = True) -> str:
    """The arguments of a stack's matrices, as a repr shows them."""
    parts = [f"in_features={stack.in_features}", f"out_features={stack.out_features}"] if sizes else []
    parts += [f"structure={stack.structure.name!r}"]
    parts += [f"rank={stack.rank}"] if stack.rank is not None else []
    parts += [f"{name}={value!r}" for name, value in stack.options.items()]
    return ", ".join(parts)


def _as_blocks(dense: Tensor) -> Tensor:
    """The same matrices, of which a grid lies in memory as the block matrix that it is."""
    return dense.transpose(1, 2).contiguous().transpose(1, 2) if dense.ndim == 4 else dense.contiguous()


class _Kept(NamedTuple):
    """Dense matrices, and the numbers that they were made from."""

    snapshot: Snapshot
    dense: Tensor
