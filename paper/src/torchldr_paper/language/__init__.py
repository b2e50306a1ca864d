"""Language models whose input matrices are structured: the paper's experiment on WikiText-2.

    from torchldr_paper import Ledger, Run, choose_device
    from torchldr_paper.language import LanguageProtocol, sweep_language

    run = Run("wikitext2", "lstm", "ldr_sd", 4, protocol=LanguageProtocol())
    sweep_language([run], Ledger(), choose_device())

A run is a `Run` with model "lstm" and a `LanguageProtocol`; its record lies in the same ledger as the image
experiments', with perplexities where those have accuracies. On the command line: `torchldr paper lstm`.
"""

from ..protocol import LanguageProtocol
from .fleet import LanguageFleet
from .sweep import sweep_language, train_language
from .text import Masks, Text

__all__ = ["LanguageFleet", "LanguageProtocol", "Masks", "Text", "sweep_language", "train_language"]
