"""Write the tables of docs/algebra.md: what each operation gives for each class.

python scripts/algebra_table.py          rewrite the page
python scripts/algebra_table.py --check  only say whether it is up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import torchldr
from torchldr import StructuredMatrix
from torchldr.algebra.lazy import Composition, Inverse, Scaled, Sum, Transposed
from torchldr.matrices import LinearMap

PAGE = Path(__file__).resolve().parents[1] / "docs" / "algebra.md"
SIZE = 64  # large enough that no rank is refused for being a large part of it
Operation = Callable[[StructuredMatrix, StructuredMatrix], LinearMap]

OPERATIONS: dict[str, Operation] = {
    "M.T": lambda M, N: M.T,
    "c * M": lambda M, N: 3.0 * M,
    "D @ M": lambda M, N: torchldr.operators.Diagonal(torch.linspace(1, 2, SIZE, dtype=torch.float64)) @ M,
    "M + N, same operators": lambda M, N: M + with_operators_of(M, N),
    "M + N": lambda M, N: M + N,
    "M @ N": lambda M, N: M @ N,
    "M @ N.T": lambda M, N: M @ N.T,
    "M.inverse()": lambda M, N: M.inverse(),
    "block([[M, N], [N, M]])": lambda M, N: torchldr.algebra.block([[M, N], [N, M]]),
}


def with_operators_of(M: StructuredMatrix, N: StructuredMatrix) -> StructuredMatrix:
    """N with the operators of M: whatever is not a generator or the class's only tensor."""
    own = {name: t for name, t in N.tensors.items() if name in ("G", "H", *N.scaled)}
    return N.unchecked(N.out_features, N.in_features, {**M.tensors, **own}, N.options)


def member(cls: type[StructuredMatrix], rank: int, seed: int) -> StructuredMatrix:
    generator = torch.Generator().manual_seed(seed)
    ranks = (rank,) if cls.ranked else ()
    return cls.random(SIZE, SIZE, *ranks, dtype=torch.float64, generator=generator)


def result(cls: type[StructuredMatrix], operation: Operation, r: int, s: int) -> LinearMap:
    return operation(member(cls, r, 1), member(cls, s, 2))


def formula(cls: type[StructuredMatrix], operation: Operation) -> str:
    """The rank bound in terms of r and s, found by trying; a dash where none is claimed."""
    tried = ((1, 1), (2, 1), (1, 2), (2, 3))
    bounds = [result(cls, operation, r, s).rank_bound for r, s in tried]
    if None in bounds:
        return "-"
    if bounds == [min(pair) for pair in tried]:
        return "min(r, s)"
    first, more_r, more_s, other = (bound for bound in bounds if bound is not None)
    by = {"r": more_r - first, "s": more_s - first}
    rest = first - sum(by.values())
    if other != 2 * by["r"] + 3 * by["s"] + rest:
        raise ValueError(f"{cls.name}: the rank bounds {bounds} do not follow a sum of r and s.")
    terms = [f"{'' if count == 1 else count}{letter}" for letter, count in by.items() if count]
    return " + ".join([*terms, *([str(rest)] if rest or not terms else [])])


def cost(M: LinearMap) -> str:
    """What a product with a vector costs, in products with the parts."""
    if isinstance(M, Transposed):
        return "M"
    if isinstance(M, Inverse):
        return "a solve"
    if isinstance(M, Scaled):
        return cost(M.of)
    if isinstance(M, Sum | Composition):
        return f"{cost(M.left)}, {cost(M.right)}"
    if isinstance(M, torchldr.operators.Operator):
        return "n"
    if isinstance(M, StructuredMatrix):
        return "M"
    return "each block"


def cell(cls: type[StructuredMatrix], operation: Operation) -> str:
    M, rank = result(cls, operation, 2, 1), formula(cls, operation)
    if isinstance(M, StructuredMatrix):
        return f"`{M.name}` {rank}"
    parts = cost(M).replace("M, M", "M, N")
    return f"lazy {rank} ({parts})"


def operations_table() -> str:
    """Operation by class: the result, its rank bound and what a product with it costs."""
    names = list(OPERATIONS)
    lines = ["| class | " + " | ".join(f"`{name}`" for name in names) + " |", "|---" * (len(names) + 1) + "|"]
    for name, cls in torchldr.structures().items():
        cells = [cell(cls, OPERATIONS[operation]) for operation in names]
        lines.append(f"| [`{name}`](classes/{name}.md) | " + " | ".join(cells) + " |")
    return "\n".join(lines).replace("`M + N, same operators`", "`M + N`, same operators")


def classes_table() -> str:
    """Each class's operators at 6 x 6, rank and cost."""
    lines = ["| class | form | A | B | rank | a product with a vector |", "|---|---|---|---|---|---|"]
    for name, cls in torchldr.structures().items():
        M = cls.random(6, 6, *((1,) if cls.ranked else ()), dtype=torch.float64)
        known = M.displacement_structure()
        price = stated_cost(cls)
        if known is None:
            lines.append(f"| `{name}` | - | - | - | - | {price} |")
            continue
        rank = formula(cls, lambda M, N: M)
        shown = "M - A M B" if known.form == "stein" else "A M - M B"
        lines.append(f"| `{name}` | {shown} | `{known.A!r}` | `{known.B!r}` | {rank} | {price} |")
    return "\n".join(lines)


def stated_cost(cls: type[StructuredMatrix]) -> str:
    """What the class's documentation says under Cost, up to its first condition."""
    for base in cls.__mro__:
        words = " ".join((base.__doc__ or "").split())
        if said := re.search(r"Cost: (.*?)(?:\.( |$)|,| where|;)", words):
            return said.group(1)
    raise ValueError(f"{cls.name}: the docstring states no cost.")


def page() -> str:
    """The page with its tables made anew."""
    text = PAGE.read_text()
    for name, table in (("classes", classes_table()), ("operations", operations_table())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{PAGE.name}: the lines around the table of {name} are missing.")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    made = page()
    if "--check" in sys.argv:
        sys.exit(0 if made == PAGE.read_text() else "docs/algebra.md is not up to date.")
    PAGE.write_text(made)
