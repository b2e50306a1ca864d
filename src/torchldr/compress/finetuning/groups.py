"""Parameter groups that suit structured layers: generators, displacement operators, and all else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from ...matrices import StructuredMatrix
from ...nn import MatrixStack, StructuredLinear

OPERATOR_RATE = 0.1
"""The default learning rate of displacement operators, as a share of `lr`."""
STEPS = ("adam", "sgd")
_PROBE, _VECTORS, _DRAWS, _MOST = 1e-3, 4, 8, 100.0
_LARGE = 1 << 20  # a size that has room for any option; the names do not depend on it


def operator_names(structure: type[StructuredMatrix], **options: Any) -> frozenset[str]:
    """The learned parameters of a class in which its matrix is not linear: operators and nodes.

    Their entries enter products of up to min(m, n) factors. So a step that suits a generator can make the
    matrix explode, and weight decay would remove its long diagonals.

    >>> from torchldr.matrices import get_structure
    >>> sorted(operator_names(get_structure("ldr_sd")))
    ['corner_A', 'corner_C', 'subdiagonal_A', 'subdiagonal_C']
    >>> operator_names(get_structure("cauchy_like")), sorted(
    ...     operator_names(get_structure("cauchy_like"), learn_nodes=True)
    ... )
    (frozenset(), ['s', 't'])
    """
    if not structure.ranked:
        return frozenset()  # diagonals and columns: the matrix is linear in each
    shapes = structure.parameter_shapes(_LARGE, _LARGE, 1, **structure.check_options(options))
    return frozenset(shapes) - frozenset(structure.scaled)


@torch.no_grad()
def even_factors(
    M: StructuredMatrix, steps: str = "adam", names: Iterable[str] | None = None
) -> dict[str, float]:
    """The factor of the learning rate for each learned tensor of a matrix.

    One rate suits dense and structured matrices if a step moves both equally far. A tensor t moves the matrix
    by |J|, the Frobenius norm of the matrix's derivative with respect to t, measured by small steps with
    random signs on random vectors. A dense m x n matrix has |J|^2 = mn.

        "adam"    sqrt(mn) / |J|   every step is as large as the rate; in a Toeplitz-like matrix many such
                                   steps add up in each entry, in a low-rank one few
        "sgd"     size(t) / |J|^2  t moves the matrix by J J^T g for its gradient g; on average this equals
                                   the step g of a dense matrix, within the directions of t

    Args:
        M: a matrix without leading axes.
        steps: the optimizer's kind of steps.
        names: of the tensors; by default all learned ones.

    Examples:
        >>> M = StructuredLinear(64, 64, structure="circulant").matrix()
        >>> 0.7 < even_factors(M, "sgd")["column"] * 64 < 1.4  # an entry of the column moves 64 of the matrix
        True
    """
    M = M.double()
    m, n = M.shape
    source = torch.Generator().manual_seed(0)
    x = torch.randn(_DRAWS, _VECTORS, n, dtype=M.dtype, generator=source).to(M.device)
    y = M.matmul(x)
    factors = {}
    learned = M.parameter_shapes(m, n, M.rank or 1, **M.options)
    for name in learned if names is None else names:
        t = M.tensors[name]
        step = _PROBE * (t.square().mean().sqrt() or 1.0)
        squares = 0.0
        for vectors, before in zip(x, y, strict=True):
            signs = torch.randint(0, 2, t.shape, generator=source).to(t).mul(2).sub(1)
            near = M.with_tensors({**M.tensors, name: t + step * signs})
            moved = (near.matmul(vectors) - before) / step
            squares += float(moved.square().mean()) / n  # of an entry of the matrix
        adam = (_DRAWS / squares) ** 0.5 if squares > 0 else math.inf
        if not math.isfinite(adam):
            factors[name] = 1.0
        elif steps == "adam":
            factors[name] = min(max(adam, 1 / _MOST), _MOST)
        else:
            factors[name] = adam**2 * t.numel() / (m * n)
    return factors


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """A module's parameters; for a parametrized one those it is computed from."""
    yield from module._parameters.items()
    if parametrize.is_parametrized(module):
        parametrized: Any = module.parametrizations
        for name, kept in parametrized.items():
            yield name, getattr(kept, "original", None)


