"""Processes under DDP and FSDP2 step to the same weights as one."""

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


def ddp(model, x):
    together = nn.parallel.DistributedDataParallel(model)
    steps(together, x)
    return together.module.state_dict(), together(x)


def fsdp(model, x):
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, torchldr.StructuredLinear):
            fully_shard(layer)
    fully_shard(model)
    steps(model, x)
    numbers = {
        name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in model.state_dict().items()
    }
    with torch.no_grad():
        return numbers, model.eval()(x)


def worker(rank, world, port, train, x, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    numbers, y = train(network(), x.chunk(world)[rank])
    results[f"outputs {rank}"] = y.tolist()
    if rank == 0:
        results.update({name: t.tolist() for name, t in numbers.items()})
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed")
@pytest.mark.parametrize(("train", "world"), [(ddp, 2), (fsdp, 1), (fsdp, 2)])
def test_together_as_alone(train, world):
    x = torch.randn(6, 8, dtype=torch.float64)
    alone = network()
    steps(alone, x)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if world == 1:
        together = {}
        worker(0, world, port, train, x, together)
    else:
        with mp.Manager() as manager:
            results = manager.dict()
            mp.spawn(worker, (world, port, train, x, results), nprocs=world)
            together = dict(results)
    for name, p in alone.state_dict().items():
        assert torch.allclose(p, torch.tensor(together[name], dtype=p.dtype)), name
    y = torch.cat([torch.tensor(together[f"outputs {rank}"], dtype=x.dtype) for rank in range(world)])
    assert torch.allclose(y, alone(x))
