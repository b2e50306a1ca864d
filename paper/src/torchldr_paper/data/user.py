"""A user's own data: one .npz file with four arrays.

    train_x  (n, d) rows, (n, h, w) grey images or (n, c, h, w) images
    train_y  (n,) integer labels from 0
    test_x   as train_x, (m, ...)
    test_y   (m,) integer labels

Pixels that are bytes (uint8) are divided by 255; other numbers are taken as they are, in float32.
Two further arrays are optional: `classes`, one integer (else the largest training label plus one),
and `image_shape`, (c, h, w), which says how flat rows are images (else rows of d = s * s numbers
are grey s x s images, and other rows are images one pixel high).

    np.savez("my.npz", train_x=..., train_y=..., test_x=..., test_y=...)
"""

from __future__ import annotations

import difflib
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from torchldr_paper.data.dataset import Array, DataFileError, Dataset, Splits

_OPTIONAL = ("classes", "image_shape")
_MOST_CLASSES = 1_000_000  # a network has an output for each
_Shape = tuple[int, int, int]


def load_npz(path: str | os.PathLike[str]) -> Dataset:
    """Load a user's dataset from a .npz file; the module's text says which arrays it holds.

    Raises:
        FileNotFoundError: when there is no such file.
        DataFileError: when an array is missing, has NaN or infinity, has labels that are out of
            range or not whole numbers, or when shapes disagree.
    """
    path = Path(path).expanduser()
    try:
        splits, facts = _checked(_read(path))
    except DataFileError as mistake:  # which says what is wrong, without the file's name
        raise DataFileError(f"{path}: {mistake}") from mistake
    return Dataset.of(splits, name=path.stem, **facts, source="user", origin=str(path))


