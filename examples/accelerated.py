"""Compress a network and win its accuracy back with accelerate: any number of devices, any precision.

What `torchldr.finetune` does, in a loop of your own: its parameter groups, and a teacher.

    pip install torchldr accelerate
    python examples/accelerated.py            # or: accelerate launch examples/accelerated.py
"""

from __future__ import annotations

import copy

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import torchldr
from torchldr.compress import parameter_groups

SIZE, CLASSES = 128, 8


def patterns(count: int, seed: int) -> TensorDataset:
    """Noisy, cyclically shifted patterns and which pattern each is."""
    source = torch.Generator().manual_seed(seed)
    known = torch.randn(CLASSES, SIZE, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(CLASSES, (count,), generator=source)
    places = (torch.arange(SIZE) - torch.randint(SIZE, (count, 1), generator=source)) % SIZE
    x = known[labels].gather(1, places) + 0.5 * torch.randn(count, SIZE, generator=source)
    return TensorDataset(x, labels)


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    x, labels = data.tensors
    device = next(model.parameters()).device
    return float((model.eval()(x.to(device)).argmax(1).cpu() == labels).float().mean())


def train(model: nn.Module, epochs: int, lr: float, teacher: nn.Module | None = None) -> nn.Module:
    """The loop that accelerate documents, with rates that suit structured layers."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    optimizer = torch.optim.AdamW(parameter_groups(model, lr))
    loader = DataLoader(patterns(4000, seed=0), batch_size=100, shuffle=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if teacher is not None:
        teacher.to(accelerator.device).eval()
    model.train()
    for _ in range(epochs):
        for x, labels in loader:
            y: Tensor = model(x)
            loss = cross_entropy(y, labels)
            if teacher is not None:
                with torch.no_grad():
                    told = teacher(x)
                loss = loss + mse_loss(y, told) / told.square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    found: nn.Module = accelerator.unwrap_model(model)
    return found


def main() -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(SIZE, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    test = patterns(2000, seed=1)
    model = train(model, epochs=8, lr=2e-3).cpu()
    print(f"dense       {accuracy(model, test):.1%}")
    teacher = copy.deepcopy(model)
    batches = [(x,) for x in patterns(1000, seed=2).tensors[0].split(50)]
    report = torchldr.compress_(model, budget=0.2, loader=batches)
    print(f"compressed  {accuracy(model, test):.1%}, {report.parameters_after:,} parameters in layers")
    model = train(model, epochs=4, lr=2e-3, teacher=teacher)
    print(f"fine-tuned  {accuracy(model, test):.1%}")


if __name__ == "__main__":
    main()
