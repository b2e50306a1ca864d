"""What was learned: heat maps of weights, also in place of convolutions, and a subdiagonal as an image.

The weights are those that `--save-weights` keeps beside the ledger, or that ship with the package:
`weights/<hash>.safetensors`, the state_dict of a run's selected network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchldr.nn import StructuredChannels, StructuredLinear
from torchldr.pictures import SIGNED, NothingToDrawError, Picture, bare, new_figure, styled

from .. import data as datasets
from ..data import Dataset
from ..ledger.ledger import PUBLISHED, Ledger
from ..ledger.records import Record
from ..ledger.weights import load_network, weights_path
from ..protocol import Run
from .datasets import DataDir, choose, show_image
from .names import dataset_title, method_title, source_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


CLASSES = ("toeplitz_like", "ldr_sd")
CORNER = 4  # image rows that the enlarged corner of a channels' matrix shows
Part = TypeVar("Part", bound=nn.Module)


@styled
def learned_weights(ledger: Ledger, dataset: str, data_dir: DataDir = None) -> Picture:
    """Learned weights of single hidden layers: Toeplitz-like, LDR-SD, its subdiagonal, and the inputs.

    Of each class, the run of highest validation accuracy whose weights were kept is taken, one by the
    full protocol before a quick one. Where the dataset is not here the panel of inputs is left out.
    """
    chosen = choose_runs(
        ledger,
        lambda run: (run.data, run.model, run.hidden) == (dataset, "shl", None),
        f"on {dataset_title(dataset)}",
        f"shl --save-weights --only dataset={dataset} --only structure={','.join(CLASSES)}",
    )
    layers = {name: load_layer(*found, "hidden", StructuredLinear) for name, found in chosen.items()}
    images = _inputs(dataset, data_dir)
    figure, axes = new_figure(9.6, 3.4, 1, 3 if images is None else 4)
    for ax, structure in zip(axes[0], CLASSES, strict=False):
        record, layer = chosen[structure][0], layers[structure]
        heat_map(ax, layer.weight.detach())
        ax.set_title(f"{method_title(structure)}, r = {record.run.rank}")
        ax.set_xlabel(f"test accuracy {record.best.test:.1f} %" if record.best else "")
    subdiagonal_image(axes[0][2], layers["ldr_sd"])
    axes[0][2].set_title("Subdiagonal of C, LDR-SD")
    if images is not None:
        _mosaic(axes[0][3], images)
    for ax in axes[0]:
        ax.set_anchor("N")  # the colour bar makes its panel lower
    sources = dict.fromkeys(source_title(record.source) for record, _ in chosen.values())
    quick = any(record.run.protocol.is_quick for record, _ in chosen.values())
    title = f"Learned weights, {dataset_title(dataset)} ({', '.join(sources)}{', quick' if quick else ''})"
    figure.suptitle(title)
    return Picture(
        f"weights_{dataset}",
        title,
        "Heat maps of the hidden layer's matrix (red positive, blue negative, saturated at the 99th "
        "percentile of magnitude); the learned subdiagonal of the input's operator, each entry at its "
        "pixel, around the 1 that it started from; and inputs. The paper saw that the matrix of LDR-SD "
        "repeats with the image's width, and that its subdiagonal shows where the objects lie.",
        figure,
        datasets=(dataset,),
        models=("shl",),
    )


def load_layer(record: Record, path: Path, name: str, kind: type[Part]) -> Part:
    """A layer of a run's selected network, in float64."""
    try:
        layer = load_network(path, record).get_submodule(name)
        if not isinstance(layer, kind):
            raise ValueError(f"its layer {name} is a {type(layer).__name__}")
    except (ValueError, AttributeError) as error:
        raise NothingToDrawError(f"{path}: not the weights of {record.run.label} ({error})") from error
    return layer.double()


