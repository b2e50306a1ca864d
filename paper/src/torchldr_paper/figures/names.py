"""How pictures and the report call things: titles of datasets, methods and sources."""

from __future__ import annotations

from pathlib import PurePath

from ..data.registry import DATASETS

METHODS = {
    "dense": "Unstructured",
    "ldr_sd": "LDR-SD",
    "ldr_td": "LDR-TD",
    "toeplitz_like": "Toeplitz-like",
    "hankel_like": "Hankel-like",
    "vandermonde_like": "Vandermonde-like",
    "cauchy_like": "Cauchy-like",
    "low_rank": "Low rank",
    "circulant": "Circulant",
    "block_circulant": "Block circulant",
    "fastfood": "Fastfood",
    "acdc": "ACDC",
    "monarch": "Monarch",
    "kronecker": "Kronecker",
    "blast": "BLAST",
    "pruning": "Pruning",
    "rhu": "Fewer hidden units",
}
MODELS = {
    "shl": "single hidden layer",
    "cnn": "CNN",
    "lstm": "LSTM",
    "conv3": "3 convolution channels",
    "conv3_pool": "3 convolution channels, max-pooling",
    "conv4_pool": "4 convolution channels, max-pooling",
    "channels": "structured channels",
    "wide": "wide structured matrix",
    "channels_square": "structured channels, square hidden layer",
    "wide_square": "wide structured matrix, square hidden layer",
    "channels_blocks": "structured channels, hidden layer of blocks",
    "wide_blocks": "wide structured matrix, hidden layer of blocks",
}
CORPORA = {"wikitext2": "WikiText-2"}
SOURCES = {"official": "official data", "stand-in": "stand-in", "user": "own data"}


def method_title(name: str) -> str:
    """A method's title; a name without one (the literature's) is its own."""
    return METHODS.get(name, name)


def dataset_title(name: str) -> str:
    """The paper's name of a dataset, or the file's name of a user's own.

    >>> dataset_title("mnist_bg_rot"), dataset_title("/home/me/mine.npz")
    ('MNIST-bg-rot', 'mine.npz')
    """
    if name in CORPORA:
        return CORPORA[name]
    return DATASETS[name].title if name in DATASETS else PurePath(name).name


def model_title(name: str) -> str:
    return MODELS.get(name, name)


def source_title(name: str) -> str:
    """Where data came from, in words that fit behind a comma."""
    return SOURCES.get(name, name)
