"""The inputs of layers on real batches, as second moments: memory does not grow with the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from .sites import Unit

_INPUTS = {"q_proj": 0, "k_proj": 1, "v_proj": 2}
_ARGUMENTS = ("query", "key", "value")


def collect_roots(
    model: nn.Module, units: Sequence[Unit], loader: Iterable[Any], batches: int
) -> dict[str, Tensor]:
    """R (n, n) with R^T R = X^T X for the inputs X of every weight, by the names of the units.

    The model runs in `eval()` and without gradients; modes are put back. A weight whose inputs cannot be
    seen from outside (an attention's out_proj, the inner layers of an LSTM) or that was not called has
    none.
    """
    moments: dict[str, Tensor] = {}
    handles = []
    modes = [(module, module.training) for module in model.modules()]
    for unit in units:
        if unit.kind in ("lstm", "gru"):
            continue
        for site, part in unit.places:
            if part != "out_proj":
                look = _looker(unit.name, part, site.kind, moments)
                handles.append(site.module.register_forward_pre_hook(look, with_kwargs=True))
    try:
        model.eval()
        with torch.no_grad():
            seen = 0
            for batch in islice(loader, batches):
                _call(model, batch)
                seen += 1
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    if not seen:
        raise ValueError("compress_: the loader gave no batch (a generator gives its batches once).")
    for name, gram in moments.items():
        if not gram.isfinite().all():
            raise ValueError(f"compress_: the inputs of {name} on the loader's batches are not all finite.")
    return {name: _root(gram) for name, gram in moments.items() if gram.any()}


def _looker(name: str, part: str, kind: str, moments: dict[str, Tensor]) -> Callable[..., None]:
    place = _INPUTS.get(part, 0)

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[place] if len(args) > place else None
        if x is None:
            x = kwargs.get(_ARGUMENTS[place]) if part else next(iter(kwargs.values()), None)
        if not isinstance(x, Tensor):
            return
        if kind == "conv2d":
            x = x.movedim(-3, -1)
        X = x.detach().reshape(-1, x.shape[-1]).to(torch.float64)
        gram = (X.T @ X).cpu()
        moments[name] = moments[name] + gram if name in moments else gram

    return look


def _call(model: nn.Module, batch: Any) -> None:
    """A mapping is keyword arguments, a list or tuple begins with the input, anything else is the input."""
    if isinstance(batch, Mapping):
        model(**batch)
    else:
        model(batch[0] if isinstance(batch, tuple | list) else batch)


def _root(gram: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp(min=0).sqrt().unsqueeze(1) * vectors.T