def heat_map(ax: Axes, M: Tensor) -> None:
    """Draw a matrix, its largest entries saturated to show the others."""
    limit = float(np.quantile(M.abs().numpy(), 0.99)) or 1.0
    ax.imshow(M.numpy(), cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="antialiased")
    bare(ax)


def subdiagonal_image(ax: Axes, layer: StructuredLinear) -> None:
    """Draw the corner and subdiagonal of the input's operator as an image, entry i at pixel i."""
    tensors = layer.matrix().tensors
    entries = torch.cat((tensors["corner_C"].reshape(1), tensors["subdiagonal_C"])).detach().numpy()
    side = round(len(entries) ** 0.5)
    shape = (side, side) if side * side == len(entries) else (1, len(entries))
    low, high = np.quantile(entries[1:], (0.01, 0.99)) if len(entries) > 1 else (0.0, 1.0)
    drawn = ax.imshow(entries.reshape(shape), cmap="cividis", vmin=low, vmax=high, interpolation="nearest")
    bare(ax)
    ax.figure.colorbar(drawn, ax=ax, location="bottom", shrink=0.9, aspect=28, pad=0.03).ax.tick_params(
        labelsize=7
    )


def choose_runs(
    ledger: Ledger, fits: Callable[[Run], bool], where: str, command: str
) -> dict[str, tuple[Record, Path]]:
    """Of each class the run to show and the file of its weights.

    Official data and the full protocol come before others, then the best validation. Weights are looked for
    beside the ledger and in the package. `where` and `command` say what these runs are, and what makes one.
    """
    shipped = PUBLISHED / "weights"

    def worth(found: tuple[Record, Path]) -> tuple[bool, bool, float]:
        record, _ = found
        validation = record.best.validation if record.best else -1.0
        return record.source == "official", not record.run.protocol.is_quick, validation

    chosen = {}
    for structure in CLASSES:
        kept = [
            (record, path)
            for record in ledger
            if record.run.method == structure and fits(record.run)
            for path in (weights_path(ledger, record.run), shipped / f"{record.hash}.safetensors")
            if path.is_file()
        ]
        if not kept:
            title = method_title(structure)
            raise NothingToDrawError(
                f"no weights of {title} {where} were kept; run: torchldr paper {command}"
            )
        chosen[structure] = max(kept, key=worth)
    return chosen


def _inputs(dataset: str, data_dir: DataDir) -> NDArray[Any] | None:
    """16 training images, (16, c, h, w), or None where the dataset is not here."""
    try:
        data: Dataset = datasets.load(dataset, data_dir)
    except datasets.DatasetNotFoundError:
        return None
    return datasets.as_pixels(data.train_x[choose(data.train_y, 16)])


def _mosaic(ax: Axes, images: NDArray[Any]) -> None:
    """Draw images in a square, with a margin of two pixels between them."""
    side = round(len(images) ** 0.5)
    padded = np.pad(images[: side * side], ((0, 0), (0, 0), (0, 2), (0, 2)), constant_values=images.max())
    count, c, h, w = padded.shape
    sheet = padded.reshape(side, count // side, c, h, w).transpose(2, 0, 3, 1, 4)
    show_image(ax, sheet.reshape(c, side * h, -1)[:, :-2, :-2])
    ax.set_title("Inputs")


@styled
def learned_channels(ledger: Ledger, model: str = "channels") -> Picture:
    """The block matrix of the first layer of both classes, and an enlarged corner of each.

    `model` is "channels" or "wide".
    """
    command = f"conv --save-weights --only model={model}"
    chosen = choose_runs(ledger, lambda run: run.model == model, "in place of convolutions", command)
    figure, axes = new_figure(7.2, 7.6, 2, 2)
    for column, (structure, (record, path)) in zip(axes.T, chosen.items(), strict=True):
        layer = load_layer(record, path, "front", StructuredChannels)
        M = layer.weight.detach()
        width = round((M.shape[-1] // layer.in_channels) ** 0.5)
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