def parameter_groups(
    model: nn.Module,
    lr: float,
    *,
    operator_lr: float | None = None,
    weight_decay: float = 0.0,
    even: bool | str = True,
) -> list[dict[str, Any]]:
    """Parameter groups of a model, for any optimizer of torch.optim.

    Args:
        model: any module, with structured layers or without.
        lr: a learning rate that suits dense layers.
        operator_lr: of the displacement operators (subdiagonals, diagonals, corners, learned nodes); by
            default a tenth of `lr`.
        weight_decay: of weights: dense ones, and the tensors that carry the scale of a structured matrix.
            Operators, biases and the scales of norms do not decay.
        even: scale the rate of each structured tensor so that a step moves its matrix as far as `lr` moves a
            dense one (`even_factors`, measured once): "adam" or True for Adam and other optimizers with steps
            of a fixed size, "sgd" for gradient descent. False uses `lr` for all.

    Returns:
        Groups "weights", "others" and "operators"; with `even` also one for each structured tensor (for Adam
        except operators), under its name in the model. Empty groups are left out. Every parameter that
        requires a gradient is in exactly one group, tied ones once.

    Examples:
        >>> model = nn.Sequential(StructuredLinear(64, 64, structure="ldr_sd", rank=4), nn.Linear(64, 10))
        >>> groups = parameter_groups(model, 1e-3, weight_decay=0.01, even=False)
        >>> [(group["name"], group["lr"], group["weight_decay"]) for group in groups]
        [('weights', 0.001, 0.01), ('others', 0.001, 0.0), ('operators', 0.0001, 0.0)]
        >>> [group["name"] for group in parameter_groups(model, 1e-3)]
        ['weights', 'others', 'operators', '0.G', '0.H']
    """
    for key, value in (("lr", lr), ("operator_lr", operator_lr), ("weight_decay", weight_decay)):
        if value is not None and not (isinstance(value, float | int) and value >= 0):
            raise ValueError(f"parameter_groups: {key} must be a number of at least 0, got {value!r}.")
    if even not in (True, False, *STEPS):
        raise ValueError(f"parameter_groups: even must be True, False or one of {STEPS}, got {even!r}.")
    groups: dict[str, dict[str, Any]] = {}
    for name in ("weights", "others", "operators"):
        rate = (OPERATOR_RATE * lr if operator_lr is None else operator_lr) if name == "operators" else lr
        decay = weight_decay if name == "weights" else 0.0
        groups[name] = {"name": name, "params": [], "lr": rate, "weight_decay": decay}
    seen: set[int] = set()
    for path, module in model.named_modules():
        structured = isinstance(module, StructuredLinear | MatrixStack)
        operators = operator_names(module.structure, **module.options) if structured else frozenset()
        scaled = module.structure.scaled if structured else ()
        factors = {}
        if structured and even:
            shared_rate = operator_lr is not None or even != "sgd"
            names = [name for name in module._learned if not (shared_rate and name in operators)]
            M = module.matrix()
            one = M[(0,) * len(module.leading)] if module.leading else M
            factors = even_factors(one, "adam" if even is True else str(even), names)
        for name, p in _own_parameters(module):
            if p is None or not p.requires_grad or id(p) in seen:
                continue
            seen.add(id(p))
            decays = name in scaled if structured else p.ndim > 1
            kind = "operators" if name in operators else "weights" if decays else "others"
            if name in factors:
                own = f"{path}.{name}".lstrip(".")
                shared = groups[kind]
                groups[own] = {**shared, "name": own, "lr": factors[name] * shared["lr"], "params": [p]}
            else:
                groups[kind]["params"].append(p)
    return [group for group in groups.values() if group["params"]]
