"""Train a small GPT with structured layers on several processes: FSDP2, with checkpoints that survive faults.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1   # else restarts may find addresses of dead processes
    torchrun --nproc-per-node 2 --max-restarts 3 examples/distributed.py --text wiki.train.tokens
    torchrun --nproc-per-node 2 --max-restarts 3 examples/distributed.py --quick   # made-up text, in seconds

A process that dies ends the others, torchrun starts all again, and they go on from the last checkpoint: the
numbers are those of an undisturbed run. A checkpoint can be loaded on another number of processes. On several
machines add --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT; all must see the folder --checkpoints.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from torchldr import StructuredLinear


class Block(nn.Module):
    def __init__(self, width: int, heads: int, structure: str, rank: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        linear = partial(StructuredLinear, structure=structure, rank=rank)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens (b, length) to logits (b, length, words)."""

    def __init__(self, words: int, length: int, width: int, layers: int, structure: str, rank: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 4, structure, rank) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read(path: Path | None) -> tuple[Tensor, int]:
    """The words of a text as numbers, and how many there are; made up without a file: x -> 3 x."""
    if path is not None:
        words = path.read_text(encoding="utf-8").split()
        numbers = {word: i for i, word in enumerate(dict.fromkeys(words))}
        return torch.tensor([numbers[word] for word in words]), len(numbers)
    generator, text = torch.Generator().manual_seed(0), [1]
    for noise in torch.randint(0, 640, (4000,), generator=generator).tolist():
        text.append(noise if noise < 64 else 3 * text[-1] % 64)
    return torch.tensor(text), 64


def batch(text: Tensor, step: int, size: int, length: int) -> Tensor:
    """The stretches of a step, which depend on nothing else, so that a restarted job reads the same."""
    starts = torch.randint(len(text) - length, (size, 1), generator=torch.Generator().manual_seed(step))
    return text[starts + torch.arange(length + 1)]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def complete(folder: Path) -> list[Path]:
    """The checkpoints that were written whole, the oldest first: the metadata comes last."""
    return sorted(file.parent for file in folder.glob("*/.metadata"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file, such as that of WikiText-2")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--structure", default="ldr_sd")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--die-at", type=int, help="kill the last rank after this step, once")
    chosen = parser.parse_args()
    width, layers, length, size = (32, 1, 16, 8) if chosen.quick else (256, 4, 128, 32)
    steps, every = (24, 4) if chosen.quick else (chosen.steps, chosen.every)
    alone = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
    os.environ.update(dict(pair.split("=") for pair in alone.split()) | os.environ)  # without torchrun
    rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    kind = "cuda" if torch.cuda.device_count() >= local else "cpu"  # a GPU for every process, or none
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(kind, (world,))
    print(f"rank {rank} of {world}, process {os.getpid()}", flush=True)
    torch.manual_seed(0)  # the same start on every rank
    text, words = read(chosen.text)
    model = GPT(words, length, width, layers, chosen.structure, chosen.rank).to(kind)
    policy = MixedPrecisionPolicy(torch.bfloat16 if kind == "cuda" else None, torch.float32)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    done = 0
    if known := complete(chosen.checkpoints):
        state = state_of(model, optimizer)
        load(state, checkpoint_id=known[-1])
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        done = int(known[-1].name)
        print(f"rank {rank} goes on after step {done}", flush=True)
    for step in range(done, steps):
        part = batch(text, step, size, length).chunk(world)[rank].to(kind)
        loss = cross_entropy(model(part[:, :-1]).flatten(0, 1).float(), part[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(total := loss.detach() / world)
        if rank == 0:
            print(f"step {step + 1} loss {total.item():.6f}", flush=True)
        if step + 1 == chosen.die_at and rank == world - 1 and not done:
            os.kill(os.getpid(), signal.SIGKILL)
        if (step + 1) % every == 0:
            save(state_of(model, optimizer), checkpoint_id=chosen.checkpoints / f"{step + 1:08}")
            if rank == 0:
                for old in complete(chosen.checkpoints)[:-2]:
                    shutil.rmtree(old)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
