# %% [markdown]
# # Compress a network and see what is left
#
# After this tutorial you can compress a trained network, say what it cost in accuracy, win it back, look at
# what the weights became, and save the result. Install the library and matplotlib: `pip install torchldr
# matplotlib`.
#
# The task is made on the spot: which of ten waveforms is hidden in a noisy signal, at an unknown time?

# %%
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchldr

torch.manual_seed(0)
n, length, classes = 96, 24, 10
waves = torch.randn(classes, length).cumsum(1)
waves = (waves - waves.mean(1, keepdim=True)) / waves.std(1, keepdim=True)


def signals(count: int) -> TensorDataset:
    x, labels = 0.4 * torch.randn(count, n), torch.randint(classes, (count,))
    for row, label, start in zip(x, labels, torch.randint(n - length, (count,)), strict=True):
        row[start : start + length] += waves[label]
    return TensorDataset(x, labels)


loader = DataLoader(signals(6000), batch_size=100, shuffle=True)
test_x, test_labels = signals(2000).tensors


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model.eval()(test_x).argmax(1) == test_labels).float().mean())


# %% [markdown]
# An ordinary network, trained as usual.

# %%
model = nn.Sequential(nn.Linear(n, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
for _ in range(6):
    for x, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
before = accuracy(model)
dense = {name: module.weight.detach().clone() for name, module in model.named_children() if name in "02"}
print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {before:.0%} right")

# %% [markdown]
# `compress_` replaces the layers in place. A budget of 0.15 leaves that share of their weights, and the
# loader gives inputs of the usual kind, so that errors are measured where they matter. Each layer is tried
# in every class of the list at several ranks, and the budget goes where it helps most. Leave out
# `structures` to try more classes; that takes a minute or two.

# %%
report = torchldr.compress_(
    model, budget=0.15, structures=("low_rank", "block_circulant"), loader=loader, batches=10
)
print(report)
print(f"without training: {accuracy(model):.0%} right")

# %% [markdown]
# The report has a line for each layer: what it became, its parameters and multiply-adds, and how far the
# new matrix is from the old one, in brackets as the inputs see it. The weights moved by more than half of
# their size, the outputs by far less: inputs do not go everywhere. At this size nothing is gained in time,
# which the report says too.
#
# `finetune` trains the compressed network further, in the way that suits structured layers.

# %%
torchldr.finetune(model, loader, epochs=3, lr=2e-3)
print(f"after three epochs: {accuracy(model):.0%} right; {before:.0%} before compression")

# %% [markdown]
# The compressed network is as good as the dense one was, with a sixth of the parameters. Do not expect that
# of every network: see [what to expect](../compress.md#what-to-expect).
#
# What is left of the weights? Behind each picture stand two thin factors.

# %%
figure = Figure(figsize=(8, 2.7), layout="constrained")
shown = {
    "first layer, dense": dense["0"],
    "compressed": model[0].weight.detach(),
    "second layer, dense": dense["2"],
    "compressed ": model[2].weight.detach(),
}
for place, (title, weight) in enumerate(shown.items()):
    axes = figure.add_subplot(1, len(shown), place + 1)
    limit = float(weight.abs().quantile(0.99))
    axes.imshow(
        weight.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    axes.set(title=title, xticks=[], yticks=[])
figure.savefig("weights.png", dpi=110)

# %% [markdown]
# Save it to a folder. To load it, make the dense network as before and let `load_compressed` give it the
# small layers.

# %%
torchldr.save_compressed(model, "small")

again = nn.Sequential(nn.Linear(n, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes))
torchldr.load_compressed(again, "small")
assert accuracy(again) == accuracy(model)
print(again[2])

# %% [markdown]
# ## Next
#
# [What could a model become?](../analyze.md) looks before it leaps; [compress a model](../compress.md) has
# budgets in bytes and time, recurrent layers, Hugging Face models and the commands; [export](../export.md)
# takes the result elsewhere.
