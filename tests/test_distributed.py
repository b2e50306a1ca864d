"""Processes under DDP, FSDP2 and tensor parallel plans step to the same weights as one.

One group of three processes runs every case, some on one or two of them, and writes what it found; a test
reads one line of that. `alone` are the same steps in one process. The processes are forks of one that has
imported what they need.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchldr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]

WORLD, N, BATCH = 4, 8, 12


class Everything(nn.Module):
    """A layer of every class, an LSTM, channels, and a layer with fewer numbers than ranks, side by side."""

    def __init__(self, dtype: torch.dtype = torch.float64, recomputed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recomputed = recomputed
        self.layers = nn.ModuleDict()
        for name, structure in torchldr.structures().items():
            rank = 2 if structure.ranked else None
            self.layers[name] = torchldr.StructuredLinear(N, N, structure=name, rank=rank, dtype=dtype)
        self.layers["small"] = nn.Sequential(
            nn.Linear(N, 2, dtype=dtype), torchldr.StructuredLinear(2, 2, structure="ldr_sd", dtype=dtype)
        )
        self.layers["lstm"] = torchldr.StructuredLSTM(N // 2, N, batch_first=True, rank=2, dtype=dtype)
        self.layers["channels"] = torchldr.StructuredChannels(2, 2, (2, 2), structure="ldr_sd", dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        shapes = {"lstm": (-1, 2, N // 2), "channels": (-1, 2, 2, 2)}
        total = x.new_zeros(())
        for name, layer in self.layers.items():
            given = x.view(shapes.get(name, x.shape))
            y = checkpoint(layer, given, use_reentrant=False) if self.recomputed else layer(given)
            total = total + (y[0] if isinstance(y, tuple) else y).sin().square().flatten(1).mean(1).sum()
        return total / len(x)


class Compressed(nn.Module):
    """Plain layers that `compress_` has replaced."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(N, N), nn.Tanh(), nn.Linear(N, N)).double()
        torchldr.compress_(self.body, torchldr.Structure("toeplitz_like", rank=2), min_features=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().flatten(1).mean(1).sum() / len(x)


def inputs(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(BATCH, N, dtype=dtype, generator=torch.Generator().manual_seed(1))


def steps(
    model: nn.Module, parts: list[Tensor], without_sync: Callable[[bool], object] | None = None
) -> None:
    """Two steps; each adds up the gradients of all parts, and only the last part exchanges them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            with contextlib.ExitStack() as stack:
                if without_sync is not None:
                    inside = without_sync(last)
                    if not last and inside is not None:
                        stack.enter_context(inside)
                (model(part) / len(parts)).backward()
        optimizer.step()


def full(model: nn.Module) -> dict[str, Tensor]:
    found = model.state_dict()
    return {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in found.items()}


def difference(model: nn.Module, make: Callable[[], nn.Module]) -> float:
    """From what the same steps make of a model alone, relative to how far they move it."""
    got, want, start = full(model), alone(make).state_dict(), make().state_dict()
    got = {name.removeprefix("module."): t for name, t in got.items()}
    assert got.keys() == want.keys()
    names = [name for name, t in want.items() if t.is_floating_point()]
    wrong = sum(float((got[name] - want[name]).square().sum()) for name in names)
    return float((wrong / sum(float((want[name] - start[name]).square().sum()) for name in names)) ** 0.5)


@cache
def alone(make: Callable[[], nn.Module] = Everything) -> nn.Module:
    model = make()
    steps(model, [inputs(next(model.parameters()).dtype)])
    return model


class Group:
    """The first ranks of all, and this one's share of the batch."""

    def __init__(self, size: int) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        self.size, self.rank = size, dist.get_rank()
        self.mesh = DeviceMesh("cpu", torch.arange(size))
        self.process_group = self.mesh.get_group() if self.rank < size else None

    def share(self, x: Tensor) -> Tensor:
        return x.chunk(self.size)[self.rank]


def sharded(model: nn.Module, group: Group, **options: object) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.modules():
        if isinstance(
            layer, torchldr.StructuredLinear | torchldr.StructuredLSTM | torchldr.StructuredChannels
        ):
            fully_shard(layer, mesh=group.mesh, **options)
    return fully_shard(model, mesh=group.mesh, **options)


# Cases: a process runs them, and returns what the test looks at.


def ddp(group: Group, make: Callable[[], nn.Module] = Everything, parts: int = 1) -> float:
    model = nn.parallel.DistributedDataParallel(make(), process_group=group.process_group)
    mine = group.share(inputs()).chunk(parts)
    steps(model, [*mine], lambda last: None if last else model.no_sync())
    return difference(model, make)


def fsdp(group: Group, make: Callable[[], nn.Module] = Everything, parts: int = 1) -> float:
    model = sharded(make(), group)
    mine = group.share(inputs()).chunk(parts)
    steps(model, [*mine], lambda last: model.set_requires_gradient_sync(last))
    return difference(model, make)


def mixed(group: Group) -> float:
    """Products in bfloat16, numbers in float32: how far from the steps of one process in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(SINGLE(), group, mp_policy=policy)
    steps(model, [group.share(inputs(torch.float32))])
    return difference(model, SINGLE)


def saved_on_two(group: Group, folder: Path) -> float:
    import torch.distributed.checkpoint as dcp

    model = sharded(Everything(), group)
    steps(model, [group.share(inputs())])
    dcp.save(model.state_dict(), checkpoint_id=folder, process_group=group.process_group)
    return difference(model, Everything)


def loaded(group: Group, folder: Path) -> float:
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(7)
    model = sharded(Everything(), group) if group.size > 1 else Everything()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder, process_group=group.process_group, no_dist=group.size == 1)
    model.load_state_dict(state)
    return difference(model, Everything)


def replicated_in_a_plan(group: Group) -> float:
    """Dense layers by columns and rows; a structured one between them is whole on every rank."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Mixture()
    plan = {f"{name}.{part}": style() for name in ("first", "last") for part, style in
            (("up", ColwiseParallel), ("down", RowwiseParallel))}  # fmt: skip
    parallelize_module(model, group.mesh, plan)
    steps(model, [inputs()])
    return difference(model, Mixture)


def inputs_sharded_in_a_plan(group: Group) -> float:
    """A structured layer takes a share of the batch, and its numbers are sharded on the same ranks."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInputOutput, parallelize_module

    model = Mixture()
    share = PrepareModuleInputOutput(
        input_layouts=Replicate(),
        desired_input_layouts=Shard(0),
        use_local_input=True,
        output_layouts=Shard(0),
        desired_output_layouts=Replicate(),
    )
    parallelize_module(model, group.mesh, {"middle": share})
    fully_shard(model.middle, mesh=group.mesh)
    model.middle.set_gradient_divide_factor(1.0)  # shares of one loss add up
    steps(model, [inputs()])
    return difference(model, Mixture)


def errors_after(group: Group) -> float:
    """A model that is wrapped cannot be changed any more, and says so."""
    from torch.distributed.fsdp import fully_shard

    wrapped = nn.parallel.DistributedDataParallel(Pair(), process_group=group.process_group)
    shards = fully_shard(Pair(), mesh=group.mesh)
    plan = torchldr.Structure("low_rank", rank=1)
    for model, message in ((wrapped, "in DistributedDataParallel"), (shards, "'up.weight' is sharded")):
        with pytest.raises(ValueError, match=f"compress_: .*{message}.* change the model first"):
            torchldr.compress_(model, plan)
        with pytest.raises(ValueError, match=f"materialize_: .*{message}"):
            torchldr.materialize_(model)
    return 0.0


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = Pair(), Pair()
        self.middle = torchldr.StructuredLinear(N, N, structure="ldr_td", rank=2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x))).square().flatten(1).mean(1).sum() / len(x)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(*sizes, dtype=torch.float64) for sizes in ((N, 2 * N), (2 * N, N)))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).tanh())


RECOMPUTED, SINGLE = partial(Everything, recomputed=True), partial(Everything, torch.float32)
MODELS = Everything, Compressed, RECOMPUTED, SINGLE, Mixture
CASES: dict[str, tuple[int, Callable[..., float]]] = {
    "ddp": (4, ddp),
    "ddp, no_sync": (2, partial(ddp, parts=2)),
    "ddp, recomputed": (2, partial(ddp, make=RECOMPUTED)),
    "ddp, compressed before": (2, partial(ddp, make=Compressed)),
    "fsdp": (4, fsdp),
    "fsdp, no sync": (2, partial(fsdp, parts=2)),
    "fsdp, recomputed": (2, partial(fsdp, make=RECOMPUTED)),
    "fsdp, compressed before": (4, partial(fsdp, make=Compressed)),
    "fsdp, mixed precision": (2, mixed),
    "saved on 2": (2, saved_on_two),
    "loaded on 3": (3, loaded),
    "loaded on 1": (1, loaded),
    "errors after": (2, errors_after),
    "plan: replicated": (2, replicated_in_a_plan),
    "plan: inputs sharded": (4, inputs_sharded_in_a_plan),
}


def worker(rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", timedelta(minutes=30), rank=rank, world_size=WORLD
    )
    groups = {size: Group(size) for size in range(1, WORLD + 1)}
    found: dict[str, float | str] = {}
    for name, (size, case) in CASES.items():
        if rank < size:
            extra = (folder / "dcp",) if case in (saved_on_two, loaded) else ()
            try:
                found[name] = case(groups[size], *extra)
            except BaseException:  # a CheckpointException is no Exception
                found[name] = traceback.format_exc()
        dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


START = """
import runpy, sys
from pathlib import Path
import torch.distributed.checkpoint, torch.distributed.fsdp, torch.distributed.tensor.parallel
from torch.multiprocessing import start_processes

if __name__ == "__main__":
    torch.set_num_threads(1)
    here = runpy.run_path(sys.argv[1])
    for make in here["MODELS"]:
        here["alone"](make)  # once for all processes
    start_processes(here["worker"], (int(sys.argv[2]), Path(sys.argv[3])), here["WORLD"], start_method="fork")
"""


@pytest.fixture
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float | str]]:
    """What each rank found."""
    from .processes import Case, in_forks, once  # not above: the processes run this file by its path

    def run(folder: Path) -> list[dict[str, float | str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # Autograd does not survive a fork where there is a GPU.
        environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        (ran,) = in_forks([Case(START, [__file__, str(port), str(folder)], environment)])
        assert ran.code == 0, ran.err
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]

    return once(tmp_path_factory, "ranks", run)


@pytest.mark.parametrize("name", [*CASES])
def test_together_as_alone(name: str, found: list[dict[str, float | str]]) -> None:
    for rank in range(CASES[name][0]):
        got = found[rank][name]
        assert isinstance(got, float), got
        # A step in bfloat16 is right to its roundings; the others differ by those of float64 sums.
        assert got < (0.1 if "mixed" in name else 1e-10), (rank, got)
