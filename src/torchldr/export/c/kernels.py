"""C that several classes and layers share, from kernels.c: each piece with its name and what it stands on.

All of it is C99, computes in float, and takes its memory from the caller. `weight` and `coefficient` are the
types that weights and operators are stored in; what is stored as integers is multiplied by its scale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple


class Kernel(NamedTuple):
    text: str
    needs: tuple[str, ...] = ()


PRELUDES = {
    "int8": """typedef int8_t weight;
typedef int16_t coefficient;
#define SCALE(scale, i) ((scale)[i])
""",
    "float32": """typedef float weight;
typedef float coefficient;
#define SCALE(scale, i) ((void)(scale), (void)(i), 1.0f)
""",
}


def read_pieces(package: str) -> dict[str, Kernel]:
    """The pieces of the kernels.c of a package, by name."""
    text = (resources.files(package) / "kernels.c").read_text("utf-8")
    _, *parts = re.split(r"^//// (\w+)(?:: (.+))?\n", text, flags=re.MULTILINE)
    found = {}
    for name, needs, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        body = re.sub(r"^////.*\n", "", body, flags=re.MULTILINE)
        found[name] = Kernel(f"\n{body.strip()}\n", tuple((needs or "").split()))
    return found


def _each(name: str, value: str, *needs: str) -> Kernel:
    """A function that computes every y[i] from x[i]."""
    head = f"static void {name}(const float *x, float *y, int n)"
    return Kernel(f"\n{head}\n{{\n    for (int i = 0; i < n; i++)\n        y[i] = {value};\n}}\n", needs)


assert __package__ is not None
KERNELS = read_pieces(__package__) | {
    "copy": _each("copy", "x[i]"),
    "relu": _each("relu", "x[i] <= 0.0f ? 0.0f : x[i]"),
    "sigmoid": _each("sigmoid", "logistic(x[i])", "logistic"),
    "tanh": _each("hyperbolic", "tanhf(x[i])"),
}

# Of dense weights that are not rounded, whatever the others are.
for _name, _needs in (("dot", ()), ("dense", ("dot_float",)), ("conv2d", ("window",))):
    _text = KERNELS[_name].text.replace("const weight *", "const float *").replace("const float *scale, ", "")
    _text = re.sub(r"SCALE\(scale, \w\) \* ", "", _text)
    _text = re.sub(r"\b(dot|dense|conv2d)\(", r"\1_float(", _text)
    KERNELS[f"{_name}_float"] = Kernel(_text, _needs)


def ordered(names: set[str], kernels: Mapping[str, Kernel] = KERNELS) -> list[str]:
    """Kernels with what they need, each behind that."""
    found: list[str] = []

    def visit(name: str) -> None:
        for needed in kernels[name].needs:
            visit(needed)
        if name not in found:
            found.append(name)

    for name in kernels:
        if name in names:
            visit(name)
    return found
