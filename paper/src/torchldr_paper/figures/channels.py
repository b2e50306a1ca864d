"""The matrices that were learned in place of convolutions: Toeplitz-like channels beside those of LDR-SD."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from torchldr.nn import StructuredChannels
from torchldr.pictures import NothingToDrawError, Picture, new_figure, styled

from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..ledger.weights import read_network, weights_path
from .learned import CLASSES, heat_map
from .names import method_title, source_title

PREFIX = "front."
CORNER = 4  # image rows that the enlarged corner shows


@styled
def learned_channels(ledger: Ledger, model: str = "channels") -> Picture:
    """The block matrix of the first layer of both classes, and an enlarged corner of each.

    Args:
        ledger: the runs; weights are looked for beside it.
        model: "channels" or "wide".

    Raises:
        NothingToDrawError: where the weights of a class were not kept, or a file does not hold them.
    """
    chosen = {structure: _choose(ledger, model, structure) for structure in CLASSES}
    figure, axes = new_figure(7.2, 7.6, 2, 2)
    for column, (structure, (record, path)) in zip(axes.T, chosen.items(), strict=True):
        M, width = _weight(record, path)
        heat_map(column[0], M)
        column[0].set_title(f"{method_title(structure)}, r = {record.run.rank}")
        for edge in (M.shape[0] // 3, 2 * M.shape[0] // 3) if model == "channels" else ():
            column[0].axhline(edge - 0.5, color="#555555", linewidth=0.5)
            column[0].axvline(edge - 0.5, color="#555555", linewidth=0.5)
        heat_map(column[1], M[: CORNER * width, : CORNER * width])
        column[1].set_title(f"its first {CORNER * width} rows and columns")
        column[1].set_xlabel(f"test accuracy {record.best.test:.1f} %" if record.best else "")
    sources = ", ".join(dict.fromkeys(source_title(record.source) for record, _ in chosen.values()))
    title = f"Matrices in place of convolution channels, CIFAR-10 ({sources})"
    figure.suptitle(title)
    return Picture(
        f"{model}_cifar10",
        title,
        "The first layer's whole matrix, from three colour channels to three channels (red positive, blue "
        "negative, saturated at the 99th percentile of magnitude), and its top left corner. A convolution "
        "would be constant along diagonals, and zero but for a band every image row.",
        figure,
        datasets=("cifar10",),
        models=(model,),
    )


def _choose(ledger: Ledger, model: str, structure: str) -> tuple[Record, Path]:
    kept = [
        (record, weights_path(ledger, record.run))
        for record in ledger
        if (record.run.model, record.run.method) == (model, structure)
        and weights_path(ledger, record.run).is_file()
    ]
    if not kept:
        raise NothingToDrawError(
            f"no weights of {method_title(structure)} in place of convolutions were kept; run: torchldr "
            f"paper conv --save-weights --only model={model}"
        )
    return max(kept, key=_worth)


def _worth(kept: tuple[Record, Path]) -> tuple[bool, bool, float]:
    """Official data, the full protocol, then the best validation."""
    record, _ = kept
    validation = record.best.validation if record.best is not None else 0.0
    return record.source == "official", not record.run.protocol.is_quick, validation


def _weight(record: Record, path: Path) -> tuple[Tensor, int]:
    """The dense block matrix of a run's first layer, and the width of its images."""
    run = record.run
    try:
        tensors = read_network(path, record)
        stored = {k.removeprefix(PREFIX): v for k, v in tensors.items() if k.startswith(PREFIX)}
        grid = "grid.H" in stored
        H = stored["grid.H" if grid else "wide.H"]
        channels = H.shape[0] if grid else 3
        n = H.shape[-1] if grid else H.shape[-1] // channels
        layer = StructuredChannels(
            channels,
            channels,
            n,
            bias=False,
            structure=run.structure,
            rank=H.shape[-2],
            form="grid" if grid else "wide",
            **dict(run.options),
        )
        layer.load_state_dict(stored)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise NothingToDrawError(f"{path}: not the weights of {run.label} ({error})") from error
    with torch.no_grad():
        return layer.double().weight.detach(), round(n**0.5)
