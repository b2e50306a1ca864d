"""What a class's rule writes its integer product with: constants, stages, shared kernels, calls.

A product in integers is a chain of stages: sums of products of integers, each rescaled to 8 or 16 bits. A
class brings its chain as a rule of the operation "c_integer":

    @rule("c_integer", MyClass)
    def _(M, c):
        H, integers, scales = c.vectors("H")
        z = c.stage(integers, scales, limit=...)       # what the C computes, as a matrix of integers
        G, integers, scales = c.vectors("G")
        y = c.finish(integers.T, scales)
        f = c.function("my_product", TEXT, "rescaling")
        c.call(f"{f}({G}, {H}, {z}, {y}, x, y, work);")
        c.scratch16, c.multiplications = ..., ...
        return "in a few words, how"

`stage` and `finish` run the chain on the inputs of the calibration, choose scales, and return the C's
constants; the same chain is the reference in torch. Inside the call x is the input (const int8_t *), y the
output (int8_t * or int16_t *), work and sums scratch memory of 16 and 32 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....core.matrix import StructuredMatrix
from ....core.storage import INT8, rounded
from ..kernels import read_pieces
from ..writer import Source, Writer
from .scaling import GRID, Format, Rescaling, on_grid, rescaling, rounded_rows

_TYPES = {
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
}
_BYTES = {"int8": 1, "int16": 2, "int32": 4, "uint16": 2, "uint32": 4}
RESCALING_BYTES = 36  # of the struct, on a machine of 32 bits
FEW = 32  # rows that need no grid of multipliers
BIASES = 2**23  # beside 8 bits of a multiplier
MARGIN = 2.0  # sums between stages may be this many times those of the calibration
assert __package__ is not None
_PIECES = read_pieces(__package__)


class IntegerSource(Source):
    """The parts of model.c that layers share. Kernels that write 8 or 16 bits exist once for each."""

    types: ClassVar = _TYPES

    def __init__(self) -> None:
        super().__init__("int8")
        self.known = dict(_PIECES)
        self.shared = 0  # bytes of tables that belong to no layer

    def rescaling(self, name: str, made: Rescaling, bias: Tensor | None) -> tuple[str, int]:
        """A rescaling with the bias that the C adds: its address, and the bytes of flash it takes."""
        arrays: list[tuple[str, Tensor | None, str]] = [("bias", bias, "int32")]
        if made.codes is not None:
            return self._on_grid(name, made, bias)
        one = made.multipliers.numel() == 1
        by_rows, factors = not one and not made.factors, not one and made.factors
        arrays += [("multipliers", made.multipliers if by_rows else None, "int32")]
        arrays += [("shifts", made.shifts if by_rows else None, "int8")]
        arrays += [("factors", made.multipliers >> 16 if factors else None, "int16")]
        parts, size = [], RESCALING_BYTES
        for part, values, kind in arrays:
            parts.append("0" if values is None else self.constant(f"{name}_{part}", values.numpy(), kind))
            size += 0 if values is None else _BYTES[kind] * values.numel()
        return self._object(name, parts, made, made.multipliers[0] if one else 0), size

    def _on_grid(self, name: str, made: Rescaling, bias: Tensor | None) -> tuple[str, int]:
        """Multipliers of one table, and 32 bits a row for the bias and which it is."""
        assert made.codes is not None
        if "multiplier_table" not in self.functions:
            self.functions["multiplier_table"] = ""
            self.shared += 4 * len(GRID)
            self.constant("multiplier_table", GRID.numpy(), "int32")
        rows = made.codes + (0 if bias is None else 256 * bias)
        parts = [self.constant(f"{name}_rows", rows.numpy(), "int32"), "multiplier_table", "0", "0"]
        least = made._replace(shifts=(made.shifts - made.codes // len(GRID))[:1])
        return self._object(name, parts, least, 0), RESCALING_BYTES + 4 * rows.numel()

    def _object(self, name: str, arrays: list[str], made: Rescaling, multiplier: Any) -> str:
        out = made.format
        numbers = (multiplier, made.shifts[0], out.zero, out.low, out.high)
        self.use("rescaling")
        fields = ", ".join((*arrays, *(str(int(v)) for v in numbers)))
        return f"&{self.object('rescaling', name, f'{{{fields}}}')}"

    def use_for(self, bits: int, name: str) -> str:
        """A shared kernel that writes so many bits; the function's name."""
        made = f"{name}_{bits}"
        if made not in self.known:
            text, needs = _PIECES[name]
            self.known[made] = type(_PIECES[name])(_for_bits(text, name, bits), needs)
        self.use(made)
        return made


def _for_bits(text: str, name: str, bits: int) -> str:
    return re.sub(rf"\b{name}\(", f"{name}_{bits}(", re.sub(r"\bOUT\b", f"int{bits}_t", text))


class Stage(NamedTuple):
    """Sums by a matrix of integers (None is the identity), rescaled."""

    matrix: Tensor | None
    rescaling: Rescaling

    def __call__(self, v: Tensor) -> Tensor:
        return self.rescaling(v if self.matrix is None else (v.double() @ self.matrix.mT).long())


