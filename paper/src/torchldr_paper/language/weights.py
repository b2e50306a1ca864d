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
from ..protocol import Run
from ..trainer.batches import generator

Tensors = Mapping[str, Tensor]

GATES = ("o", "i", "f", "g")  # the order in which gates lie in memory, see `recurrence`
STRUCTURES = ("dense", "low_rank", "toeplitz_like", "ldr_sd")


def build(structure: str, tensors: Tensors) -> Tensor:
    """The dense matrices: parameters (R, 4, ...) of a class to (R, 4, n, n), differentiably."""
    kind = get_structure(structure)
    size = tensors[kind.scaled[0]].shape[-1]
    return kind.unchecked(size, size, tensors, kind.default_options()).materialize()


def initial_tensors(runs: Sequence[Run], size: int) -> dict[str, Tensor]:
    """The parameters of all replicas' input matrices as the library starts them, float32 on the CPU.

    Generators of a smaller rank than the largest are filled up with zeros: where g_i = h_i = 0 the gradients
    of both are 0, so they stay what they are.
    """
    structure = runs[0].structure
    if structure not in STRUCTURES:
        raise ValueError(f"language model: {unknown('structure', structure, STRUCTURES)}")
    largest = max(run.rank or 1 for run in runs)
    drawn: list[dict[str, Tensor]] = []
    for run in runs:
        source = generator(run.seed, "structured")
        drawn += [_drawn(run, size, largest, source) for _ in GATES]
    stacked = {name: torch.stack([one[name] for one in drawn]) for name in drawn[0]}
    return {name: tensor.unflatten(0, (len(runs), len(GATES))) for name, tensor in stacked.items()}


def _drawn(run: Run, size: int, largest: int, source: torch.Generator) -> dict[str, Tensor]:
    """The parameters of one matrix."""
    kind = get_structure(run.structure)
    shapes = kind.parameter_shapes(size, size, run.rank or 1)
    tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    start: Any = kind.init_paper_ if run.init == "paper" else kind.init_
    start(tensors, size, size, source, **kind.default_options())
    if run.init == "linear":
        # |M|_F as in nn.Linear, as `initialise_` of the class would make it.
        alone = {name: tensor[None, None] for name, tensor in tensors.items()}
        norm = (run.gain or 1.0) * build(run.structure, alone).norm()
        for name in kind.scaled:
            tensors[name].mul_((size**0.5 / 3**0.5 / norm) ** (1 / len(kind.scaled)))
    for name, tensor in tensors.items():
        if run.init_std is not None and name in kind.scaled:
            tensor.normal_(0, run.init_std, generator=source)
        if name in ("G", "H"):
            tensors[name] = torch.cat((tensor, tensor.new_zeros(largest - len(tensor), size)))
    return tensors


def even_rates(runs: Sequence[Run], tensors: Tensors) -> dict[str, Tensor]:
    """What to multiply the rates of these parameters by (`Run.even`): name -> (R,)."""
    kind, found = get_structure(runs[0].structure), []
    for place, run in enumerate(runs):
        own = {name: t[place, 0] for name, t in tensors.items()}
        own |= {name: own[name][: run.rank or 1] for name in ("G", "H") if name in own}
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
