"""Compiled blocks under DDP, FSDP2 and activation checkpointing in one process, and in CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchldr

pytestmark = [
    pytest.mark.exhaustive,  # gloo inside of a test process has hung beside others
    pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed"),
]
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
each_structure = pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "ldr_td"])


class Block(nn.Module):
    def __init__(self, n: int, structure: str) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(n), nn.GELU()
        self.up = torchldr.StructuredLinear(n, 2 * n, structure=structure)
        self.square = torchldr.StructuredLinear(2 * n, 2 * n, structure=structure)
        self.down = torchldr.StructuredLinear(2 * n, n, structure=structure)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.square(self.act(self.up(self.norm(x)))))


class Blocks(nn.Module):
    def __init__(self, n: int, structure: str, recomputed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.recomputed = nn.ModuleList(Block(n, structure) for _ in range(2)), recomputed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputed else block(x)
        return x


@contextmanager
def alone(backend: str) -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def trained(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The numbers after two steps, and the output."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        y = model(x)
        y.square().mean().backward()
        optimizer.step()
    found = {name.removeprefix("module."): t for name, t in model.state_dict().items()}
    full = {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in found.items()}
    return full | {"y": y.detach()}


@each_structure
@pytest.mark.parametrize("way", ["ddp", "fsdp", "recomputed"])
@pytest.mark.parametrize(
    ("device", "backend"), [("cpu", "gloo"), pytest.param("cuda", "nccl", marks=on_a_gpu)]
)
def test_they_train_as_plain_ones(device, backend, way, structure):
    torch._dynamo.reset()
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).to(device)
    want = trained(Blocks(64, structure, recomputed=False).to(device), x)
    model: nn.Module = Blocks(64, structure, recomputed=way == "recomputed").to(device)
    # Inductor forks processes of its own, which must not happen beside gloo's threads.
    compiler = "inductor" if device == "cuda" else "aot_eager"
    for block in model.blocks:
        block.compile(backend=compiler)
    with alone(backend):
        if way == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        if way == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(device, (1,))
            for part in (*model.blocks, model):
                fully_shard(part, mesh=mesh)
        hold(trained(model, x), want)


@each_structure
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_a_gpu)])
def test_they_train_in_cuda_graphs(device, structure):
    torch._dynamo.reset()
    x = torch.randn(8, 64, device=device)
    plain, model = (Blocks(64, structure, recomputed=False).to(device) for _ in range(2))
    want = trained(plain, x)
    model.compile(mode="reduce-overhead")
    hold(trained(model, x), want)


def hold(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, t in want.items():
        torch.testing.assert_close(got[name], t, rtol=2e-4, atol=2e-5, msg=name)
