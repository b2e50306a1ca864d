"""The CPU's kernels: plain C, called by ctypes. All else about the package is in pyproject.toml."""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/torchldr/kernels/cpu")
NAME = "torchldr.kernels.cpu._kernels"
# Sums may be taken in any order where a loop says so (`omp simd reduction`); nothing else of fast math.
FLAGS = ["-std=c11", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
         "-fvisibility=hidden", "-Wall", "-Wextra"]  # fmt: skip
WINDOWS = ["/O2", "/std:c11", "/fp:contract"]


class Build(build_ext):
    """A library without an interface to Python: one file for every version of it."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


setup(
    ext_modules=[
        Extension(
            NAME,
            sorted(str(path) for path in FOLDER.glob("*.c")),
            depends=sorted(str(path) for path in FOLDER.glob("*.h")),
            extra_compile_args=WINDOWS if platform.system() == "Windows" else FLAGS,
            libraries=[] if platform.system() == "Windows" else ["m"],
            optional=True,  # without a compiler everything works by plain torch
        )
    ],
    cmdclass={"build_ext": Build},
)
