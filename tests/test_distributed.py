"""Two processes under DDP step to the same weights as one."""

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import torchldr

STRUCTURES = ["ldr_sd", "ldr_td", "toeplitz_like", "fastfood", "cauchy_like"]


def network():
    torch.manual_seed(0)
    layers = []
    for name in STRUCTURES:
        rank = 2 if torchldr.get_structure(name).ranked else None
        layers += [torchldr.StructuredLinear(8, 8, structure=name, rank=rank, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*layers)


def steps(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def worker(rank, port, x, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(network())
    steps(model, x.chunk(2)[rank])
    if rank == 0:
        results.update({name: p.tolist() for name, p in model.module.state_dict().items()})
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed")
def test_ddp_matches_one_process():
    x = torch.randn(6, 8, dtype=torch.float64)
    alone = network()
    steps(alone, x)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(worker, (port, x, results), nprocs=2)
        together = dict(results)
    for name, p in alone.state_dict().items():
        assert torch.allclose(p, torch.tensor(together[name], dtype=p.dtype)), name
