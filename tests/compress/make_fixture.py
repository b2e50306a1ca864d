"""Write the fixtures of the formats: run when a version is made, which never writes over an older one.

python tests/compress/make_fixture.py
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

import torchldr

FOLDERS = {version: Path(__file__).parent / "fixtures" / f"version{version}" for version in (1, 2)}


class Model(nn.Module):
    """A bit of everything that can be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.pointwise = nn.Conv2d(8, 12, 1, stride=2)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(12)
        self.rnn = nn.LSTM(12, 8, batch_first=True)
        self.up = nn.Linear(8, 10)
        self.down = nn.Linear(10, 8)
        self.again = nn.Linear(8, 10)
        self.again.weight = self.up.weight
        self.same = self.down
        self.mixed = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pointwise(x).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x = self.rnn(x)[0]
        x = self.same(torch.tanh(self.again(self.down(torch.relu(self.up(x))))))
        return self.mixed(x)


PLAN = {
    "pointwise": torchldr.Structure("low_rank", rank=2),
    "attention.q_proj": torchldr.Structure("toeplitz_like", rank=2),
    "attention.v_proj": torchldr.Structure("block_circulant", block_size=3),
    "rnn": torchldr.Structure("low_rank", rank=2),
    "up": torchldr.Structure("ldr_sd", rank=1),
    "down": torchldr.Structure("toeplitz_like", rank=1),
    "mixed": torchldr.Structure("fastfood"),
}


def make() -> tuple[Model, Tensor]:
    """The compressed model and an input."""
    torch.manual_seed(0)
    model = Model().eval()
    torchldr.compress_(model, PLAN, min_features=4, time_limit=12.0)
    return model, torch.randn(2, 8, 6, 4)


def main() -> None:
    model, x = make()
    for version, folder in FOLDERS.items():
        if version == 2:
            torchldr.quantize_(model)
        if folder.exists():
            print(f"{folder} exists: what was written by an older version must not change.")
            continue
        with torch.no_grad():
            y = model(x)
        torchldr.save_compressed(model, folder)
        expected = {"input": x.tolist(), "output": y.tolist()}
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
