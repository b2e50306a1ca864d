"""Write the table of docs/algebra.md: each class's operators, and which operations stay in the class.

python scripts/algebra_table.py          rewrite the page
python scripts/algebra_table.py --check  only say whether it is up to date
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

import torchldr
from torchldr import StructuredMatrix
from torchldr.matrices import LinearMap

PAGE = Path(__file__).resolve().parents[1] / "docs" / "algebra.md"
BEGIN, END = "<!-- classes -->\n", "<!-- end of classes -->\n"
SIZE = 64  # large enough that no rank is refused for being a large part of it
Operation = Callable[[StructuredMatrix, StructuredMatrix], LinearMap]

OPERATIONS: dict[str, Operation] = {
    "T": lambda M, N: M.T,
    "c": lambda M, N: 3.0 * M,
    "D": lambda M, N: torchldr.operators.Diagonal(torch.linspace(1, 2, SIZE, dtype=torch.float64)) @ M,
    "+": lambda M, N: M + with_operators_of(M, N),
    "@": lambda M, N: M @ N,
    "-1": lambda M, N: M.inverse(),
}


def with_operators_of(M: StructuredMatrix, N: StructuredMatrix) -> StructuredMatrix:
    """N with the operators of M: only its generators, or the class's only tensor, are its own."""
    own = {name: t for name, t in N.tensors.items() if name in ("G", "H", *N.scaled)}
    return N.unchecked(N.out_features, N.in_features, {**M.tensors, **own}, N.options)


def member(cls: type[StructuredMatrix], rank: int, seed: int) -> StructuredMatrix:
    generator = torch.Generator().manual_seed(seed)
    ranks = (rank,) if cls.ranked else ()
    return cls.random(SIZE, SIZE, *ranks, dtype=torch.float64, generator=generator)


def formula(cls: type[StructuredMatrix]) -> str:
    """The rank bound of a member in terms of its rank r, found by trying; a dash where none is claimed."""
    bounds = [member(cls, r, 1).rank_bound for r in (1, 2, 3)]
    one, two, three = bounds
    if one is None or two is None or three is None:
        return "-"
    slope, rest = two - one, 2 * one - two
    if three != 3 * slope + rest:
        raise ValueError(f"{cls.name}: the rank bounds {bounds} are not linear in r.")
    terms = [f"{'' if slope == 1 else slope}r"] if slope else []
    return " + ".join([*terms, *([str(rest)] if rest or not terms else [])])


def closed(cls: type[StructuredMatrix]) -> str:
    """The operations on two members whose result is of the class."""
    M, N = member(cls, 2, 1), member(cls, 1, 2)
    return " ".join(sign for sign, operation in OPERATIONS.items() if type(operation(M, N)) is cls)


def classes_table() -> str:
    """Each class's operators at 6 x 6, its rank, and what stays in it."""
    lines = ["| class | form | A | B | rank | closed under |", "|---|---|---|---|---|---|"]
    for name, cls in torchldr.structures().items():
        known = cls.random(6, 6, *((1,) if cls.ranked else ()), dtype=torch.float64).displacement_structure()
        shown = "- | - | -" if known is None else f"{known.form} | `{known.A!r}` | `{known.B!r}`"
        lines.append(f"| `{name}` | {shown} | {formula(cls)} | {closed(cls)} |")
    return "\n".join(lines)


def page() -> str:
    """The page with its table made anew."""
    text = PAGE.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{PAGE.name}: the lines around the table are missing.")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{classes_table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    made = page()
    if "--check" in sys.argv:
        sys.exit(0 if made == PAGE.read_text() else "docs/algebra.md is not up to date.")
    PAGE.write_text(made)
