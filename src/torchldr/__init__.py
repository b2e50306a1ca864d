"""torchldr: weight matrices with low displacement rank for PyTorch.

Here are the layers, the structured classes and the verbs on models and matrices. The rest is in modules:
`algebra`, `operators`, `linalg`, `project`, `matrices.classical`, `nn`, `compress`, `forecast`, `export`,
`testing`.
"""

import sys
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__


def _is_command() -> bool:
    """Whether this process is `torchldr ...` or `python -m torchldr ...`."""
    program = next(iter(getattr(sys, "argv", ())), "")
    module = program == "-m" and "torchldr" in sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1]
    return module or PurePath(program).stem == "torchldr"


# The command line loads what a command needs when it runs: `torchldr --help` waits for no torch.
if TYPE_CHECKING or not _is_command():
    from .core.matrix import StructuredMatrix
    from .core.stacks import stack
    from .core.structures import get_structure, structures
    from .linalg import solve
    from .matrices import (
        ACDC,
        Blast,
        BlockCirculant,
        CauchyLike,
        Circulant,
        Dense,
        Fastfood,
        HankelLike,
        Kronecker,
        LDRSubdiagonal,
        LDRTridiagonal,
        LowRank,
        Monarch,
        ToeplitzLike,
        VandermondeLike,
    )
    from .matrices.classical import Toeplitz
    from .nn import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM, freeze, quantize_
    from .project import from_dense

if TYPE_CHECKING:
    from .compress import (
        Structure,
        analyze,
        compress_,
        finetune,
        load_compressed,
        materialize_,
        save_compressed,
    )

__all__ = [
    "ACDC",
    "Blast",
    "BlockCirculant",
    "CauchyLike",
    "Circulant",
    "Dense",
    "Fastfood",
    "HankelLike",
    "Kronecker",
    "LDRSubdiagonal",
    "LDRTridiagonal",
    "LowRank",
    "Monarch",
    "Structure",
    "StructuredChannels",
    "StructuredGRU",
    "StructuredLSTM",
    "StructuredLinear",
    "StructuredMatrix",
    "Toeplitz",
    "ToeplitzLike",
    "VandermondeLike",
    "analyze",
    "compress_",
    "finetune",
    "freeze",
    "from_dense",
    "get_structure",
    "load_compressed",
    "materialize_",
    "quantize_",
    "save_compressed",
    "solve",
    "stack",
    "structures",
]

# Loaded when first asked for: most programs use only layers, and `import torchldr` should be quick.
_MODULES = ("algebra", "compress", "export", "forecast", "linalg", "matrices", "nn", "operators", "pictures",
            "project", "testing")  # fmt: skip
# The modules that define the names above, searched in this order.
_HOMES = ("nn", "matrices", "matrices.classical", "linalg", "project", "core.stacks", "compress")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in __all__:
        homes = (import_module(f".{home}", __name__) for home in _HOMES)
        return next(getattr(home, name) for home in homes if hasattr(home, name))
    raise AttributeError(f"module 'torchldr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
