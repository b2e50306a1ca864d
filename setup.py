"""The CPU's kernels: plain C, called by ctypes. All else about the package is in pyproject.toml."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/torchldr/kernels/cpu")
NAME = "torchldr.kernels.cpu._kernels"
# Sums may be taken in any order where a loop says so (`omp simd reduction`); nothing else of fast math.
FLAGS = ["-std=c11", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
         "-fvisibility=hidden", "-g0", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]  # fmt: skip
ON_WINDOWS = platform.system() == "Windows"


class Library(build_ext):
    """A library without an interface to Python: one file for every version of it."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        """With the files compiled side by side, which setuptools does not do."""
        one_by_one = self.compiler.compile

        def side_by_side(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [made for (made,) in pool.map(lambda source: one_by_one([source], **options), sources)]

        if self.compiler.compiler_type == "unix":
            self.compiler.compile = side_by_side
        super().build_extension(ext)


class Wheel(bdist_wheel):
    """For every Python of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            NAME,
            sorted(path.as_posix() for path in FOLDER.glob("*.c")),
            depends=sorted(path.as_posix() for path in FOLDER.glob("*.h")),
            extra_compile_args=["/O2", "/std:c11", "/fp:contract"] if ON_WINDOWS else FLAGS,
            libraries=[] if ON_WINDOWS else ["m"],
            optional=True,  # without a compiler everything works by plain torch
        )
    ],
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
)