class Target(NamedTuple):
    """What a product is to give: its format, and the bias that is added before."""

    format: Format
    bias: Tensor | None = None


class IntegerWriter(Writer):
    """Writes the product of one matrix in integers.

    Args:
        given: inputs of the calibration, integers (b, n), less their zero.
        taken: the format of the input.
        target: what comes out.
    """

    source: IntegerSource

    def __init__(
        self,
        source: IntegerSource,
        name: str,
        M: StructuredMatrix,
        given: Tensor,
        taken: Format,
        target: Target,
    ) -> None:
        super().__init__(source, name, M, {})
        self.v, self.scale, self.taken, self.target = given, taken.scale, taken, target
        self.largest = float(
            max(taken.high - taken.zero, taken.zero - taken.low)
        )  # of the next stage's input
        self.stages: list[Stage] = []
        self.map: Tensor | None = None  # what the stages so far do to x, in real numbers
        self.scratch16 = self.scratch32 = 0
        self.form = ""

    # Constants.

    def constant(self, name: str, values: Any, kind: str = "int8") -> str:
        array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        self.flash += _BYTES[kind] * array.size
        return self.source.constant(f"{self.name}_{name}", array.astype(np.int64), kind)

    def vectors(self, name: str, values: Tensor | None = None) -> tuple[str, Tensor, Tensor]:
        """A tensor in int8, with a scale for each vector: the constant's name, integers, scales (float64)."""
        integers, scales = self.rounded(self.M.tensors[name] if values is None else values)
        return self.constant(name, integers), integers, scales

    @staticmethod
    def rounded(values: Tensor) -> tuple[Tensor, Tensor]:
        """Int8 with a scale for each vector, both in float64."""
        made = rounded(values.detach().cpu(), INT8)
        return made.integers.double(), made.scale.double().flatten()

    def rows(self, name: str) -> tuple[Tensor, Tensor]:
        """A tensor whose integers only scale rows: int8 values and their one scale, without a constant."""
        made = rounded(self.M.tensors[name].detach().cpu(), INT8)
        return made.integers.double(), made.scale.double()

    # The chain.

    @property
    def zero(self) -> int:
        """Of the input: what kernels take off x."""
        return self.taken.zero

    def stage(
        self,
        matrix: Tensor | None,
        unit: Tensor | float,
        relative: Tensor | float = 1.0,
        *,
        sums: Tensor | float,
        repeat: int = 1,
        fold: bool = False,
    ) -> str:
        """Sums that the next stage takes as integers of 16 bits; the C name of their rescaling.

        Args:
            matrix: integers (rows, columns), or None for the identity.
            unit: the value of 1 in a row's sum, if 1 in the input has the value 1: one number, or one for
                each row (or for every `repeat` rows).
            relative: the value that the next stage gives to 1 in a row, up to a common factor.
            sums: sums of absolute values in the rows of the next stage; they bound the integers here.
            repeat: how many rows share one number.
            fold: the C does not subtract the zero from x; what the zero adds is part of the bias.
        """
        spread = lambda t: torch.as_tensor(t, dtype=torch.float64).flatten().repeat_interleave(repeat)
        real = self._sums(matrix)
        real = real if bool(real.any()) else self._most(matrix)  # where the calibration gives only zeros
        real = real * self.scale * spread(unit) / spread(relative)
        limit = float(min(32767, int(2.0**30 / max(float(torch.as_tensor(sums).max()), 1.0))))
        reach = real.abs().max().item() or 1.0
        if limit < 127:
            raise OverflowError("sums leave 32 bits")
        scale = MARGIN * reach / limit
        out = Format(scale, 0, -int(limit), int(limit))
        ratio = torch.as_tensor(unit, dtype=torch.float64).flatten() / torch.as_tensor(relative).double()
        return self._add(matrix, ratio.flatten(), out, None, repeat, fold)

    def finish(
        self,
        matrix: Tensor,
        unit: Tensor | float,
        *,
        fold: bool = False,
        exact: bool = False,
        grid: Rescaling | None = None,
    ) -> str:
        """The last stage, with the bias; the C name of its rescaling."""
        unit, bias = torch.as_tensor(unit, dtype=torch.float64).flatten(), None
        if self.target.bias is not None:
            added = self.target.bias.cpu().double()
            unit = self._with_room(matrix, unit, added, fold) if grid is None else unit
            bias = (added / (self.scale * unit)).round()
            if not bool((bias.abs() <= self._room(matrix, fold)).all()):
                raise OverflowError("a bias is too large beside the weights of its row")
        return self._add(matrix, unit, self.target.format, bias, 1, fold, exact, grid)

    def finish_rows(self, weight: Tensor) -> tuple[str, str]:
        """The last stage by a dense matrix with a scale for each row: C names of its integers and rescaling.

        The scales are no smaller than rows need, and such that few multipliers serve for all rows. Integers
        that the weight has already stay.
        """
        integers, scales = rounded_rows(weight, self.target.bias, self.scale)
        off, grid = (integers * scales.unsqueeze(1) - weight.detach().cpu()).abs(), None
        if len(weight) >= FEW and not bool((off <= 1e-4 * scales.unsqueeze(1)).all()):
            grid = on_grid(scales * (self.scale / self.target.format.scale), self.target.format)
        if grid is not None:
            wider = grid.multipliers / 2.0**grid.shifts * (self.target.format.scale / self.scale)
            fewer = (weight.double().cpu() / wider.unsqueeze(1)).round().clamp(-127, 127)
            bias = torch.zeros(()) if self.target.bias is None else self.target.bias.double()
            added = bias / (self.scale * wider) - self.taken.zero * fewer.sum(1)
            if added.abs().max() < BIASES - 1:
                integers, scales = fewer, wider
            else:
                grid = None
        symbol = self.constant("weight", integers)
        return symbol, self.finish(integers, scales, fold=True, exact=True, grid=grid)

    def _with_room(self, matrix: Tensor, unit: Tensor, bias: Tensor, fold: bool) -> Tensor:
        """The units. A row of next to nothing takes one for which its bias fits into 32 bits.

        Such a row gives at most one integer of the output or 1/64 of its bias, on the calibration's inputs.
        """
        step, sums = self.target.format.scale, self._sums(matrix).abs().amax(0)
        least = bias.abs().clamp(min=step) / (self.scale * self._room(matrix, fold))
        off = (bias / (self.scale * unit)).round() * self.scale * unit - bias
        none = self._most(matrix) == 0  # such rows may have any unit
        small = (unit.abs() < least) & (sums * least * self.scale <= (bias.abs() / 64).clamp(min=step))
        if not bool((small | none & ~(off.abs() <= step / 4)).any()):
            return unit
        return torch.where(small | none, least.copysign(unit), unit)

    def _room(self, matrix: Tensor, fold: bool) -> float:
        """What a bias may be, beside the sums."""
        bound = self._bound(matrix, fold)
        if bound >= 2.0**31 - 2:
            raise OverflowError(f"sums of up to {bound:.3g} leave 32 bits")
        return 2.0**31 - 2 - bound

    def _bound(self, matrix: Tensor | None, fold: bool) -> float:
        """The largest sum; with `fold` it contains what x's zero adds."""
        most = self._most(matrix).max().item()
        if fold:
            assert matrix is not None
            most += abs(self.taken.zero) * matrix.sum(1).abs().max().item()
        return most

    def _most(self, matrix: Tensor | None) -> Tensor:
        """What the sums of each row are at most."""
        return self.largest * (torch.ones(1).double() if matrix is None else matrix.abs().sum(1))

    def _sums(self, matrix: Tensor | None) -> Tensor:
        return self.v.double() if matrix is None else self.v.double() @ matrix.mT

    def _add(
        self,
        matrix: Tensor | None,
        unit: Tensor,
        out: Format,
        bias: Tensor | None,
        repeat: int,
        fold: bool,
        exact: bool = False,
        grid: Rescaling | None = None,
    ) -> str:
        bound, added = self._bound(matrix, fold), bias
        if fold and self.taken.zero:
            assert matrix is not None
            share = -self.taken.zero * matrix.sum(1)
            added = share if bias is None else share + bias
        bound += 0.0 if bias is None else bias.abs().max().item()
        q = unit * (self.scale / out.scale)
        whole = None if bias is None else bias.long()
        made = rescaling(q, whole, out, bound, exact)
        if grid is not None:
            made = grid._replace(bias=whole)
        whole = None if added is None else added.long()
        name, size = self.source.rescaling(f"{self.name}_scale_{len(self.stages)}", made, whole)
        self.flash += size
        if repeat > 1 and made.multipliers.numel() > 1:
            made = made._replace(
                multipliers=made.multipliers.repeat_interleave(repeat),
                shifts=made.shifts if made.shifts.numel() == 1 else made.shifts.repeat_interleave(repeat),
            )
        stage = Stage(matrix, made)
        real = unit.repeat_interleave(repeat) if unit.numel() > 1 else unit
        if matrix is None or self.map is None:
            before = self.map if matrix is None else matrix
            self.map = torch.eye(self.v.shape[1], dtype=torch.float64) if before is None else before
        else:
            self.map = matrix @ self.map
        self.map = real.unsqueeze(-1) * self.map
        self.v, self.scale, self.largest = stage(self.v), out.scale, float(max(-out.low, out.high))
        self.stages.append(stage)
        return name

    # C.

    def kernel(self, name: str) -> str:
        """A shared kernel that writes the output; its function's name."""
        return self.source.use_for(self.target.format.bits, name)

    def function(self, name: str, text: str, *needs: str) -> str:
        """A function of the class's own that writes y, of type OUT; its name."""
        bits = self.target.format.bits
        self.define(f"{name}_{bits}", _for_bits(text, name, bits), *needs)
        return f"{name}_{bits}"


def chain(stages: list[Stage]) -> Callable[[Tensor], Tensor]:
    """What the C computes, from integers less their zero."""

    def run(v: Tensor) -> Tensor:
        for stage in stages:
            v = stage(v)
        return v

    return run
