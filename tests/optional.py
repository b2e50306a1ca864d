"""Which optional packages a page does not tell its readers to install."""

from __future__ import annotations

import re

from torchldr.info import EXTRAS

MODULES = {"Pillow": "PIL"}  # where a package is imported by another name
PAPER = ("matplotlib", "tensorboard", "Pillow", "torchldr_paper", *EXTRAS["cli"])
OTHERS = ("scipy", "pandas", "pytest", "hypothesis")


def left_out(text: str) -> set[str]:
    """The modules of optional packages that a text does not name, alone, by an extra or by ./paper."""
    installed = " ".join(re.findall(r"pip install ([^`\n]*)", text))
    extras = [extra for found in re.findall(r"\[([\w,]+)\]", installed) for extra in found.split(",")]
    named = {package for extra in extras for package in EXTRAS.get(extra, (extra,))}  # else of torchldr-paper
    named |= set(PAPER) if "paper" in installed else set()
    named |= {word.strip("\"'.") for word in installed.split()}
    every = {*PAPER, *OTHERS, *(package for packages in EXTRAS.values() for package in packages)}
    return {MODULES.get(package, package) for package in every - named}
