"""The matrices that were learned in place of convolutions: Toeplitz-like channels beside those of LDR-SD."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from torchldr.nn import StructuredChannels
from torchldr.pictures import Picture, new_figure, styled

from ..ledger.ledger import Ledger
from ..ledger.records import Record
from .learned import choose_runs, heat_map, load_part
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
    command = f"conv --save-weights --only model={model}"
    chosen = choose_runs(ledger, lambda run: run.model == model, "in place of convolutions", command)
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


def _weight(record: Record, path: Path) -> tuple[Tensor, int]:
    """The dense block matrix of a run's first layer, and the width of its images."""

    def made(stored: Mapping[str, Tensor]) -> StructuredChannels:
        form = "grid" if "grid.H" in stored else "wide"
        H = stored[f"{form}.H"]
        channels = H.shape[0] if form == "grid" else 3
        n = H.shape[-1] if form == "grid" else H.shape[-1] // channels
        sizes = {"bias": False, "rank": H.shape[-2], "form": form, **dict(record.run.options)}
        return StructuredChannels(channels, channels, n, structure=record.run.structure, **sizes)

    layer = load_part(record, path, PREFIX, made)
    return layer.weight.detach(), round((layer.weight.shape[-1] // layer.in_channels) ** 0.5)
