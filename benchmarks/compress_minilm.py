"""A sentence encoder compressed without training: Spearman's correlation on STS-B, beside whitened SVD.

    python benchmarks/compress_minilm.py MODEL TOKENS [--budgets 0.5 0.3] [--time-limit 120] [--alone NAME ..]

MODEL is a folder with config.json and model.safetensors of all-MiniLM-L6-v2, TOKENS what real_models.py
makes of the texts. For every budget and calibration text: the default call of `compress_`, the same with one
class alone, and a uniform share of SVD whitened by the inputs' covariance with the same sentences; their
correlation on the 1,500 pairs of STS-B dev, and the mean cosine between their embeddings and the original's.
"""

from __future__ import annotations

from pathlib import Path

from real_models import SentenceJudge, Sentences, load_encoder, load_tokens
from torch import Tensor
from without_training import compare, options


def calibrations(tokens: dict[str, Tensor]) -> dict[str, Sentences]:
    """Sentences drawn at random: the files are sorted by kind, and STS-B begins with captions alone."""
    many, some = (
        Sentences(tokens[name][:count], tokens[f"{name}_lengths"][:count], size)
        for name, count, size in (("sts", 3000, 60), ("wiki", 256, 32))
    )
    return {"sts-b, 3000": many, "wikitext-2, 256": some}


def main() -> None:
    single = ["low_rank", "block_circulant"]
    parser = options(__doc__, [0.5, 0.3], single, "results/bench/compress_minilm.json")
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--texts", nargs="+", default=["sts-b, 3000", "wikitext-2, 256"])
    asked = parser.parse_args()
    original, tokens = load_encoder(asked.model), load_tokens(asked.tokens)
    loaders = calibrations(tokens)
    compare(original, SentenceJudge(tokens, original), {text: loaders[text] for text in asked.texts}, asked)


if __name__ == "__main__":
    main()
