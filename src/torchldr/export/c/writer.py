"""What a class's rule writes its product with: constants, scratch memory, shared kernels, calls.

A class brings its C as a rule of the operation "c", beside its other rules (or registered anywhere before the
export):

    @rule("c", MyClass)
    def _(M, c):
        G, scale = c.weights("G")
        c.define("my_product", TEXT)
        c.call(f"my_product({G}, {scale}, {M.out_features}, x, y, work);")
        c.multiplications, c.scratch = ..., ...
        return "in a few words, how"

Inside the call `x` is the input (const float *), `y` the output (float *) and `work` the scratch memory. The
matrix M has its weights rounded as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ...core.matrix import StructuredMatrix
from ...core.storage import Rounded
from .kernels import KERNELS, Kernel, ordered

_CTYPES = {"int8": "weight", "int16": "coefficient", "float32": "float", "uint16": "uint16_t"}
_CTYPES |= {"uint8": "unsigned char", "uint32": "uint32_t"}
_BYTES = {"int8": 1, "int16": 2, "float32": 4, "uint8": 1, "uint16": 2, "uint32": 4}
FFT_FACTORS = (4, 2, 3, 5, 7)


class Source:
    """The parts of model.c that layers share: kernels, functions of classes, tables of sines."""

    types: ClassVar[Mapping[str, str]] = _CTYPES

    def __init__(self, weights: str) -> None:
        self.weights = weights
        self.known: dict[str, Kernel] = KERNELS
        self.kernels: set[str] = set()
        self.functions: dict[str, str] = {}
        self.constants: list[str] = []
        self.products: list[str] = []
        self._transforms: dict[int, str] = {}
        self._count = 0

    def use(self, *kernels: str) -> None:
        for name in kernels:
            self.known[name]
            self.kernels.add(name)

    def constant(self, name: str, values: Any, kind: str = "float32") -> str:
        """A const array; its name."""
        ctype = self.types[kind]
        array = np.asarray(values).ravel()
        if array.dtype.kind == "f":
            if not np.isfinite(array).all():
                raise ValueError(f"to_c: {name} has entries that are not finite.")
            texts = [f"{v!s}f" for v in array.astype(np.float32)]
        else:
            texts = [str(int(v)) for v in array]
        self.constants.append(f"static const {ctype} {name}[] = {{\n{lines(texts or ['0'])}\n}};\n")
        return name

    def object(self, kind: str, name: str, fields: str) -> str:
        """A const struct; its name."""
        self.constants.append(f"static const {kind} {name} = {fields};\n")
        return name

    def bias(self, name: str, values: Tensor) -> str:
        """What `add_bias` adds; its name."""
        self.use("bias")
        return self.constant(name, values.detach().float().numpy())

    def new_name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def transform(self, length: int) -> tuple[str, int]:
        """A transform of at least this length whose factors are 2, 3, 5 and 7; its name and length."""
        n = smooth_length(length)
        if n not in self._transforms:
            name = f"transform_{n}"
            factors = fft_factors(n)
            self.use("fft")
            sines = np.sin(np.arange(n + 1) * (math.pi / (2 * n)))
            self.constant(f"sines_{n}", sines)
            self.constant(f"factors_{n}", np.array(factors, dtype=np.uint8), "uint8")
            self._transforms[n] = self.object(
                "transform", name, f"{{{n}, {len(factors)}, factors_{n}, sines_{n}}}"
            )
        return self._transforms[n], n

    def table_bytes(self) -> int:
        """Of the tables that transforms share."""
        return sum(4 * (n + 1) + len(fft_factors(n)) for n in self._transforms)

    def text(self) -> str:
        kernels = "".join(self.known[name].text for name in ordered(self.kernels, self.known))
        return "".join((kernels, *self.functions.values(), "\n", *self.constants, *self.products))


def smooth_length(length: int) -> int:
    n = max(1, length)
    while math.prod(fft_factors(n)) != n:
        n += 1
    return n


def fft_factors(n: int) -> list[int]:
    """4s, a 2, 3s, 5s and 7s whose product is n, as far as it goes."""
    factors = []
    for factor in FFT_FACTORS:
        while n % factor == 0:
            factors.append(factor)
            n //= factor
    return factors


def fft_cost(length: int) -> float:
    """Multiplications of a transform with its twist, about."""
    return length * (4 + sum(4 + (3 if p <= 4 else (p - 1) ** 2 / p) for p in fft_factors(length)))


class Writer:
    """Writes the product of one matrix.

    Attributes:
        scratch: floats of working memory.
        multiplications: about how many it takes, for the report.
        flash: bytes of constants so far.
    """

    def __init__(self, source: Source, name: str, M: StructuredMatrix, stored: Mapping[str, Rounded]) -> None:
        self.source, self.name, self.M, self.stored = source, name, M, stored
        self.scratch, self.multiplications, self.flash = 0, 0.0, 0
        self.calls: list[str] = []

    def constant(self, name: str, values: Any, kind: str = "float32") -> str:
        array = np.asarray(values)
        self.flash += _BYTES[kind] * array.size
        return self.source.constant(f"{self.name}_{name}", array, kind)

    def weights(self, name: str) -> tuple[str, str]:
        """A tensor stored as weights: the names of its numbers and of its scales (0 for floats)."""
        made = self.stored.get(name)
        if made is None:
            return self.floats(name), "0"
        data = self.constant(name, made.integers.cpu().numpy(), "int8")
        return data, self.constant(f"{name}_scale", made.scale.detach().cpu().float().numpy())

    def vector(self, name: str) -> tuple[str, float]:
        """A tensor with one scale: the name of its numbers, and the scale."""
        made = self.stored.get(name)
        if made is None:
            return self.floats(name), 1.0
        self.flash += 4
        return self.constant(name, made.integers.cpu().numpy(), "int8"), made.scale.item()

    def coefficients(self, name: str, by: float = 1.0) -> str:
        """An operator's entries times a number as an initialiser of `coefficients`."""
        self.use("coefficients")
        made = self.stored.get(name)
        if made is None:
            return f"{{{self.floats(name)}, {literal(by)}, 0.0f}}"
        data = self.constant(name, made.integers.cpu().numpy(), "int16")
        self.flash += 4
        return f"{{{data}, {literal(by * made.scale)}, {literal(by * made.offset)}}}"

    def floats(self, name: str) -> str:
        """A tensor that is stored in float32, whatever the weights are."""
        return self.constant(name, self.M.tensors[name].detach().cpu().float().numpy())

    def transform(self, length: int) -> tuple[str, int]:
        """A Fourier transform of at least this length: the name of its description, and its length."""
        name, n = self.source.transform(length)
        return f"&{name}", n

    def fft_cost(self, length: int) -> float:
        """Multiplications of a transform of at least this length."""
        return fft_cost(smooth_length(length))

    def is_smooth(self, length: int) -> bool:
        """Whether there is a transform of just this length."""
        return smooth_length(length) == length

    def object(self, kind: str, name: str, fields: str) -> None:
        """A const struct of a shared kernel, `{self.name}_{name}`."""
        self.source.object(kind, f"{self.name}_{name}", fields)

    @staticmethod
    def literal(value: Any) -> str:
        """A number as a C literal of type float."""
        return literal(value)

    def define(self, name: str, text: str, *needs: str) -> None:
        """A function of the class's own, written once, with the shared kernels that it calls."""
        self.use(*needs)
        self.source.functions.setdefault(name, text)

    def use(self, *kernels: str) -> None:
        self.source.use(*kernels)

    def call(self, line: str) -> None:
        self.calls.append(line)


def literal(value: Any) -> str:
    """A number as a C literal of type float."""
    number = value.item() if isinstance(value, Tensor) else value
    return f"{np.float32(number)!s}f"


def lines(texts: Iterable[str], width: int = 110) -> str:
    """Numbers with commas between them, as many to a line as fit."""
    made = [""]
    for text in texts:
        if len(made[-1]) + len(text) + 2 > width:
            made.append("")
        made[-1] += f"{' ' if made[-1] else ''}{text},"
    return "\n".join(made).rstrip(",")
