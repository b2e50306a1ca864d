"""What is installed and switched on here: the facts behind `torchldr info`.

No optional package is imported for it.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import torchldr
from torchldr.kernels import cuda
from torchldr.kernels.cpu import library
from torchldr.matrices import get_structure, structures

# The packages of each extra in pyproject.toml.
EXTRAS = {
    "cli": ("typer", "rich", "safetensors"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "hf": ("transformers", "safetensors", "accelerate"),
}

# The classes with products of their own by kernels on a GPU, and those by kernels on a CPU.
KERNELS = "ldr_sd, ldr_td, toeplitz_like, hankel_like"
LOOPED = f"{KERNELS}, circulant, block_circulant"


def info() -> dict[str, Any]:
    """Versions, devices, registered structures, fast paths and optional packages, as plain values.

    Returns:
        A dictionary that JSON can hold:

        versions: of torchldr, Python and the packages that it always needs; None if one is missing.
        platform: system, machine, CPU cores and the threads that torch uses.
        devices: name and description of each device.
        structures: names of the registered classes.
        fast_paths: for each, whether it is `on`, what it `does`, and `why_not` if it is off.
        extras: for each extra, the versions of its packages (None if one is missing) and what to
            `install` if it is incomplete.

    >>> sorted(info())
    ['devices', 'extras', 'fast_paths', 'platform', 'structures', 'versions']
    """
    return {
        "versions": {
            "torchldr": torchldr.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": _version("numpy"),
        },
        "platform": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "devices": _devices(),
        "structures": list(structures()),
        "fast_paths": _fast_paths(),
        "extras": {extra: _extra(extra, packages) for extra, packages in EXTRAS.items()},
    }


def products(
    structure: str, *, n: int = 1024, batch: int = 1, rank: int = 1, frozen: bool = False
) -> list[dict[str, Any]]:
    """Both products of a class for an n x n matrix: what each costs, whether it is taken, why not.

    >>> [row["product"] for row in products("low_rank", n=4096, batch=64) if row["taken"]]
    ['fast']
    """
    cls = get_structure(structure)
    matrix = cls.random(n, n, rank if cls.ranked else None)
    return matrix.products(batch, frozen=frozen).to_dicts()


def describe_structures(out_features: int = 784, in_features: int = 784) -> list[dict[str, Any]]:
    """The registry as a table, one row for each structured class; parameters are counted at `first_rank`.

    >>> {row["name"]: row["parameters"] for row in describe_structures()}["ldr_sd"]
    3136
    """
    rows = []
    for cls in structures().values():
        options = cls.check_options({})
        rank = cls.first_rank if cls.ranked else None
        shapes = cls.check_shapes(out_features, in_features, rank, options)
        count = sum(torch.Size(shape).numel() for shape in shapes.values())
        row = {"name": cls.name, "class": cls.__name__, "parameters": count, "ranked": cls.ranked}
        row["first_rank"] = rank
        rows.append({**row, "options": options, "summary": (cls.__doc__ or "").strip().partition("\n")[0]})
    return rows


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> list[dict[str, str]]:
    devices = [{"device": "cpu", "description": platform.processor() or platform.machine()}]
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        devices.append({"device": f"cuda:{i}", "description": f"{properties.name}, {memory}"})
    if torch.backends.mps.is_available():
        devices.append({"device": "mps", "description": "Metal"})
    return devices


def _fast_paths() -> list[dict[str, Any]]:
    no_cuda = None
    if not torch.cuda.is_available():
        no_cuda = "torch was built without CUDA" if torch.version.cuda is None else "no CUDA device was found"
    return [
        _path("C kernels", f"products of {LOOPED} on a CPU", library.why_not()),
        _path("cuda", "every product on a GPU, by the same torch operations", no_cuda),
        _path("cuda kernels", f"{KERNELS} on a GPU, compiled by NVRTC", no_cuda or cuda.unavailable()),
    ]


def _path(name: str, does: str, why_not: str | None) -> dict[str, Any]:
    return {"name": name, "does": does, "on": why_not is None, "why_not": why_not}


def _extra(extra: str, packages: tuple[str, ...]) -> dict[str, Any]:
    found = {package: _version(package) for package in packages}
    complete = all(found.values())
    return {"packages": found, "install": None if complete else f"pip install torchldr[{extra}]"}
