"""What a weight becomes at a number of times fewer parameters: a class, or pruning."""

from __future__ import annotations

from dataclasses import dataclass

from torchldr.compress import Structure
from torchldr.matrices import get_structure, structures

FACTORS = (2, 5, 10, 20)
PRUNED = "pruned"
# Their size is given by that of the matrix: one row each, at the factor that it comes to.
FIXED = ("circulant", "fastfood", "acdc")
LATER = ("monarch", "kronecker", "blast")  # classes that came after these tables were run


@dataclass(frozen=True)
class Method:
    """A class, or pruning, at a factor; None is the size that a class without a choice has.

    `low_rank` starts from the truncated SVD of the weight: it is that baseline.
    """

    name: str
    factor: int | None

    @property
    def key(self) -> str:
        return f"{self.name}/{'fixed' if self.factor is None else self.factor}"


def methods(factors: tuple[int, ...] = FACTORS) -> list[Method]:
    """All methods of the tables, by class; the dense model itself, trained further, is the first.

    >>> [method.key for method in methods((10,))][:4]
    ['dense/1', 'low_rank/10', 'pruned/10', 'acdc/fixed']
    """
    found = [Method("dense", 1)]
    found += [Method(name, factor) for name in ("low_rank", PRUNED) for factor in factors]
    for name in structures():
        if name in FIXED:
            found.append(Method(name, None))
        elif name not in ("dense", "low_rank", *LATER):
            found += [Method(name, factor) for factor in factors]
    return found


def structure_for(method: Method, m: int, n: int) -> Structure | None:
    """The largest member family of a class within m n / factor parameters, or None where none fits.

    Pruning has no structure: `kept` says how many weights it keeps.

    >>> structure_for(Method("low_rank", 10), 1024, 1024)
    Structure('low_rank', rank=51)
    >>> structure_for(Method("block_circulant", 10), 100, 100)
    Structure('block_circulant', block_size=10)
    """
    if method.name in ("dense", *FIXED):
        return Structure(method.name)
    assert method.factor is not None
    budget = m * n // method.factor
    if method.name == "block_circulant":
        for size in range(method.factor, max(m, n) + 1):
            made = Structure(method.name, block_size=size)
            if made.parameters(m, n) <= budget:
                return made
        return None
    if not get_structure(method.name).ranked:
        made = Structure(method.name)
        return made if made.parameters(m, n) <= budget else None
    first = Structure(method.name, rank=1).parameters(m, n)
    rank = 1 + (budget - first) // (m + n)
    return Structure(method.name, rank=min(rank, m, n)) if budget >= first else None


def kept(method: Method, m: int, n: int) -> int:
    """How many weights pruning keeps."""
    assert method.factor is not None
    return m * n // method.factor


def parameters(method: Method, m: int, n: int) -> int:
    """How many parameters a weight has with a method."""
    if method.name == PRUNED:
        return kept(method, m, n)
    structure = structure_for(method, m, n)
    if structure is None:
        raise ValueError(f"parameters: {method.key} has no member of {m} x {n}.")
    return structure.parameters(m, n)


def reaches(method: Method, shapes: list[tuple[int, int]]) -> bool:
    """Whether every weight of these shapes can be brought to the factor."""
    return method.name == PRUNED or all(structure_for(method, *shape) is not None for shape in shapes)