def _read(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    name = ""
    try:
        stored = np.load(path, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise DataFileError("holds a single array, as a .npy file does: np.savez writes .npz files.")
        with stored:
            arrays = {}
            for name in (*Splits._fields, *_OPTIONAL):
                if name in stored.files:
                    arrays[name] = stored[name]
                    if not isinstance(arrays[name], np.ndarray):  # NumPy gives the bytes of other files
                        raise ValueError("it is not an array")
                elif name not in _OPTIONAL:
                    raise DataFileError(_missing(name, stored.files))
            return arrays
    except DataFileError:
        raise
    except Exception as error:
        # Damage shows in many ways: from zipfile, from NumPy's header, or as too little memory.
        what = f"array {name} cannot be read" if name else "damaged or not a .npz file, which np.savez writes"
        raise DataFileError(f"{what} ({error}).") from error


def _missing(name: str, present: list[str]) -> str:
    others = {other.lower(): other for other in present if other not in Splits._fields}
    swapped = "_".join(reversed(name.split("_")))  # x_train for train_x
    near = [swapped] if swapped in others else difflib.get_close_matches(name, others, n=1)
    hint = f" Is it {others[near[0]]!r}? Then save it as {name!r}." if near else ""
    return (
        f"array {name!r} is missing; it holds {', '.join(present) or 'nothing'}.{hint} "
        "Expected: train_x, train_y, test_x, test_y."
    )


def _checked(arrays: dict[str, Array]) -> tuple[Splits, dict[str, Any]]:
    """The images and labels of a file, and what they are."""
    shape = _image_shape(arrays)
    train_x, test_x = (_images(name, arrays[name], shape) for name in ("train_x", "test_x"))
    train_y = _labels("train_y", arrays["train_y"], len(train_x))
    test_y = _labels("test_y", arrays["test_y"], len(test_x))
    classes = _classes(arrays, train_y)
    for name, y in (("train_y", train_y), ("test_y", test_y)):
        wrong = np.flatnonzero((y < 0) | (y >= classes))
        if len(wrong):
            told = "" if "classes" in arrays else ", from the largest label in train_y"
            raise DataFileError(
                f"labels in {name} must lie in 0 .. {classes - 1} ({classes} classes{told}), got "
                f"{y[wrong[0]]} in row {wrong[0]}."
            )
    if test_x.dtype != train_x.dtype:
        raise DataFileError(
            f"train_x and test_x must both be uint8 or neither, got {arrays['train_x'].dtype} and "
            f"{arrays['test_x'].dtype}; bytes are divided by 255."
        )
    return Splits(train_x, train_y, test_x, test_y), {"image_shape": shape, "classes": classes}


def _image_shape(arrays: dict[str, Array]) -> _Shape:
    shape = arrays["train_x"].shape
    if len(shape) not in (2, 3, 4) or 0 in shape:
        raise DataFileError(
            "train_x must be rows (n, d), grey images (n, h, w) or images (n, c, h, w), none of them empty, "
            f"got shape {shape}."
        )
    if len(shape) == 4:
        if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
            raise DataFileError(
                f"train_x of shape {shape} seems to have its channels last, expected (n, c, h, w): "
                "save x.transpose(0, 3, 1, 2)."
            )
        return shape[1], shape[2], shape[3]
    if len(shape) == 3:
        return 1, shape[1], shape[2]
    if "image_shape" in arrays:
        given = arrays["image_shape"]
        fits = given.shape == (3,) and given.dtype.kind in "iu" and (given > 0).all()
        if not fits or math.prod(given.tolist()) != shape[1]:
            raise DataFileError(
                f"image_shape must be three integers (c, h, w) with product {shape[1]}, the width of "
                f"train_x, got {given.tolist()}."
            )
        c, h, w = given.tolist()
        return c, h, w
    side = math.isqrt(shape[1])
    return (1, side, side) if side * side == shape[1] else (1, 1, shape[1])


def _images(name: str, x: Array, shape: _Shape) -> Array:
    if x.shape[:1] == (0,):
        raise DataFileError(f"{name} is empty, got shape {x.shape}.")
    if x.ndim < 2 or math.prod(x.shape[1:]) != math.prod(shape):
        raise DataFileError(f"{name} has shape {x.shape}, expected images of {shape} as in train_x.")
    if x.dtype.kind not in "biuf":
        raise DataFileError(f"{name} must hold real numbers, got {x.dtype}.")
    if x.dtype != np.uint8:
        x = x.astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(axis=1))
        if len(bad):
            where = f"in {len(bad)} of {len(x)} rows, the first is row {bad[0]}"
            raise DataFileError(f"{name} has NaN or infinity (in float32) {where}.")
    return np.ascontiguousarray(x).reshape(len(x), *shape)


def _labels(name: str, y: Array, count: int) -> Array:
    if y.shape != (count,):
        hint = ""
        if y.ndim == 2:
            hint = " (save y[:, 0])" if y.shape[1] == 1 else " (for one-hot rows save y.argmax(1))"
        raise DataFileError(f"{name} must have shape ({count},), one label an image{hint}, got {y.shape}.")
    if y.dtype.kind not in "biuf":
        raise DataFileError(f"{name} must hold integers, got {y.dtype}.")
    if y.dtype.kind == "f":
        bad = np.flatnonzero(~(np.isfinite(y) & (y == np.rint(y)) & (np.abs(y) < 2**53)))
        if len(bad):
            raise DataFileError(f"{name} must hold integers, got {y[bad[0]]} in row {bad[0]}.")
    return y.astype(np.int64)


def _classes(arrays: dict[str, Array], train_y: Array) -> int:
    meant = "save an integer array 'classes' if that is meant"
    if "classes" in arrays:
        given = arrays["classes"]
        fits = given.size == 1 and given.dtype.kind in "iu"
        if not fits or not 2 <= int(given.reshape(())) <= _MOST_CLASSES:
            raise DataFileError(
                f"classes must be one integer from 2 to {_MOST_CLASSES:,}, got {given!s:.60}."
            )
        return int(given.reshape(()))
    if len(np.unique(train_y)) < 2:
        raise DataFileError(
            f"train_y must have two classes or more, all its labels are {train_y[0]}; {meant}."
        )
    row = int(train_y.argmax())
    classes = int(train_y[row]) + 1
    if classes > len(train_y):
        raise DataFileError(
            f"labels in train_y must be 0 .. classes - 1, got {train_y[row]} in row {row} of only "
            f"{len(train_y)} rows; {meant}."
        )
    return classes
