"""The input matrices of many LSTMs at once: parameters of a class to dense matrices, differentiably.

    tensors    name -> (R, 4, ...): replicas, gates
    result     (R, 4, n, n)

At n = 128 the matrices are small, and the same for all 35 steps of a batch: making them is cheaper than
35 structured products, whatever the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchldr.compress import OPERATOR_RATE, even_factors
from torchldr.matrices import get_structure

from ..messages import unknown
from ..models.images import is_operator

Tensors = Mapping[str, Tensor]

GATES = ("o", "i", "f", "g")  # the order in which gates lie in memory, see `recurrence`
STRUCTURES = ("dense", "low_rank", "toeplitz_like", "ldr_sd")


def build(structure: str, tensors: Tensors) -> Tensor:
    """The dense matrices: parameters (R, 4, ...) of a class to (R, 4, n, n), differentiably."""
    kind = get_structure(structure)
    size = tensors[kind.scaled[0]].shape[-1]
    return kind.unchecked(size, size, tensors, kind.default_options()).materialize()


def initial_tensors(
    structure: str,
    size: int,
    ranks: Sequence[int | None],
    generators: Sequence[torch.Generator],
    init: str = "linear",
    init_std: float | None = None,
    gain: float = 1.0,
) -> dict[str, Tensor]:
    """The parameters of all replicas' input matrices as the library starts them, float32 on the CPU.

    Generators of a smaller rank than the largest are filled up with zeros: where g_i = h_i = 0 the gradients
    of both are 0, so they stay what they are. Ranks and generators are one a replica; `init`, `init_std` and
    `gain` as in `Run`.
    """
    if structure not in STRUCTURES:
        raise ValueError(f"language model: {unknown('structure', structure, STRUCTURES)}")
    kind = get_structure(structure)
    start: Any = kind.init_paper_ if init == "paper" else kind.init_
    largest = max(rank or 1 for rank in ranks)
    stacked: dict[str, list[Tensor]] = {}
    for rank, generator in zip(ranks, generators, strict=True):
        gates: dict[str, list[Tensor]] = {}
        for _ in GATES:
            shapes = kind.parameter_shapes(size, size, rank or 1)
            tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
            start(tensors, size, size, generator, **kind.default_options())
            if init == "linear":
                # |M|_F as in nn.Linear, as `initialise_` of the class would make it.
                norm = gain * build(structure, {k: t[None, None] for k, t in tensors.items()}).norm()
                for name in kind.scaled:
                    tensors[name].mul_((size**0.5 / 3**0.5 / norm) ** (1 / len(kind.scaled)))
            for name, tensor in tensors.items():
                if init_std is not None and name in kind.scaled:
                    tensor.normal_(0, init_std, generator=generator)
                if name in ("G", "H"):
                    tensor = torch.cat((tensor, tensor.new_zeros(largest - len(tensor), size)))
                gates.setdefault(name, []).append(tensor)
        for name, parts in gates.items():
            stacked.setdefault(name, []).append(torch.stack(parts))
    return {name: torch.stack(parts) for name, parts in stacked.items()}


def even_rates(structure: str, tensors: Tensors, ranks: Sequence[int | None]) -> dict[str, Tensor]:
    """What to multiply the rates of these parameters by (`Run.even`): name -> (R,)."""
    kind, found = get_structure(structure), []
    for place, rank in enumerate(ranks):
        own = {name: t[place, 0] for name, t in tensors.items()}
        own |= {name: own[name][: rank or 1] for name in ("G", "H") if name in own}
        size = own[kind.scaled[0]].shape[-1]
        factors = even_factors(kind.unchecked(size, size, own, kind.default_options()), "sgd")
        tenth = {name for name in own if is_operator(name)}
        found.append({k: f * (OPERATOR_RATE if k in tenth else 1) for k, f in factors.items()})
    return {name: torch.tensor([one[name] for one in found]) for name in tensors}


def count_parameters(structure: str, size: int, rank: int | None, *, fixed: bool = False) -> int:
    """Parameters of the four matrices, as the paper counts them; operators that are fixed do not count."""
    shapes = get_structure(structure).parameter_shapes(size, size, rank or 1)
    learned = (shape for name, shape in shapes.items() if not (fixed and is_operator(name)))
    return len(GATES) * sum(torch.Size(shape).numel() for shape in learned)
